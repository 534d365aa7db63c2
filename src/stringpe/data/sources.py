"""Where data comes from: which source serves which task, and the files and addresses that a pattern names."""

import io
import os
import re
import select
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import IO, Any, cast

from ..io.registry import suggest
from ..recipes.schema import Data

SOURCES: dict[str, str] = {
    "synthetic": "coloured spots, made in memory",
    "scenes": "frames of the procedural world, rendered once",
    "one_object": "frames of one object in an empty room, rendered once",
    "shards": "tars in the WebDataset layout",
    "folder": "a folder of images",
    "huggingface": "a data set of the Hugging Face hub",
    "stream": "tars read from end to end, over a network if need be",
    "coco": "pictures with a COCO or LVIS file",
    "omni3d": "pictures with an Omni3D file",
    "demos": "robot demonstrations, a data set's folder or a pack of it",
    "points": "random points in space, drawn anew in every step",
    "clouds": "point clouds with a class each, an .npz",
}
"""Every value of data.source, and what it is."""

_MADE = ("train_size", "val_size", "cache", "seed")
FILES = ("train", "val", "train_size", "val_size")
_BOXES = (*FILES, "train_boxes", "val_boxes")
READ = ("in_memory", "workers")

SERVES: dict[str, dict[str, tuple[str, ...]]] = {
    "classification": {
        "synthetic": ("num_classes", "train_size", "val_size", "seed"),
        "shards": ("num_classes", *FILES, *READ, "cache"),
        "folder": ("num_classes", *FILES, *READ),
        "huggingface": ("num_classes", *FILES, *READ),
        "stream": ("num_classes", *FILES, *READ),  # never kept decoded, in_memory or not
    },
    "objects": {"scenes": (*_MADE, "queries", "cameras")},
    "retrieval": {
        "scenes": _MADE,
        "shards": (*FILES, *READ, "depth_step"),
        "folder": (*FILES, *READ, "depth_step"),
        "stream": (*FILES, "workers", "depth_step"),
    },
    "detection2d": {"scenes": (*_MADE, "negatives"), "coco": (*_BOXES, *READ, "mix", "without", "negatives")},
    "detection3d": {
        "scenes": (*_MADE, "queries"),
        "one_object": (*_MADE, "queries"),
        "omni3d": (*_BOXES, "depth_step", "queries"),
    },
    "policy": {"demos": ("train", "val", "val_size", "cache", "seed")},
    "relations": {"points": ("train_size", "val_size", "seed")},
    "shapes": {"clouds": (*FILES, "cache", "seed", "num_classes", "groups", "group_size", "pose")},
}
"""The sources that serve a task, and what of `data` each of them reads, besides source and image_size."""

AUGMENTS: dict[str, tuple[str, ...]] = {
    "classification": ("crop", "flip", "colour", "randaugment", "magnitude", "mixup", "shift"),
    "objects": ("flip",),
    "retrieval": ("crop", "flip", "colour"),
    "detection2d": ("crop", "flip", "colour", "mosaic"),
    "detection3d": ("flip", "colour"),
    "policy": ("shift", "colour"),
    "relations": (),
    "shapes": ("turn", "stretch"),
}
"""What of `augment` a task reads."""

PIPES = "STRINGPE_ALLOW_PIPES"
"""The environment variable that allows shell commands as shards."""

_TIMEOUT = 60.0  # seconds without a byte after which a download or a command has failed
_SELF_MADE = ("synthetic", "scenes", "one_object", "points")
_BOTH_SPLITS = ("demos", "clouds")  # held-out episodes validate, and a file of clouds has a test set of its own


def add_source(task: str, source: str, about: str, reads: tuple[str, ...]) -> None:
    """Let a task of the package read `data.source=<source>`. about: what the source is, in a few words, for error
    texts; reads: the keys of `data` that it reads, besides source and image_size."""
    if source in SERVES[task]:
        raise ValueError(f"there is a data source named {source!r} already: take another name")
    SOURCES.setdefault(source, about)
    SERVES[task][source] = reads


def check_served(task: str, source: str) -> dict[str, tuple[str, ...]]:
    """The sources of the task, with the keys that each of them reads; ValueError if this one is not among them."""
    serves = SERVES[task]
    if source not in serves:
        listed = ", ".join(f"{name} ({SOURCES[name]})" for name in serves)
        hint = "" if source in SOURCES else suggest(source, serves)
        raise ValueError(f"data.source={source} does not serve the task {task}: {hint}It takes {listed}")
    return serves


def check_source(task: str, data: Data) -> None:
    """Refuse a data.source that does not serve the task, and a place that does not fit the source."""
    check_served(task, data.source)
    if data.source in _SELF_MADE:
        refuse_unread(task, data)
        return
    for split in ("train", "val"):
        where = getattr(data, split)
        if not where and not (split == "val" and data.source in _BOTH_SPLITS):
            raise ValueError(f"data.source={data.source} needs data.{split}=…, {SOURCES[data.source]}; it is empty")
        if data.source in ("shards", "stream") and Path(where).is_dir():
            raise ValueError(f"data.{split}={where} is a folder, not a tar: set data.source=folder, or name its tars")
        if data.source == "folder" and where and not Path(where).is_dir():
            raise ValueError(
                f"data.{split}={where} is not a folder: check the path, or set data.source=shards for tars"
            )


