"""What a number is tied to: digests of the recipe and the data that made it, beside that of the weights."""

import hashlib
import json
import re
from collections.abc import Iterator
from glob import glob
from pathlib import Path

from ..recipes.schema import Data, Recipe

_ENDS = 1 << 16  # bytes at both ends of a file that are read


def digest_recipe(recipe: Recipe) -> str:
    """A digest of all settings of a run, 32 hexadecimal digits."""
    return _digest(recipe.to_dict())


def digest_data(data: Data) -> str:
    """A digest of the data that a recipe names: its settings, and of every local file its name, its size and, unless it
    lies in a folder of many, both ends: large files are not read whole. Equal data elsewhere has the same digest."""
    places = ("train", "val", "train_boxes", "val_boxes")
    settings = {
        name: value for name, value in vars(data).items() if name not in (*places, "cache", "workers", "results")
    }
    files = {name: list(_files(getattr(data, name))) for name in places}
    return _digest({"settings": settings, "files": files})


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _files(where: str) -> Iterator[list[str | int]]:
    """What the files are that a place of a recipe stands for; nothing for a hub, a pipe or an address."""
    if where.startswith("pipe:") or "://" in where:
        return
    for part in filter(None, re.split(r",| \+ ", where)):
        pattern = re.sub(r"\{[^}]*\}", "*", part)  # {000..127}
        for path in [Path(part)] if Path(part).exists() else map(Path, sorted(glob(pattern))):
            if path.is_dir():
                for inside in sorted(p for p in path.rglob("*") if p.is_file()):
                    yield [str(inside.relative_to(path)), inside.stat().st_size]
            else:
                yield _file(path)


def _file(path: Path) -> list[str | int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        ends = file.read(_ENDS)
        file.seek(max(size - _ENDS, 0))
        ends += file.read(_ENDS)
    return [path.name, size, hashlib.blake2b(ends, digest_size=16).hexdigest()]
