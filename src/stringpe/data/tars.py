"""Tars of samples: read whole, as a stream or by offset; indexed; written.

A tar is read as WebDataset lays it out: files whose names agree up to the first dot of their last part are one sample.
"set.b/008.rgb.png" is the kind "rgb.png" of the sample "set.b/008". What cannot be read is counted and named.

`stringpe data index` writes NAME.idx beside NAME.tar, in the format of NVIDIA DALI's wds2idx: a first line
"v1.2 COUNT", then a line per sample with "KIND OFFSET SIZE NAME" for each of its files. With it, any sample can be read
without what comes before it. A tar in a local file needs no index: its headers are read instead, 512 bytes per file. A
tar behind an address needs one, at the same address, and a server that answers requests for parts of a file. What is
compressed, or comes from a command, has no offsets.
"""

import io
import lzma
import struct
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from ..io.files import MAX_BYTES, new_file, write_text
from ..io.pictures import SUFFIXES, BadSample
from ..io.problems import Problems
from .addresses import TIMEOUT, is_command, is_local, is_web_address

TEXTS = ("cls", "txt", "json")
"""Kinds of files that are read when a tar is opened: they are small, and needed before the pictures."""

DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error, ValueError)
"""What reading a damaged tar raises."""

VERSION = "v1.2"
_GAP = 1 << 16  # bytes that are read and thrown away rather than requested again
_BLOCK = tarfile.BLOCKSIZE
_LONGEST_NAME = 100  # of what a header holds in one piece
_REMEDY = "make it again with stringpe data index"


@dataclass(frozen=True)
class Member:
    """One file of a tar: where it lies, or its bytes."""

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


class _StrictInfo(tarfile.TarInfo):
    """A header that tells damage from the end: tarfile takes a missing or damaged header for the end of the tar."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_StrictInfo":
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}" if len(buf) == tarfile.BLOCKSIZE else "its end is missing") from None


Sample = dict[str, Member]
"""The files of a sample by kind."""


def split_name(path: str) -> tuple[str, str]:
    """Key and kind of a file in a tar: ("set.b/008", "rgb.png") of "./set.b/008.rgb.png"; the kind of a hidden file,
    whose name begins with a dot, is empty."""
    folder, slash, name = path.removeprefix("./").rpartition("/")
    key, _, kind = name.partition(".")
    return folder + slash + key, kind if key else ""


def read_samples(path: Path, problems: Problems) -> dict[str, Sample]:
    """The samples of a tar by key.

    Texts are read at once; the rest of a plain tar is read when it is wanted. A compressed tar cannot be read at any
    place, so all of it is kept in memory, encoded. Of a damaged tar, the files before the damage are used."""
    found: dict[str, Sample] = {}
    for name, member in read_members(path, problems, texts=True):
        key, kind = split_name(name)
        if kind in found.setdefault(key, {}):
            problems.add(f"{path.name}/{name}: it occurs twice, and the first one is used")
        elif kind:
            found[key][kind] = member
    return {key: kinds for key, kinds in found.items() if kinds}


def read_members(path: Path, problems: Problems, *, texts: bool = False) -> Iterator[tuple[str, Member]]:
    """Name and place of every file of a tar, with its bytes if the tar is compressed or, with `texts`, the file is a
    text. Damage ends the tar early, as one problem; a file that the tar's end cuts short is left out."""
    compressed = is_compressed(path)
    size, count = path.stat().st_size, 0
    try:
        with tarfile.open(path, "r:*" if compressed else "r:", tarinfo=_StrictInfo) as tar:
            for entry in tar:
                if not entry.isfile():
                    continue
                if entry.size > MAX_BYTES:
                    problems.add(f"{path.name}/{entry.name}: {entry.size} bytes are more than {MAX_BYTES}")
                    continue
                if not compressed and entry.offset_data + entry.size > size:
                    raise tarfile.ReadError(f"{entry.name} is cut short")
                read = compressed or (texts and split_name(entry.name)[1] in TEXTS)
                file = tar.extractfile(entry) if read else None
                yield entry.name, Member(path, entry.offset_data, entry.size, None if file is None else file.read())
                count += 1
    except DAMAGE as error:
        problems.add(f"{path} is damaged ({error}): only the {count} files before the damage are used")


