"""Digests of the data that a recipe names, which tie results to it and notice files that changed."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from typing import Any

from ..recipes.schema import Data

_END_BYTES = 1 << 16  # of a file, read at its start and at its end
_IRRELEVANT = ("cache", "workers")  # settings that change no number

PLACES = ("train", "val", "train_boxes", "val_boxes")
"""The settings of `Data` that name files or folders."""


def digest_data(data: Data) -> str:
    """A digest of the data that a recipe names, which is the same wherever equal data lies. It covers the settings, the
    name and size of every local file, and the first and last 64 KiB of files that are named themselves; files inside a
    named folder are not opened."""
    return digest_data_and_files(data)["data"]


def digest_data_and_files(data: Data) -> dict[str, str]:
    """`digest_data` as "data" and, where there are local files, `digest_files` as "files". Files are listed once."""
    settings = {name: value for name, value in vars(data).items() if name not in (*PLACES, *_IRRELEVANT)}
    files = _list_files(data)
    sums = {"data": digest_json({"settings": settings, "files": files})}
    return sums | {"files": digest_json(files)} if any(files.values()) else sums


def digest_files(data: Data) -> str:
    """A digest of the local files that a recipe's data names, as `digest_data` sees them; "" where there are none."""
    files = _list_files(data)
    return digest_json(files) if any(files.values()) else ""


def digest_paths(paths: Sequence[Path]) -> str:
    """A digest of files by name, size and their first and last 64 KiB; "" where there are none."""
    files = [[path.name, path.stat().st_size, _digest_ends(path)] for path in paths]
    return digest_json(files) if files else ""


def _list_files(data: Data) -> dict[str, list[list[str | int]]]:
    """Name, size and perhaps a digest of every file that a setting names, by the setting."""
    return {
        place: [
            [name, path.stat().st_size, *([] if inside else [_digest_ends(path)])]
            for name, path, inside in named_files(getattr(data, place))
        ]
        for place in PLACES
    }


def digest_json(value: object) -> str:
    """A digest of plain data, 32 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def named_files(where: str) -> Iterator[tuple[str, Path, bool]]:
    """The local files that such a setting stands for: name, path, and whether the file lies in a folder that is named,
    where the name is the path inside it. None for a hub, a pipe or an address."""
    if where.startswith("pipe:") or "://" in where:
        return
    for part in filter(None, re.split(r",| \+ ", where)):
        pattern = re.sub(r"\{[^}]*\}", "*", part)  # {000..127}
        for path in [Path(part)] if Path(part).exists() else map(Path, sorted(glob(pattern))):
            if path.is_dir():
                for inside in sorted(p for p in path.rglob("*") if p.is_file()):
                    yield str(inside.relative_to(path)), inside, True
            else:
                yield path.name, path, False


def _digest_ends(path: Path) -> str:
    """A digest of a file's first and last 64 KiB."""
    with path.open("rb") as file:
        ends = file.read(_END_BYTES)
        file.seek(max(path.stat().st_size - _END_BYTES, 0))
        ends += file.read(_END_BYTES)
    return hashlib.blake2b(ends, digest_size=16).hexdigest()


def check_files(before: Mapping[str, Any], files: str, out: Path) -> None:
    """Refuse to go on with a run in `out`, or to take its result, where the files of its data were others. before: what
    the run left, "files" in it. files: their digest now, "" where there are none or where they are gone."""
    if files and before.get("files", files) != files:
        raise ValueError(
            f"{out} holds a run on other data: the files that data.train or data.val names have changed since. Choose "
            f"another folder, or remove this one to repeat the run"
        )