def refuse_unread(task: str, data: Data) -> None:
    """Refuse files that a source which makes its own data would not read, and say which source reads them."""
    given = next((f"data.{split}={getattr(data, split)}" for split in ("train", "val") if getattr(data, split)), "")
    if not given or data.source not in _SELF_MADE:
        return
    other = [name for name in SERVES.get(task, {}) if name not in _SELF_MADE]
    if other:
        guess = "folder" if "folder" in other and Path(data.train or data.val).is_dir() else " or ".join(other)
        use = f"set data.source={guess} to read it"
    else:
        use = f"leave it out, or take a recipe that reads files; the task {task} has none"
    raise ValueError(f"{given} is not read, because data.source={data.source} makes its own data: {use}")


def keys_read(task: str, data: Data) -> tuple[str, ...]:
    """The keys of a recipe that the task's data and augmentation read: "data.train", "augment.crop", …; ValueError if
    its source does not serve the task."""
    own = ("source", *check_served(task, data.source)[data.source])
    return (*(f"data.{key}" for key in own), *(f"augment.{key}" for key in AUGMENTS[task]))


def name_shards(pattern: str) -> list[str]:
    """The shards that a pattern names: commas between several, * as in a shell, {000..127} as in WebDataset. Addresses
    (http:, https:) and, where they are allowed, commands (pipe:) are kept as they are."""
    if pattern.startswith("pipe:"):
        return _expand_braces(pattern)
    names = []
    for part in filter(None, (part.strip() for part in pattern.split(","))):
        braces = _expand_braces(part)
        plain = len(braces) == 1 and not part.startswith(("http:", "https:", "pipe:"))
        names += (sorted(glob(part)) or braces) if plain else braces
    return names


def expand(pattern: str) -> list[Path]:
    """The files that a pattern names; ValueError if one of them is missing."""
    names = name_shards(pattern)
    remote = [name for name in names if name.startswith(("http:", "https:", "pipe:"))]
    if remote:
        raise ValueError(f"{remote[0]} is not a file: only data.train of data.source=stream may be an address")
    missing = [name for name in names if not Path(name).is_file()]
    if missing or not names:
        raise ValueError(
            f"there are no such shards: {', '.join(missing[:3]) or pattern}: check data.train and data.val"
        )
    return [Path(name) for name in names]


def check_stream(pattern: str) -> list[str]:
    """The shards of a stream; ValueError if one is a missing file, or a command that is not allowed."""
    names = name_shards(pattern)
    for name in names:
        if name.startswith("pipe:"):
            refuse_pipe(name)
        elif not name.startswith(("http:", "https:")) and not Path(name).is_file():
            raise ValueError(f"there is no shard {name}: check data.train")
    if not names:
        raise ValueError(f"data.train={pattern!r} names no shards")
    return names


def refuse_pipe(name: str) -> None:
    """Refuse to run a shell command that a recipe names, unless the user allowed it: a recipe may come from others."""
    if os.environ.get(PIPES) != "1":
        raise ValueError(
            f"data.train={name} would run a shell command, and a recipe is data, not a program: if the command is "
            f"yours, allow it with the environment variable {PIPES}=1"
        )


@contextmanager
def open_shard(name: str) -> Iterator[IO[bytes]]:
    """A shard of a stream, to be read once: a file, an address, or the output of an allowed command."""
    if name.startswith("pipe:"):
        refuse_pipe(name)
        command = name.removeprefix("pipe:")
        with _run_command(command) as output:
            yield output
    elif name.startswith(("http:", "https:")):
        with urllib.request.urlopen(name, timeout=_TIMEOUT) as response:
            yield response
    else:
        with open(name, "rb") as file:
            yield file


@contextmanager
def _run_command(command: str) -> Iterator[IO[bytes]]:
    """The output of a shell command; OSError if it fails or falls silent, and then it is ended with its children."""
    process = subprocess.Popen(command, shell=True, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        with io.BufferedReader(_Output(process.stdout.fileno(), command)) as output:
            yield cast(IO[bytes], output)
        process.stdout.close()
        process.wait(_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise OSError(f"the command {shlex.quote(command)} did not end within {_TIMEOUT:g} s") from None
    finally:
        process.stdout.close()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode not in (0, -13, 141):  # 13: nobody read its output to the end
        raise OSError(f"the command {shlex.quote(command)} ended with {process.returncode}")


class _Output(io.RawIOBase):
    """What a command prints; OSError if that is nothing for too long."""

    def __init__(self, descriptor: int, command: str):
        self._descriptor, self._command = descriptor, command

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill some of a buffer; 0 at the end."""
        if not select.select([self._descriptor], [], [], _TIMEOUT)[0]:
            raise OSError(f"the command {shlex.quote(self._command)} printed nothing for {_TIMEOUT:g} s")
        found = os.read(self._descriptor, len(buffer))
        buffer[: len(found)] = found
        return len(found)


def _expand_braces(pattern: str) -> list[str]:
    """{000..127} written out; the number of digits stays."""
    found = re.search(r"\{(\d+)\.\.(\d+)\}", pattern)
    if found is None:
        return [pattern]
    first, last = found[1], found[2]
    if int(last) < int(first):
        raise ValueError(f"{found[0]} in {pattern} counts down: write the smaller number first")
    head, tail = pattern[: found.start()], pattern[found.end() :]
    return [
        name for n in range(int(first), int(last) + 1) for name in _expand_braces(f"{head}{n:0{len(first)}d}{tail}")
    ]
