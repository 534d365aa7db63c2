"""Pictures by file name, wherever they lie: in a folder, in tar shards or in a zip file."""

import io
import tarfile
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from .labelled import CorruptImage
from .shards import Member, expand

if TYPE_CHECKING:
    from PIL.Image import Image


class PictureFiles:
    """where: a folder, a .zip, or tars as in WebDataset (commas, * and {000..127}). A name that is not there as it
    stands is looked for by its last part, so that "train2017/7.jpg" is found in a folder of that one split."""

    def __init__(self, where: str):
        if not where:
            raise ValueError("detection needs data.train=… and data.val=…, a folder, tars or a zip of pictures")
        self.where = where
        self.folder = Path(where) if Path(where).is_dir() else None
        self.zip = where if where.endswith(".zip") else None
        self.members: dict[str, Member] = {}
        names: list[str] = []
        if self.zip is not None:
            names = _zip_names(self.zip)
        elif self.folder is None:
            self.members = {name: member for path in expand(where) for name, member in _tar_members(path).items()}
            names = list(self.members)
        self.names = {PurePosixPath(name).name: name for name in names} | {name: name for name in names}

    def decode(self, name: str) -> "Image":
        """The picture as RGB; raises CorruptImage where there is none, or none that can be decoded."""
        from PIL import Image

        try:
            return Image.open(io.BytesIO(self.read(name))).convert("RGB")
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise CorruptImage(f"{self.where}/{name}: {error}") from error

    def read(self, name: str) -> bytes:
        """The file's bytes; raises CorruptImage where there is none."""
        try:
            return self._read(name)
        except (OSError, KeyError, zipfile.BadZipFile) as error:
            text = "there is no such file" if isinstance(error, KeyError | FileNotFoundError) else error
            raise CorruptImage(f"{self.where}/{name}: {text}") from error

    def _read(self, name: str) -> bytes:
        if self.folder is not None:
            whole, last = self.folder / name, self.folder / PurePosixPath(name).name
            return (whole if whole.exists() else last).read_bytes()
        found = self.names.get(name) or self.names[PurePosixPath(name).name]
        if self.zip is not None:
            with zipfile.ZipFile(self.zip) as file:  # opened anew, so that threads and processes do not share it
                return file.read(found)
        return self.members[found].read()


def _zip_names(path: str) -> list[str]:
    try:
        with zipfile.ZipFile(path) as file:
            return [name for name in file.namelist() if not name.endswith("/")]
    except (OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no zip file that can be read: {error}") from error


def _tar_members(path: Path) -> dict[str, Member]:
    """Files of a tar by name; of a compressed one with their bytes."""
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                file = tar.extractfile(member) if path.suffix != ".tar" else None
                content = file.read() if file is not None else None
                found[member.name] = Member(path, member.offset_data, member.size, content)
    return found
