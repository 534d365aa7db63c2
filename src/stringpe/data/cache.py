"""What is kept of data sets: the last few in the memory of a process, and files in a cache folder on disk."""

import functools
import hashlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ..io.files import cache_folder, read_tensors, write_tensors
from ..recipes.schema import Data
from .fingerprints import PLACES, named_files

Marks = list[tuple[str, int, int]]
"""Place, size and date of files."""

MOST = 8
"""Data sets (a split each) that a process keeps: the most recently used ones, whatever they are."""

_sets: "OrderedDict[Hashable, tuple[Marks, Any]]" = OrderedDict()
_lock = threading.RLock()

Function = TypeVar("Function", bound=Callable[..., Any])


def remember(function: Function) -> Function:
    """Decorate a function that loads a data set: called again with equal arguments, it returns what it returned, as
    long as that is among the `MOST` sets used last, and no file that a `Data` among the arguments names has changed.
    All decorated functions share this one cache."""

    @functools.wraps(function)
    def wrapper(*arguments: Hashable) -> Any:
        key = (function.__module__, function.__qualname__, arguments)
        marks = [mark for data in arguments if isinstance(data, Data) for mark in mark_data(data)]
        with _lock:
            if key in _sets and _sets[key][0] == marks:
                _sets.move_to_end(key)
                return _sets[key][1]
        found = function(*arguments)
        with _lock:
            _sets[key] = marks, found
            while len(_sets) > MOST:
                _sets.popitem(last=False)
        return found

    return wrapper  # type: ignore[return-value]


def forget_all() -> None:
    """Let go of every data set that this process keeps."""
    with _lock:
        _sets.clear()


def mark_data(data: Data) -> Marks:
    """The marks of all local files that a recipe's data names."""
    return file_marks([path for place in PLACES for _, path, _ in named_files(getattr(data, place))])


def digest(*parts: object) -> str:
    """A short name for everything that a file depends on; bytes and paths of files count by their content."""
    mark = hashlib.blake2b(digest_size=8)
    for part in parts:
        mark.update(part.read_bytes() if isinstance(part, Path) else f"/{part!r}".encode())
    return mark.hexdigest()


def file_marks(paths: list[Path]) -> Marks:
    """Place, size and date of files, by which a change of any of them is noticed without reading it."""
    return [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def load_or_make(folder: str, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of the file `name`.safetensors in a cache folder (the user's, if `folder` is empty), which `make`
    makes if it is not there. `name` must contain everything that they depend on, so a file never gets stale.

    Several processes may make the same file: each writes it whole, and the last one stays."""
    path = cache_folder(folder) / f"{name}.safetensors"
    if path.exists():
        try:
            return read_tensors(path, "it is made again")
        except ValueError as error:
            warnings.warn(f"in the cache, {error}", RuntimeWarning, 2)
    made = make()
    write_tensors(path, made)
    return made
