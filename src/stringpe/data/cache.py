"""What is kept of data sets: the last few in the memory of a process, and files in a cache folder on disk."""

import functools
import hashlib
import re
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from glob import glob
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from ..io.files import cache_folder, write_tensors
from ..recipes.schema import Data

MOST = 8
"""Data sets (a split each) that a process keeps: the most recently used ones, whatever they are."""

PLACES = ("train", "val", "train_boxes", "val_boxes")
"""The settings of `Data` that name files or folders."""

_sets: "OrderedDict[Hashable, Any]" = OrderedDict()
_marks: dict[str, list[tuple[str, int, int]]] = {}  # of the files that a setting names, when it was last looked at
_lock = threading.RLock()

Function = TypeVar("Function", bound=Callable[..., Any])


def remember(function: Function) -> Function:
    """Decorate a function that loads a data set: called again with equal arguments, it returns what it returned, as
    long as that is among the `MOST` sets used last. All decorated functions share this one cache."""

    @functools.wraps(function)
    def wrapper(*arguments: Hashable) -> Any:
        key = (function.__module__, function.__qualname__, arguments)
        with _lock:
            if key in _sets:
                _sets.move_to_end(key)
                return _sets[key]
        found = function(*arguments)
        with _lock:
            _sets[key] = found
            while len(_sets) > MOST:
                _sets.popitem(last=False)
        return found

    return wrapper  # type: ignore[return-value]


def forget_all() -> None:
    """Let go of every data set that this process keeps."""
    with _lock:
        _sets.clear()


def forget_changed(data: Data) -> None:
    """Let go of every data set that this process keeps if a file that `data` names has changed since this was last
    called for it: what is read next is what lies there now."""
    for where in {getattr(data, name) for name in PLACES}:
        marks = file_marks([path for _, path, _ in named_files(where)])
        with _lock:
            if _marks.setdefault(where, marks) != marks:
                _marks[where] = marks
                _sets.clear()


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


def digest(*parts: object) -> str:
    """A short name for everything that a file depends on; bytes and paths of files count by their content."""
    mark = hashlib.blake2b(digest_size=8)
    for part in parts:
        mark.update(part.read_bytes() if isinstance(part, Path) else f"/{part!r}".encode())
    return mark.hexdigest()


def file_marks(paths: list[Path]) -> list[tuple[str, int, int]]:
    """Place, size and date of files, by which a change of any of them is noticed without reading it."""
    return [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def load_or_make(folder: str, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """The tensors of the file `name`.safetensors in a cache folder (the user's, if `folder` is empty), which `make`
    makes if it is not there. `name` must contain everything that they depend on, so a file never gets stale.

    Several processes may make the same file: each writes it whole, and the last one stays."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = cache_folder(folder) / f"{name}.safetensors"
    if path.exists():
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            warnings.warn(f"the cache file {path} is damaged ({error}) and is made again", RuntimeWarning, 2)
    made = make()
    write_tensors(path, made)
    return made
