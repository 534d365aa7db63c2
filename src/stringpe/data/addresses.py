"""What a pattern of shards names: local files, web addresses and shell commands; and how each of them is opened.

name_shards("web-{000..127}.tar, more/*.tar, https://host/x.tar")     # commas, braces and * as in a shell
with open_shard(name) as file: …                                      # once, from its beginning to its end
"""

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

PIPES = "STRINGPE_ALLOW_PIPES"
"""The environment variable that allows shell commands as shards."""

TIMEOUT = 60.0
"""Seconds without a byte after which a download or a command has failed."""


def is_web_address(name: str) -> bool:
    """Whether a shard is downloaded."""
    return name.startswith(("http:", "https:"))


def is_command(name: str) -> bool:
    """Whether a shard is what a shell command prints."""
    return name.startswith("pipe:")


def is_local(name: str) -> bool:
    """Whether a shard is a file of this machine."""
    return not (is_web_address(name) or is_command(name))


def name_shards(pattern: str) -> list[str]:
    """The shards that a pattern names: commas between several, * as in a shell, {000..127} as in WebDataset. Addresses
    (http:, https:) and, where they are allowed, commands (pipe:) are kept as they are."""
    if is_command(pattern):
        return _expand_braces(pattern)
    names = []
    for part in filter(None, (part.strip() for part in pattern.split(","))):
        braces = _expand_braces(part)
        plain = len(braces) == 1 and is_local(part)
        names += (sorted(glob(part)) or braces) if plain else braces
    return names


def find_shards(pattern: str) -> list[Path]:
    """The files that a pattern names; ValueError if one of them is missing."""
    names = name_shards(pattern)
    remote = [name for name in names if not is_local(name)]
    if remote:
        raise ValueError(f"{remote[0]} is not a file: only data.train of data.source=stream may be an address")
    missing = [name for name in names if not Path(name).is_file()]
    if missing or not names:
        raise ValueError(f"shards not found: {', '.join(missing[:3]) or pattern}. Check data.train and data.val")
    return [Path(name) for name in names]


def find_stream_shards(pattern: str) -> list[str]:
    """The shards of a stream; ValueError if one is a missing file, or a command that is not allowed."""
    names = name_shards(pattern)
    for name in names:
        if is_command(name):
            refuse_pipe(name)
        elif is_local(name) and not Path(name).is_file():
            raise ValueError(f"the shard {name} was not found: check data.train")
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
    if is_command(name):
        refuse_pipe(name)
        command = name.removeprefix("pipe:")
        with _run_command(command) as output:
            yield output
    elif is_web_address(name):
        with urllib.request.urlopen(name, timeout=TIMEOUT) as response:
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
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        raise OSError(f"the command {shlex.quote(command)} did not end within {TIMEOUT:g} s") from None
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
        if not select.select([self._descriptor], [], [], TIMEOUT)[0]:
            raise OSError(f"the command {shlex.quote(self._command)} printed nothing for {TIMEOUT:g} s")
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
