"""Files in folders, tars and zips. What cannot be read is counted and named, and never passed over in silence.

A tar is read as WebDataset lays it out: files whose names agree up to the first dot of their last part are one sample.
"set.b/008.rgb.png" is the kind "rgb.png" of the sample "set.b/008".
"""

import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from ..io.files import new_file
from ..io.pictures import BadSample, decode_picture
from ..io.problems import Problems
from .sources import expand

if TYPE_CHECKING:
    from PIL.Image import Image

TEXTS = ("cls", "txt", "json")
"""Kinds of files that are read at once, because they are small and wanted first."""

MAX_BYTES = 2**30
"""Largest file in a tar: one that claims more is left out."""

DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError, struct.error, ValueError)
"""What reading a damaged tar raises."""


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
            problems.add(f"{path.name}/{name}: it is there twice, and the first one is used")
        elif kind:
            found[key][kind] = member
    return {key: kinds for key, kinds in found.items() if kinds}


def read_members(path: Path, problems: Problems, *, texts: bool = False) -> Iterator[tuple[str, Member]]:
    """Name and place of every file of a tar, with its bytes if the tar is compressed or (`texts`) the file is a text.
    Damage ends the tar early, as one problem; a file that the tar's end cuts short is left out."""
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


class PictureFiles:
    """Pictures by file name. where: a folder, a .zip, or tars (commas, * and {000..127}). A name that is not there as
    it stands is looked for by its last part, so "train2017/7.jpg" is found in a folder that holds only that split."""

    def __init__(self, where: str):
        if not where:
            raise ValueError("detection needs data.train=… and data.val=…, a folder, tars or a zip of pictures")
        self.where = where
        self.folder = Path(where) if Path(where).is_dir() else None
        self.zip = where if where.endswith(".zip") else None
        self.members: dict[str, Member] = {}
        names: Iterable[str] = ()
        if self.zip is not None:
            names = _zip_names(self.zip)
        elif self.folder is None:
            problems = Problems("files", where)
            for path in expand(where):
                self.members |= {name.removeprefix("./"): member for name, member in read_members(path, problems)}
            problems.warn()
            names = self.members
        names = list(names)
        self.names = {PurePosixPath(name).name: name for name in names} | {name: name for name in names}

    def decode(self, name: str) -> "Image":
        """The picture as RGB; BadSample if it is missing or cannot be decoded."""
        return decode_picture(self.read(name), f"{self.where}/{name}")

    def read(self, name: str) -> bytes:
        """The file's bytes; BadSample if there are none."""
        try:
            return self._read(name)
        except (KeyError, FileNotFoundError) as error:
            raise BadSample(f"{self.where}/{name}: there is no such file") from error
        except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
            raise BadSample(f"{self.where}/{name}: {error}") from error

    def _read(self, name: str) -> bytes:
        if self.folder is not None:
            whole, last = self.folder / name, self.folder / PurePosixPath(name).name
            return (whole if whole.exists() else last).read_bytes()
        found = self.names.get(name) or self.names[PurePosixPath(name).name]
        if self.zip is not None:
            with zipfile.ZipFile(self.zip) as file:  # opened anew, so that threads and processes do not share it
                if file.getinfo(found).file_size > MAX_BYTES:
                    raise OSError(f"it claims more than {MAX_BYTES} bytes")
                return file.read(found)
        return self.members[found].read()


def is_compressed(path: Path) -> bool:
    """Whether the bytes are those of gzip, bzip2 or xz, whatever the name says."""
    with path.open("rb") as file:
        head = file.read(6)
    return head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"))


def _zip_names(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return [name for name in file.namelist() if not name.endswith("/")]
    except (OSError, zipfile.BadZipFile, NotImplementedError) as error:
        raise ValueError(
            f"{path} is not a zip file that can be read ({error}): check data.train and data.val"
        ) from error
