"""Images with captions, and with depth where there is some: tars and folders. Sample i can be read at any time.

Tars: NNN.webp (or .jpg, .png, .rgb.png) with NNN.json, {"captions": […]} or {"caption": "…"}, or NNN.txt, one caption
per line; NNN.depth.png beside it. A folder: images with captions.json, captions.csv, or a .txt beside each of them;
NAME.depth.png beside NAME.jpg. Depth is 16-bit; 0 and 65535 are holes. The metres per step are what the file itself
says (a text chunk "depth_step", see `io.pictures`), else "depth_step" of the sample's json, else `data.depth_step`.
"""

import csv
import io
import itertools
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io.files import read_json
from ..io.pictures import SUFFIXES, BadSample, decode_deep, decode_picture, read_depth_step
from ..io.problems import Problems
from .stream import read_shards
from .tars import picture_kind

if TYPE_CHECKING:
    from PIL.Image import Image

DEPTH = "depth.png"
_HOLE = 65535
_NEAR, _FAR = 0.05, 200.0  # metres: a median depth beyond these is a wrong unit, not a place
_ASPECT = 0.02
_FILE_NAMES = ("file", "file_name", "filename", "image", "filepath")


class CaptionSet(ABC):
    """Images with captions. Whatever is wrong with sample i raises BadSample, which names it. problems: what is wrong
    with the set as a whole, such as a damaged tar."""

    depth_step: float
    problems: Problems

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def name(self, i: int) -> str: ...

    @abstractmethod
    def files(self, i: int) -> Mapping[str, bytes]:
        """The files of a sample by kind ("jpg", "json", "depth.png", …), read now."""

    def captions(self, i: int) -> list[str]:
        """At least one sentence, none of them empty."""
        return captions_of(self.files(i), self.name(i))

    def picture(self, i: int) -> "Image":
        """The image as RGB, decoded."""
        return picture_of(self.files(i), self.name(i))

    def depth(self, i: int) -> Tensor:
        """Metres (H, W), 0 in holes."""
        return depth_of(self.files(i), self.name(i), self.depth_step)


class ShardCaptions(CaptionSet):
    """Captioned images in tars. limit: read so many samples at most, 0 for all. stream: shards may be addresses."""

    def __init__(self, pattern: str, depth_step: float = 0.001, limit: int = 0, *, stream: bool = False):
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
        return captions_of(texts, self.name(i))


class FolderCaptions(CaptionSet):
    """A folder of captioned images, with all folders in it."""

    def __init__(self, root: str, depth_step: float = 0.001):
        self.root, self.depth_step, self.problems = Path(root), depth_step, Problems("samples", root)
        found = sorted(p for p in self.root.rglob("*") if p.suffix.lower() in SUFFIXES)
        self.paths = [p for p in found if not p.name.lower().endswith((f".{DEPTH}", ".instance.png"))]
        if not self.paths:
            raise ValueError(f"{root} has no images: it needs {', '.join(SUFFIXES)} files with captions")
        self.listed = _read_captions(self.root)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, i: int) -> str:
        return str(self.paths[i])

    def files(self, i: int) -> Mapping[str, bytes]:
        path = self.paths[i]
        beside = {kind: path.with_name(f"{path.stem}.{kind}") for kind in ("txt", "json", DEPTH)}
        try:
            found = {path.suffix[1:].lower(): path.read_bytes()}
            found |= {kind: other.read_bytes() for kind, other in beside.items() if other.exists()}
        except OSError as error:
            raise BadSample(f"{path}: {error}") from error
        listed = self.listed.get(path.relative_to(self.root).as_posix()) or self.listed.get(path.name)
        if listed is not None:  # a list of all captions wins over files beside each image
            record = _record(found.get("json"), self.name(i))
            found["json"] = json.dumps(record | {"captions": listed}).encode()
        return found


def open_caption_set(source: str, where: str, depth_step: float = 0.001) -> CaptionSet:
    """The captioned images of a recipe's data.train or data.val."""
    return FolderCaptions(where, depth_step) if source == "folder" else ShardCaptions(where, depth_step)


def captions_of(files: Mapping[str, bytes], name: str) -> list[str]:
    """The captions of a sample, without empty ones."""
    if "json" in files:
        record = _record(files["json"], name)
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


def picture_of(files: Mapping[str, bytes], name: str) -> "Image":
    """The image of a sample as RGB."""
    return decode_picture(files[picture_kind(files, name)], name)


def depth_of(files: Mapping[str, bytes], name: str, step: float) -> Tensor:
    """The depth of a sample in metres (H, W), 0 in holes; refused if it is not 16-bit or its unit is wrong."""
    if DEPTH not in files:
        raise BadSample(f"{name}: it has no {DEPTH}, which a model with depth needs (`stringpe data depth` makes it)")
    steps = decode_deep(files[DEPTH], f"{name}: its depth")
    steps = torch.where(steps == _HOLE, 0, steps)
    own = depth_step_of(files, name)
    stated = step if own is None else own
    depth = steps.float() * stated
    seen = depth[steps > 0]
    if len(seen) and not _NEAR <= (middle := float(seen.median())) <= _FAR:
        raise BadSample(f"{name}: its median depth would be {middle:.3g} m: is a step {stated:g} m (data.depth_step)?")
    return depth


def depth_step_of(files: Mapping[str, bytes], name: str) -> float | None:
    """The metres per step of a sample's depth, as the file itself says or else the json beside it; None if neither."""
    record = _record(files.get("json"), name)
    try:
        stored = read_depth_step(files[DEPTH])
    except ValueError as error:
        raise BadSample(f"{name}: its depth_step cannot be used: {error}") from error
    step = record.get("depth_step") if stored is None else stored
    if step is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < math.inf:
        raise BadSample(f"{name}: its depth_step is {step!r}, not a length in metres")
    return float(step)


def check_aspect(depth: Tensor, picture: "Image", name: str) -> Tensor:
    """The depth, if it has the image's aspect, at whatever resolution; else BadSample."""
    height, width = depth.shape
    if abs(width * picture.height / (height * picture.width) - 1) > _ASPECT:
        size = f"{picture.width} × {picture.height}"
        raise BadSample(f"{name}: its depth is {width} × {height}, which is not the image's {size} at another scale")
    return depth


def _record(encoded: bytes | None, name: str) -> dict[str, Any]:
    if encoded is None:
        return {}
    try:
        record = json.loads(encoded)
    except (ValueError, RecursionError) as error:
        raise BadSample(f"{name}: its json cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise BadSample(f"{name}: its json is not an object with captions")
    return record


def _read_captions(root: Path) -> dict[str, list[str]]:
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