def stream_samples(file: IO[bytes]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Key and contents of the samples of a tar that is read once from its beginning to its end, such as one that comes
    over a network. Files of a sample must follow one another. Damage raises one of `DAMAGE`."""
    current, kinds = "", dict[str, bytes]()
    with tarfile.open(fileobj=file, mode="r|*", tarinfo=_StrictInfo) as tar:
        for entry in tar:
            key, kind = split_name(entry.name)
            if not entry.isfile() or not kind or entry.size > MAX_BYTES:
                continue
            if key != current and kinds:
                yield current, kinds
                kinds = {}
            content = tar.extractfile(entry)
            assert content is not None
            current = key
            kinds.setdefault(kind, content.read())
        if kinds:
            yield current, kinds


def write_samples(path: Path, samples: Iterable[tuple[str, Mapping[str, bytes]]]) -> None:
    """Write a plain tar of samples, key and files by kind, which is there whole or not at all. Times are 0: the same
    samples give the same bytes."""
    with new_file(path) as draft, tarfile.open(draft, "w") as tar:
        for key, files in samples:
            for kind, content in files.items():
                entry = tarfile.TarInfo(f"{key}.{kind}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))


def is_compressed(path: Path) -> bool:
    """Whether the bytes are those of gzip, bzip2 or xz, whatever the name says."""
    with path.open("rb") as file:
        head = file.read(6)
    return head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"))


def picture_kind(kinds: Mapping[str, Any], name: str) -> str:
    """Which of a sample's files is its picture; BadSample if none is."""
    found = (kind for kind in kinds if f".{kind.lower().removeprefix('rgb.')}" in SUFFIXES)
    kind = next(found, None)
    if kind is None:
        listed = ", ".join(sorted(kinds)[:3])
        raise BadSample(
            f"{name}: it has no picture, only {listed} (the name of a file in a tar is split at its first dot)"
        )
    return kind


class StaleIndex(ValueError):
    """An index that does not describe its tar."""


@dataclass(frozen=True)
class Span:
    """A file of a sample: its kind ("jpg"), where its bytes begin in the tar, how many they are, and its name there."""

    kind: str
    offset: int
    size: int
    name: str


@dataclass(frozen=True)
class TarEntry:
    """A sample: its key and its files."""

    key: str
    files: tuple[Span, ...]


def index_path(shard: str) -> str:
    """The place of a shard's index: train-0001.idx of train-0001.tar."""
    return shard.removesuffix(".tar") + ".idx"


def scan(path: Path) -> list[TarEntry]:
    """The samples of a plain tar, from its headers. Of a damaged tar, those before the damage."""
    entries: list[TarEntry] = []
    for name, member in read_members(path, Problems("files", str(path))):
        key, kind = split_name(name)
        if not kind:
            continue
        span = Span(kind, member.offset, member.size, name)
        if entries and entries[-1].key == key:
            entries[-1] = TarEntry(key, (*entries[-1].files, span))
        else:
            entries.append(TarEntry(key, (span,)))
    return entries


def write_index(path: Path) -> Path:
    """Write the index of a tar beside it."""
    if is_compressed(path):
        raise ValueError(f"{path} is compressed, so nothing in it can be read by its offset: store it as a plain tar")
    entries = scan(path)
    spans = [span for entry in entries for span in entry.files]
    if odd := [span.name for span in spans if any(c.isspace() for c in span.name)]:
        raise ValueError(
            f"{path} holds a file with a space in its name, {odd[0]!r}, which an index cannot name: rename it, or do "
            f"without an index, the headers of a local tar will do"
        )
    lines = [" ".join(f"{s.kind} {s.offset} {s.size} {s.name}" for s in entry.files) for entry in entries]
    place = Path(index_path(str(path)))
    write_text(place, "\n".join([f"{VERSION} {len(entries)}", *lines]) + "\n")
    return place


def read_index(text: str, name: str) -> list[TarEntry]:
    """The samples that the text of an index names."""
    head, *lines = text.splitlines() or [""]
    count = _count(head, name)
    entries = []
    for line in lines:
        words = line.split()
        parts = list(zip(*(words[i::4] for i in range(4)), strict=False))
        try:
            spans = tuple(Span(kind, int(offset), int(size), path) for kind, offset, size, path in parts)
        except ValueError:
            spans = ()
        sound = all(0 <= s.size <= MAX_BYTES and s.offset >= _BLOCK and s.name.endswith(f".{s.kind}") for s in spans)
        if not spans or len(words) % 4 or not sound:
            raise StaleIndex(f"{name} has a line that is not that of an index, {line[:60]!r}: {_REMEDY}")
        entries.append(TarEntry(split_name(spans[0].name)[0], spans))
    if len(entries) != count:
        raise StaleIndex(f"{name} says that it names {count} samples, and names {len(entries)}: {_REMEDY}")
    return entries


def find_entries(shard: str) -> list[TarEntry] | None:
    """The samples of a shard, by its index or else by its headers; None if it cannot be read by offsets."""
    text = _read_text(shard, whole=True)
    if text is not None:
        return read_index(text, index_path(shard))
    return scan(Path(shard)) if _is_plain_file(shard) else None


def count_samples(shard: str) -> int | None:
    """How many samples a shard has; None if only reading all of it would tell."""
    text = _read_text(shard, whole=False)
    if text is not None:
        return _count(text.partition("\n")[0], index_path(shard))
    return len(scan(Path(shard))) if _is_plain_file(shard) else None


class ShardReader:
    """A shard, a file or an address, that is read by offsets. What is read in order is read in one go."""

    def __init__(self, shard: str):
        self.shard, self.position = shard, 0
        self._remote = is_web_address(shard)
        self._file: IO[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def read_sample(self, entry: TarEntry) -> dict[str, bytes]:
        """The files of a sample by kind; the first, where two have the same kind."""
        found: dict[str, bytes] = {}
        for span in entry.files:
            if span.kind not in found:
                found[span.kind] = self._read_file(span)
        return found

    def _read_file(self, span: Span) -> bytes:
        """The bytes of a file, if the header in front of them is its own: files of a tar often have the same size, so
        its name counts, too."""
        content = self.read(span.offset - _BLOCK, _BLOCK + span.size)
        if len(content) < _BLOCK + span.size:
            raise tarfile.ReadError(f"{span.name} is cut short")
        try:
            header = tarfile.TarInfo.frombuf(content[:_BLOCK], "utf-8", "surrogateescape")
            own = header.size == span.size and _names_fit(header.name, span.name)
        except tarfile.HeaderError:
            own = False
        if not own:
            raise StaleIndex(
                f"{index_path(self.shard)} does not describe {self.shard}, where {span.name} does not begin at byte "
                f"{span.offset}: {_REMEDY}"
            )
        return content[_BLOCK:]

    def read(self, offset: int, size: int) -> bytes:
        """So many bytes from an offset on."""
        if self._remote:
            self._go_to_remote(offset)
        else:
            if self._file is None:
                self._file = open(self.shard, "rb", buffering=0)  # noqa: SIM115, closed by __exit__
            self._file.seek(offset)
        assert self._file is not None
        content = _read_all(self._file, size)
        self.position = offset + len(content)
        return content

    def _go_to_remote(self, offset: int) -> None:
        if self._file is not None and not 0 <= offset - self.position <= _GAP:
            self._file.close()
            self._file = None
        if self._file is None:
            request = urllib.request.Request(self.shard, headers={"Range": f"bytes={offset}-"})
            response: Any = urllib.request.urlopen(request, timeout=TIMEOUT)
            self._file = response
            self.position = offset if response.status == 206 else 0  # a server may send all of it
        assert self._file is not None
        _read_all(self._file, offset - self.position)


def _names_fit(header: str, name: str) -> bool:
    """Whether a file's header and an index can name the same file. Headers hold short names of plain letters as they
    are; of others they may hold a part, or question marks, and tar writes them into an index with backslashes."""
    plain = header.isascii() and header.isprintable() and not {"?", "\\"} & {*header} and len(header) < _LONGEST_NAME
    return header == name or not plain


def _read_all(file: IO[bytes], size: int) -> bytes:
    """`size` bytes, or fewer at the end."""
    pieces = []
    while size > 0 and (piece := file.read(size)):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _count(head: str, name: str) -> int:
    version, _, count = head.partition(" ")
    if version != VERSION or not count.strip().isdigit():
        raise StaleIndex(f"{name} begins with {head[:40]!r} and not with '{VERSION} COUNT': {_REMEDY}")
    return int(count)


def _read_text(shard: str, *, whole: bool) -> str | None:
    """The text of a shard's index, or its first bytes, if there is one."""
    place, most = index_path(shard), -1 if whole else 64
    if is_command(shard) or not shard.endswith(".tar"):
        return None
    if is_local(shard):
        if not Path(place).is_file():
            return None
        with open(place, "rb") as file:
            return file.read(most).decode("utf-8", "replace")
    try:
        with urllib.request.urlopen(place, timeout=TIMEOUT) as response:
            content: bytes = response.read(None if whole else most)
            return content.decode("utf-8", "replace")
    except urllib.error.HTTPError as error:
        if error.code in (403, 404, 410):
            return None
        raise


def _is_plain_file(shard: str) -> bool:
    return is_local(shard) and not is_compressed(Path(shard))
