"""Sets of images with captions, and with depth where there is some: tars, folders, and those that users register.

Tars: NNN.webp (or .jpg, .png, .rgb.png) with NNN.json, {"captions": […]} or {"caption": "…"}, or NNN.txt, one caption
per line; NNN.depth.png beside it. A folder: images with captions.json, captions.csv, or a .txt beside each of them;
NAME.depth.png beside NAME.jpg (`depth_files`).
"""

import csv
import io
import itertools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..io.files import read_bytes, read_json
from ..io.pictures import MILLIMETRE, SUFFIXES, BadSample, decode_picture
from ..io.problems import Problems
from .depth_files import DEPTH, check_aspect, read_depth, read_json_of
from .sources import FILES, READ, add_source
from .stream import read_shards
from .tars import picture_kind

if TYPE_CHECKING:
    from PIL.Image import Image

_FILE_NAMES = ("file", "file_name", "filename", "image", "filepath")


class CaptionSet(ABC):
    """Images with captions, sample by sample. Whatever is wrong with sample i raises BadSample, which names it."""

    @cached_property
    def problems(self) -> Problems:
        """What is wrong with the set as a whole, such as a damaged tar."""
        return Problems("samples")

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, i: int) -> str:
        """What sample i is called in warnings and errors."""

    @abstractmethod
    def captions(self, i: int) -> list[str]:
        """At least one sentence, none of them empty."""

    @abstractmethod
    def picture(self, i: int) -> "Image":
        """The image as RGB, decoded."""

    def depth(self, i: int) -> Tensor:
        """Metres (H, W), 0 in holes, in the image's aspect."""
        raise BadSample(f"{self.name(i)}: it has no depth, which a model with depth needs")

    def read(self, i: int, depth: bool) -> "tuple[Image, Tensor | None]":
        """The image, and its depth if asked for."""
        picture = self.picture(i)
        return picture, check_aspect(self.depth(i), picture, self.name(i)) if depth else None


class CaptionFiles(CaptionSet):
    """A set whose samples are files. depth_step: metres per step of a depth file that says nothing else."""

    depth_step: float

    @abstractmethod
    def files(self, i: int) -> Mapping[str, bytes]:
        """The files of a sample by kind ("jpg", "json", "depth.png", …), read now."""

    def captions(self, i: int) -> list[str]:
        return read_captions(self.files(i), self.name(i))

    def picture(self, i: int) -> "Image":
        return read_picture(self.files(i), self.name(i))

    def depth(self, i: int) -> Tensor:
        return read_depth(self.files(i), self.name(i), self.depth_step)

    def read(self, i: int, depth: bool) -> "tuple[Image, Tensor | None]":
        return read_picture_and_depth(self.files(i), self.name(i), self.depth_step if depth else None)


class ShardCaptions(CaptionFiles):
    """Captioned images in tars. limit: of samples that are read, 0 for all. stream: shards may be addresses."""

    def __init__(self, pattern: str, depth_step: float = MILLIMETRE, limit: int = 0, *, stream: bool = False):
        self.depth_step, self.problems = depth_step, Problems("samples", pattern)
        self.samples = list(itertools.islice(read_shards(pattern, self.problems, stream=stream), limit or None))

    def __len__(self) -> int:
        return len(self.samples)

    def name(self, i: int) -> str:
        return self.samples[i][0]

    def files(self, i: int) -> Mapping[str, bytes]:
        return {kind: member.read() for kind, member in self.samples[i][1].items()}

    def captions(self, i: int) -> list[str]:
        texts = {kind: member.read() for kind, member in self.samples[i][1].items() if kind in ("json", "txt")}
        return read_captions(texts, self.name(i))


class FolderCaptions(CaptionFiles):
    """A folder of captioned images, with all folders in it."""

    def __init__(self, root: str, depth_step: float = MILLIMETRE):
        self.root, self.depth_step, self.problems = Path(root), depth_step, Problems("samples", root)
        found = sorted(p for p in self.root.rglob("*") if p.suffix.lower() in SUFFIXES)
        self.paths = [p for p in found if not p.name.lower().endswith((f".{DEPTH}", ".instance.png"))]
        if not self.paths:
            raise ValueError(f"{root} has no images: it needs {', '.join(SUFFIXES)} files with captions")
        self.listed = _read_list(self.root)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, i: int) -> str:
        return str(self.paths[i])

    def files(self, i: int) -> Mapping[str, bytes]:
        path = self.paths[i]
        beside = {kind: path.with_name(f"{path.stem}.{kind}") for kind in ("txt", "json", DEPTH)}
        try:
            found = {path.suffix[1:].lower(): read_bytes(path)}
            found |= {kind: read_bytes(other) for kind, other in beside.items() if other.exists()}
        except OSError as error:
            raise BadSample(f"{path}: {error}") from error
        listed = self.listed.get(path.relative_to(self.root).as_posix()) or self.listed.get(path.name)
        if listed is not None:  # a list of all captions wins over files beside each image
            record = read_json_of(found, self.name(i))
            found["json"] = json.dumps(record | {"captions": listed}).encode()
        return found


