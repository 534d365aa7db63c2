"""Tar shards in the WebDataset layout, without the library: files NNN.webp, NNN.json, … with one key are one sample."""

import lzma
import tarfile
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path

_TEXTS = ("cls", "txt", "json")


@dataclass(frozen=True)
class Member:
    """One file of a shard: where it lies, or the bytes themselves."""

    shard: Path
    offset: int
    size: int
    content: bytes | None

    def read(self) -> bytes:
        if self.content is not None:
            return self.content
        with self.shard.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def samples(path: Path) -> dict[str, dict[str, Member]]:
    """The files of a shard by key and kind: NNN.depth.png is the kind "depth.png" of the key NNN.

    Texts are read at once; the rest of a plain tar is read when it is wanted. A compressed shard cannot be read at any
    place, and all of it is kept in memory, encoded. Of a damaged shard, what comes before the damage is used.
    """
    found: dict[str, dict[str, Member]] = {}
    try:
        with tarfile.open(path) as tar:
            for key, kind, member in _members(path, tar):
                found.setdefault(key, {})[kind] = member
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        text = f"the shard {path} is damaged ({error}): {len(found)} samples of it are used"
        warnings.warn(text, RuntimeWarning, 2)
    return found


def _members(path: Path, tar: tarfile.TarFile) -> Iterator[tuple[str, str, Member]]:
    compressed = path.suffix != ".tar"
    for member in tar:
        if member.isfile():
            key, _, kind = member.name.partition(".")
            file = tar.extractfile(member) if compressed or kind in _TEXTS else None
            content = None if file is None else file.read()
            yield key, kind, Member(path, member.offset_data, member.size, content)


def expand(pattern: str) -> list[Path]:
    """Files of a pattern: commas between several, * as in a shell, {000..127} as in WebDataset."""
    paths = []
    for part in pattern.split(","):
        head, brace, rest = part.partition("{")
        if brace:
            numbers, _, tail = rest.partition("}")
            first, _, last = numbers.partition("..")
            paths += [Path(f"{head}{n:0{len(first)}d}{tail}") for n in range(int(first), int(last) + 1)]
        else:
            paths += [Path(p) for p in sorted(glob(part))]
    missing = [str(p) for p in paths if not p.exists()]
    if missing or not paths:
        raise ValueError(f"no such shards: {', '.join(missing[:3]) or pattern}: check data.train and data.val")
    return paths
