"""Sets of labelled images: tar shards, folders, Hugging Face datasets. Example i can be read at any time."""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .shards import Member, expand, samples

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURES = (".webp", ".jpg", ".jpeg", ".png", ".ppm", ".bmp")


class CorruptImage(Exception):
    """An image that cannot be decoded; the text says which and why."""


class ImageSet(ABC):
    """Images with class indices."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def label(self, i: int) -> int: ...

    @abstractmethod
    def name(self, i: int) -> str: ...

    @abstractmethod
    def open(self, i: int) -> "Image":
        """The image, not yet decoded."""

    def decode(self, i: int) -> "Image":
        """The image as RGB, decoded; raises CorruptImage."""
        try:
            return self.open(i).convert("RGB")
        except (OSError, SyntaxError, ValueError, EOFError) as error:  # what Pillow's plugins raise on bad bytes
            raise CorruptImage(f"{self.name(i)}: {error}") from error


@dataclass(frozen=True)
class _Entry:
    """One sample of a shard."""

    key: str
    label: int
    picture: Member


class ShardSet(ImageSet):
    """WebDataset shards: NNN.webp (or .jpg, .png) beside NNN.cls, or NNN.json with "label".

    A plain tar is read at random places; a compressed one cannot be, and its pictures are kept in memory, encoded.
    """

    def __init__(self, pattern: str):
        self.entries = [entry for path in expand(pattern) for entry in _entries(path)]

    def __len__(self) -> int:
        return len(self.entries)

    def label(self, i: int) -> int:
        return self.entries[i].label

    def name(self, i: int) -> str:
        return f"{self.entries[i].picture.shard.name}/{self.entries[i].key}"

    def open(self, i: int) -> "Image":
        from PIL import Image

        return Image.open(io.BytesIO(self.entries[i].picture.read()))


class FolderSet(ImageSet):
    """A directory with one directory of images a class; classes are numbered in alphabetical order."""

    def __init__(self, root: str):
        classes = sorted(p for p in Path(root).glob("*") if p.is_dir())
        files = [(file, i) for i, c in enumerate(classes) for file in sorted(c.rglob("*"))]
        self.files = [(file, i) for file, i in files if file.suffix.lower() in PICTURES]
        if not self.files:
            raise ValueError(f"{root} has no images: it needs one directory a class, with {', '.join(PICTURES)} files")

    def __len__(self) -> int:
        return len(self.files)

    def label(self, i: int) -> int:
        return self.files[i][1]

    def name(self, i: int) -> str:
        return str(self.files[i][0])

    def open(self, i: int) -> "Image":
        from PIL import Image

        return Image.open(self.files[i][0])


class HuggingFaceSet(ImageSet):
    """A dataset of the Hugging Face hub, "name:split", with columns image and label."""

    def __init__(self, where: str):
        try:
            import datasets  # type: ignore[import-not-found]
        except ImportError:
            raise ValueError("data.source=huggingface needs the package datasets: pip install datasets") from None
        name, _, split = where.partition(":")
        self.where = where
        self.rows: Any = datasets.load_dataset(name, split=split or "train")
        self.labels: list[int] = list(self.rows["label"])

    def __len__(self) -> int:
        return len(self.labels)

    def label(self, i: int) -> int:
        return int(self.labels[i])

    def name(self, i: int) -> str:
        return f"{self.where}/{i}"

    def open(self, i: int) -> "Image":
        image: Image = self.rows[i]["image"]
        return image


_SOURCES: dict[str, type[ImageSet]] = {"shards": ShardSet, "folder": FolderSet, "huggingface": HuggingFaceSet}


def image_set(source: str, where: str) -> ImageSet:
    """The images of a recipe's data.train or data.val."""
    if not where:
        raise ValueError(f"data.source={source} needs data.train=… and data.val=…, got none: say where the images are")
    return _SOURCES[source](where)  # type: ignore[call-arg]


def label_of(cls: bytes | None, record: bytes | None, key: str) -> int:
    """The class index of a sample, from its .cls file or the "label" of its .json file."""
    if cls is not None:
        return int(cls)
    if record is not None:
        return int(json.loads(record)["label"])
    raise ValueError(f"sample {key} has neither a .cls nor a .json file: classification needs one")


def _entries(path: Path) -> Iterator[_Entry]:
    for key, kinds in samples(path).items():
        picture = next((member for kind, member in kinds.items() if f".{kind.lower()}" in PICTURES), None)
        if picture is not None:
            texts = {kind: kinds[kind].read() for kind in ("cls", "json") if kind in kinds}
            yield _Entry(key, label_of(texts.get("cls"), texts.get("json"), key), picture)
