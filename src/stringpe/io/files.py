"""Files and folders that are either complete or absent, folders that record what made them, and checked JSON files.

A writer fills a draft beside the file and renames it when it is complete. A draft carries the name of its writer, so
that two writers never share one, and the next writer removes the drafts of writers that no longer run.
"""

import fcntl
import hashlib
import json
import math
import os
import shutil
import socket
import stat
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


MAX_BYTES = 2**30
"""Largest file of a data set that is read whole."""

_HOST = "".join(c for c in socket.gethostname() if c.isalnum()) or "host"


@contextmanager
def new_file(path: Path, *, exclusive: bool = False) -> Iterator[Path]:
    """A path to write to, which becomes `path` in one step once its content has reached the disk. If the block raises,
    `path` stays as it was. exclusive: of several writers the first wins, and the others get FileExistsError."""
    if path.exists() and not path.is_file():  # a rename would put a file in the place of a device such as /dev/null
        raise OSError(f"{path} is there and is not an ordinary file: choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(path)
    draft = _draft(path)
    try:
        yield draft
        _sync(draft)
        if exclusive:
            os.link(draft, path)
        else:
            os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` in one rename once everything in it has reached the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale_drafts(path)
    draft = _draft(path)
    draft.mkdir()
    try:
        yield draft
        for folder, _, names in os.walk(draft):
            for name in [*names, "."]:
                _sync(os.path.join(folder, name))
        os.rename(draft, path)
        _sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file."""
    with new_file(path) as draft:
        draft.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, in UTF-8. Half of a surrogate pair, which a name from elsewhere can hold, is written as
    its number."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write a whole JSON file."""
    write_text(path, _as_json(value))


def write_tensors(path: Path, tensors: "dict[str, Tensor]", metadata: dict[str, str] | None = None) -> None:
    """Write a whole safetensors file."""
    from safetensors.torch import save_file

    with new_file(path) as draft:
        save_file(tensors, draft, metadata)


@contextmanager
def open_tensors(path: Path, advice: str = "restore it or remove it") -> Iterator[Any]:
    """A safetensors file, whose tensors are read when they are asked for: `file.keys()`, `file.get_tensor(name)`,
    `file.metadata()`. ValueError with its name if it is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            yield file
    except (SafetensorError, OSError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({str(error).splitlines()[0]}): {advice}") from None


def read_tensors(path: Path, advice: str = "restore it or remove it") -> "dict[str, Tensor]":
    """All tensors of a safetensors file, as in `open_tensors`."""
    with open_tensors(path, advice) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, it is not a dictionary


def find_not_finite(tensors: "Mapping[str, Tensor]") -> list[str]:
    """The names of tensors that hold NaN or infinity. Tensors on the meta device have no values to look at."""

    def is_finite(tensor: "Tensor") -> bool:
        if tensor.is_meta or not tensor.is_floating_point():
            return True
        wide = tensor.float() if tensor.element_size() == 1 else tensor  # torch does not look for NaN in 8 bits
        return bool(wide.isfinite().all())

    return [name for name, tensor in tensors.items() if not is_finite(tensor)]


def read_bytes(path: Path) -> bytes:
    """The content of an ordinary file. OSError for one that has no end, such as a pipe or a device, and for one of more
    than `MAX_BYTES`: the file may have come with a data set."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{path} is not an ordinary file")
    if found.st_size > MAX_BYTES:
        raise OSError(f"{path} has {found.st_size} bytes, more than the {MAX_BYTES} that are read")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """The value of a JSON file; ValueError with its name if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}): restore it or remove it") from None


def digest_file(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def claim_folder(folder: Path, settings: Mapping[str, Any], *, file: str, what: str) -> None:
    """Record in `folder`/`file` the settings that its content depends on, or refuse a folder begun with other ones. Of
    several processes that begin a folder at the same moment, the settings of one stand and the others are refused.

    what: what the folder holds, for the error: "data set", "set of demonstrations".
    """
    path, wanted = folder / file, json.loads(json.dumps(settings))
    if not path.exists():
        with suppress(FileExistsError), new_file(path, exclusive=True) as draft:
            draft.write_text(_as_json(wanted), encoding="utf-8")
    found = read_json(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path} does not hold settings: choose an empty folder")
    differing = [
        f"{name}={found.get(name)!r} there, {value!r} asked for"
        for name, value in wanted.items()
        if found.get(name) != value
    ]
    if differing:
        raise ValueError(
            f"{folder} holds another {what} ({'; '.join(differing)}): choose another folder, or repeat its settings"
        )


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Hold `path` as a lock while the block runs; if another process holds it, ValueError that names that process.

    The lock ends with the process that holds it, whatever ended that process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+", encoding="utf-8", opener=refuse_link) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise ValueError(f"{what} is in use by {holder}: wait for it to end, or choose another folder") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def refuse_link(path: str, flags: int) -> int:
    """An opener for `open`, to write into a folder that comes from elsewhere: OSError if the name is a symbolic link,
    which could lead to one of the user's own files."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def cache_folder(chosen: str = "") -> Path:
    """The folder for what can be made again: the one chosen, or the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(chosen) if chosen else Path(base).expanduser() / "stringpe"


def remove_stale_drafts(path: Path) -> None:
    """Remove drafts of `path` whose writers, on this machine, no longer run."""
    for draft in path.parent.glob(f".{path.name}.{_HOST}.*"):
        _remove_if_stale(draft)


def remove_all_stale_drafts(folder: Path) -> None:
    """`remove_stale_drafts` for everything in a folder, including what nobody writes again after its writer was
    killed."""
    for draft in folder.glob(f".*.{_HOST}.*"):
        _remove_if_stale(draft)


def remove_folder(path: Path) -> None:
    """Remove a folder: first its name, by a rename, then its files. If the process is killed in between, what is left
    is a stale draft."""
    draft = _draft(path)
    path.rename(draft)
    shutil.rmtree(draft)


def _remove_if_stale(draft: Path) -> None:
    number = draft.name.rpartition(f".{_HOST}.")[2].partition(".")[0]
    if number.isdigit() and not _is_running(int(number)):
        shutil.rmtree(draft, ignore_errors=True) if draft.is_dir() else draft.unlink(missing_ok=True)


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{uuid.uuid4().hex[:8]}")


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def find_mismatch(value: Any, shape: Any, where: str = "") -> str:
    """The first place where a value of a JSON file does not have a shape, in words; empty if it has.

        shape = {"step": int, "window": [float], "name": (str, None)}
        find_mismatch({"step": 3, "window": [0.1, "x"]}, shape)       # "window[1] is 'x', not a finite number"

    A type stands for itself: `int` and `float` exclude true and false, `float` takes whole numbers and excludes NaN and
    infinity. [shape] is a list of such values; {"key": shape} an object that has at least these keys; {str: shape} an
    object with any keys; a tuple of shapes is one of them; None is null; `object` is anything.
    """
    if isinstance(shape, tuple):
        wrong = [find_mismatch(value, each, where) for each in shape]
        return wrong[0] if all(wrong) else ""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _describe(value, "a list", where)
        parts = (find_mismatch(each, shape[0], f"{where}[{i}]") for i, each in enumerate(value))
        return next(filter(None, parts), "")
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return _describe(value, "an object", where)
        pairs = [(key, shape[str]) for key in value] if str in shape else list(shape.items())
        missing = [key for key, _ in pairs if key not in value]
        if missing:
            return f"{where or 'it'} has no {missing[0]!r}"
        parts = (find_mismatch(value[key], each, f"{where}.{key}" if where else str(key)) for key, each in pairs)
        return next(filter(None, parts), "")
    if shape is None or shape is object:
        return "" if shape is object or value is None else _describe(value, "null", where)
    return "" if _is_of(value, shape) else _describe(value, _NAMES[shape], where)


def read_record(path: Path, shape: Any, advice: str = "restore it or remove it") -> Any:
    """The value of a JSON file that must have a shape; ValueError that names the file and what does not fit."""
    value = read_json(path)
    wrong = find_mismatch(value, shape)
    if wrong:
        raise ValueError(f"{path} is damaged ({wrong}): {advice}")
    return value


def _is_of(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return type(value) is kind


def _describe(value: Any, wanted: str, where: str) -> str:
    return f"{where or 'it'} is {str(value)[:40]!r}, not {wanted}"
