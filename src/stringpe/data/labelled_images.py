"""Sets of images with class numbers: tars, class folders, data sets of Hugging Face, and those that users register."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.files import read_bytes
from ..io.imports import import_optional
from ..io.pictures import SUFFIXES, BadSample, convert_picture, decode_picture
from ..io.problems import Problems
from .sources import FILES, READ, add_source
from .stream import read_shards
from .tars import Member, picture_kind

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageSet(ABC):
    """Images with class numbers. classes: their names, where the set has some."""

    classes: tuple[str, ...] = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def label(self, i: int) -> int: ...

    @abstractmethod
    def name(self, i: int) -> str: ...

    @abstractmethod
    def decode(self, i: int) -> "Image":
        """Image i as RGB; BadSample, which names it, if it cannot be decoded."""


class ShardSet(ImageSet):
    """Tars in the WebDataset layout: NNN.webp (or .jpg, .png, …) beside NNN.cls, or NNN.json with "label". limit: of
    usable samples that are read, 0 for all. stream: shards may be addresses."""

    def __init__(self, pattern: str, limit: int = 0, *, stream: bool = False):
        self.entries: list[tuple[str, int, Member]] = []
        problems = Problems("samples", pattern)
        count = 0
        for name, kinds in read_shards(pattern, problems, stream=stream):
            count += 1
            try:
                texts = {kind: member.read() for kind, member in kinds.items() if kind in ("cls", "json")}
                image = kinds[picture_kind(kinds, name)]
                self.entries.append((name, read_label(texts, name), image))
            except BadSample as error:
                problems.add(str(error))
            if len(self.entries) == limit > 0:
                break
        total = count if len(problems) <= count else None  # a damaged tar is a problem, and not a sample
        if not self.entries:
            raise ValueError(f"no sample of {pattern} can be used: {problems.describe(total)}")
        problems.warn(total)

    def __len__(self) -> int:
        return len(self.entries)

    def label(self, i: int) -> int:
        return self.entries[i][1]

    def name(self, i: int) -> str:
        return self.entries[i][0]

    def decode(self, i: int) -> "Image":
        return decode_picture(self.entries[i][2].read(), self.name(i))


class FolderSet(ImageSet):
    """A folder with one folder of images per class; classes are numbered in alphabetical order."""

    def __init__(self, root: str):
        folders = sorted(p for p in Path(root).glob("*") if p.is_dir())
        self.classes = tuple(folder.name for folder in folders)
        files = [(file, i) for i, folder in enumerate(folders) for file in sorted(folder.rglob("*"))]
        self.entries = [(file, i) for file, i in files if file.suffix.lower() in SUFFIXES]
        if not self.entries:
            raise ValueError(
                f"{root} has no images in class folders: it needs one folder per class, with "
                f"{', '.join(SUFFIXES)} files"
            )

    def __len__(self) -> int:
        return len(self.entries)

    def label(self, i: int) -> int:
        return self.entries[i][1]

    def name(self, i: int) -> str:
        return str(self.entries[i][0])

    def files(self, i: int) -> dict[str, bytes]:
        """Image i as the files of a sample in a tar: as it is, under its kind, and its class number as "cls"."""
        path, label = self.entries[i]
        try:
            return {path.suffix[1:].lower(): read_bytes(path), "cls": str(label).encode()}
        except OSError as error:
            raise BadSample(f"{path}: {error}") from error

    def decode(self, i: int) -> "Image":
        content, _ = self.files(i).values()
        return decode_picture(content, self.name(i))


class HuggingFaceSet(ImageSet):
    """A data set of the Hugging Face hub, "name:split", with columns image and label."""

    def __init__(self, where: str):
        datasets = import_optional("datasets", "data.source=huggingface", "datasets")
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

    def decode(self, i: int) -> "Image":
        return convert_picture(self.rows[i]["image"], self.name(i))


_SETS: dict[str, Callable[[str], ImageSet]] = {
    "shards": ShardSet,
    "folder": FolderSet,
    "huggingface": HuggingFaceSet,
}


def open_image_set(source: str, where: str) -> ImageSet:
    """The images of a recipe's data.train or data.val."""
    return _SETS[source](where)


def register_images(source: str, make: Callable[[str], ImageSet], about: str) -> None:
    """Let classification read `data.source=<source>`, in memory or by workers.

    make: from data.train, or data.val, to the images. about: what the source is, in a few words, for error texts.
    """
    add_source("classification", source, about, ("num_classes", *FILES, *READ))
    _SETS[source] = make


def read_label(files: Mapping[str, bytes], name: str) -> int:
    """The class number of a sample, from its .cls file or from "label" in its .json file."""
    try:
        if "cls" in files:
            label = int(files["cls"])
        elif "json" in files:
            label = json.loads(files["json"])["label"]
        else:
            raise BadSample(f"{name}: it has neither a .cls nor a .json file, and classification needs one")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadSample(f"{name}: its label cannot be read ({type(error).__name__}: {error})") from error
    if type(label) is not int or label < 0:
        raise BadSample(f"{name}: its label is {label!r}, not a number of a class")
    return label