_SETS: dict[str, Callable[[str, float], CaptionSet]] = {"shards": ShardCaptions, "folder": FolderCaptions}


def open_caption_set(source: str, where: str, depth_step: float = MILLIMETRE) -> CaptionSet:
    """The captioned images of a recipe's data.train or data.val."""
    return _SETS[source](where, depth_step)


def register_captions(source: str, make: Callable[[str], CaptionSet], about: str) -> None:
    """Let retrieval read `data.source=<source>`, in memory or by workers.

    make: from data.train, or data.val, to the images. about: what the source is, in a few words, for error texts.
    """
    add_source("retrieval", source, about, (*FILES, *READ))
    _SETS[source] = lambda where, depth_step: make(where)


def read_captions(files: Mapping[str, bytes], name: str) -> list[str]:
    """The captions of a sample, without empty ones."""
    if "json" in files:
        record = read_json_of(files, name)
        given = record.get("captions", record.get("caption", []))
    else:
        given = files.get("txt", b"").decode("utf-8", "replace").splitlines()
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise BadSample(f"{name}: captions must be a list of texts, got {str(given)[:60]}")
    kept = [text.strip() for text in given if text.strip()]
    if not kept:
        raise BadSample(f"{name}: it has no caption, or only empty ones")
    return kept


def read_picture(files: Mapping[str, bytes], name: str) -> "Image":
    """The image of a sample as RGB."""
    return decode_picture(files[picture_kind(files, name)], name)


def read_picture_and_depth(
    files: Mapping[str, bytes], name: str, depth_step: float | None
) -> "tuple[Image, Tensor | None]":
    """The image of a sample, and its depth unless `depth_step`, metres per step, is None."""
    picture = read_picture(files, name)
    if depth_step is None:
        return picture, None
    return picture, check_aspect(read_depth(files, name, depth_step), picture, name)


def _read_list(root: Path) -> dict[str, list[str]]:
    """Captions by file name, from captions.json, captions.csv or captions.txt in the folder."""
    for name in ("captions.json", "captions.csv", "captions.txt"):
        path = root / name
        if path.exists():
            return _from_json(read_json(path), path) if name.endswith("json") else _from_csv(path)
    return {}


def _from_json(value: Any, path: Path) -> dict[str, list[str]]:
    """{file: caption or captions}, rows of {"file": …, "caption(s)": …}, or COCO's {"images": …, "annotations": …}."""
    try:
        if isinstance(value, dict) and "annotations" in value:
            names = {image["id"]: image["file_name"] for image in value["images"]}
            rows = [(names[a["image_id"]], a["caption"]) for a in value["annotations"] if a["image_id"] in names]
        elif isinstance(value, dict):
            rows = list(value.items())
        else:
            rows = [(next(r[k] for k in _FILE_NAMES if k in r), r.get("captions", r.get("caption"))) for r in value]
    except (KeyError, TypeError, AttributeError, StopIteration) as error:
        raise ValueError(
            f"{path} must hold an object of captions by file name, a list of rows with file and captions, or COCO's "
            f"images and annotations ({type(error).__name__}: {error})"
        ) from None
    return _collect(rows, path)


def _from_csv(path: Path) -> dict[str, list[str]]:
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is not a table in UTF-8 ({error}): save it again") from None
    file = next((k for k in _FILE_NAMES if rows and k in rows[0]), None)
    if file is None or "caption" not in rows[0]:
        raise ValueError(f"{path} needs a first line with the columns file and caption")
    return _collect([(row[file], row["caption"]) for row in rows], path)


def _collect(rows: list[tuple[Any, Any]], path: Path) -> dict[str, list[str]]:
    """Rows as captions by file name; what is not a text there is refused with its row."""
    found: dict[str, list[str]] = {}
    for number, (name, caption) in enumerate(rows, 1):
        texts = [caption] if isinstance(caption, str) else caption
        if not isinstance(name, str) or not isinstance(texts, list) or not all(isinstance(t, str) for t in texts):
            raise ValueError(
                f"{path}: entry {number} is {str((name, caption))[:60]}, not a file name with a caption or a list of "
                f"captions"
            )
        found.setdefault(name, []).extend(texts)
    return found
