"""Files and folders that are either there whole or not there at all."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` in one rename once all in it has reached the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}.*"):
        shutil.rmtree(stale, ignore_errors=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.mkdir()
    yield draft
    for folder, _, names in os.walk(draft):
        for name in [*names, "."]:
            _sync(os.path.join(folder, name))
    os.rename(draft, path)
    _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a file through a draft beside it and one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    _sync(draft)
    os.replace(draft, path)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a safetensors file through a draft beside it and one rename."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(tensors, draft)
    os.replace(draft, path)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
