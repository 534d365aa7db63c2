"""What a finished run leaves: result.json and summary.csv. Digests in result.json tie the numbers to the weights, the
recipe and the data that made them."""

import csv
import hashlib
import io
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..data.cache import PLACES, named_files
from ..io.files import read_record, write_json, write_text
from ..recipes.overrides import differences, from_dict
from ..recipes.schema import Data, Recipe
from ..tasks.warm_start import start_files

_END_BYTES = 1 << 16  # of a file, read at its start and at its end
_IRRELEVANT = ("cache", "workers")  # settings that change no number
_RESULT = {"metric": str, "metrics": {str: float}, "parameters": int, "seconds": float}


def read_result(recipe: Recipe, out: Path, files: str | None = None) -> dict[str, Any] | None:
    """The result that `train` left in `out`, or None if the run is not finished. Refuses the result of another recipe,
    or of data that has changed since. files: `digest_files` of the recipe's data, for callers that know it."""
    if not (out / "result.json").exists():
        return None
    try:
        earlier = from_dict(read_record(out / "recipe.json", dict))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{out / 'recipe.json'} is not the recipe of the run ({error}): restore it") from None
    changed = differences(earlier, recipe)
    if changed:
        raise ValueError(f"{out} holds the result of another recipe ({'; '.join(changed)}): choose another folder")
    result: dict[str, Any] = read_record(out / "result.json", _RESULT, "restore it, or remove it to repeat the run")
    if result.get("digest"):
        check_files(result["digest"], digest_files(recipe.data) if files is None else files, out)
        start = digest_start(recipe)
        if start and result["digest"].get("start", start) != start:  # as with files that are gone: "" says nothing
            raise ValueError(
                f"{out} holds a run that started from other weights: the files that model.start, policy.encoder or "
                f"text.tokenizer names have changed since. Choose another folder, or remove this one to repeat the run"
            )
    return result


def check_files(before: Mapping[str, Any], files: str, out: Path) -> None:
    """Refuse to go on with a run in `out`, or to take its result, where the files of its data were others. before: what
    the run left, "files" in it. files: their digest now, "" where there are none or where they are gone."""
    if files and before.get("files", files) != files:
        raise ValueError(
            f"{out} holds a run on other data: the files that data.train or data.val names have changed since. Choose "
            f"another folder, or remove this one to repeat the run"
        )


def write_result(recipe: Recipe, out: Path, result: Mapping[str, Any]) -> None:
    """Write summary.csv, one line with the main numbers, and then result.json, which says that the run is finished."""
    line = {"recipe": recipe.name, "encoding": recipe.model.encoding, "seed": recipe.seed, "step": result["step"]}
    line |= result["metrics"]
    line |= {key: result[key] for key in ("parameters", "step_ms", "peak_bytes", "seconds", "device")}
    text = io.StringIO()
    writer = csv.DictWriter(text, line, lineterminator="\n")
    writer.writeheader()
    writer.writerow(line)
    write_text(out / "summary.csv", text.getvalue())
    write_json(out / "result.json", result)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    import accelerate  # type: ignore[import-untyped]

    return {
        "stringpe": __version__,
        "torch": torch.__version__,
        "accelerate": accelerate.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def digests(recipe: Recipe, weights: str) -> dict[str, str]:
    """Digests of what makes a number: the weights (given), the recipe and the data, and of the data's files, where it
    has any, alone."""
    files = _list_files(recipe.data)
    sums = {"weights": weights, "recipe": digest_recipe(recipe), "data": _digest_with_settings(recipe.data, files)}
    return sums | {"files": _digest(files)} if any(files.values()) else sums


def digest_recipe(recipe: Recipe) -> str:
    """A digest of all settings of a run, 32 hexadecimal digits."""
    return _digest(recipe.to_dict())


def digest_data(data: Data) -> str:
    """A digest of the data that a recipe names, which is the same wherever equal data lies. It covers the settings, the
    name and size of every local file, and the first and last 64 KiB of files that are named themselves; files inside a
    named folder are not opened."""
    return _digest_with_settings(data, _list_files(data))


def _digest_with_settings(data: Data, files: Mapping[str, object]) -> str:
    settings = {name: value for name, value in vars(data).items() if name not in (*PLACES, *_IRRELEVANT)}
    return _digest({"settings": settings, "files": files})


def digest_files(data: Data) -> str:
    """A digest of the local files that a recipe's data names, as `digest_data` sees them; "" where there are none."""
    files = _list_files(data)
    return _digest(files) if any(files.values()) else ""


def digest_start(recipe: Recipe) -> str:
    """A digest of the files that training starts from, by name, size and their first and last 64 KiB; "" where there
    are none."""
    files = [[path.name, path.stat().st_size, _digest_ends(path)] for path in start_files(recipe)]
    return _digest(files) if files else ""


def _list_files(data: Data) -> dict[str, list[list[str | int]]]:
    """Name, size and perhaps a digest of every file that a setting names, by the setting."""
    return {
        place: [
            [name, path.stat().st_size, *([] if inside else [_digest_ends(path)])]
            for name, path, inside in named_files(getattr(data, place))
        ]
        for place in PLACES
    }


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest_ends(path: Path) -> str:
    """A digest of a file's first and last 64 KiB."""
    with path.open("rb") as file:
        ends = file.read(_END_BYTES)
        file.seek(max(path.stat().st_size - _END_BYTES, 0))
        ends += file.read(_END_BYTES)
    return hashlib.blake2b(ends, digest_size=16).hexdigest()
