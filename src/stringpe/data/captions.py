"""Images with captions, and depth where there is some: tar shards and folders. Sample i can be read at any time.

Shards: NNN.webp (or .jpg, .png, .rgb.png) with NNN.json, {"captions": […]} or {"caption": "…"}, or NNN.txt, a caption a
line; NNN.depth.png beside it. A folder: images with captions.json, captions.csv, or a .txt of the same name each;
NAME.depth.png beside NAME.jpg. Depth is 16-bit; 0 and 65535 are holes. The metres per step are what the file itself
says (a text chunk "depth_step", see `io.png`), else "depth_step" of the sample's json, else `data.depth_step`.
"""

import csv
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..io.png import read_depth_step
from .labelled import PICTURES, CorruptImage
from .shards import Member, expand, samples

if TYPE_CHECKING:
    from PIL.Image import Image

DEPTH = "depth.png"
_HOLE = 65535
_NEAR, _FAR = 0.05, 200.0  # metres: a median depth beyond these is a wrong unit, not a place
_ASPECT = 0.02
_FILE_NAMES = ("file", "file_name", "filename", "image", "filepath")


class CaptionSet(ABC):
    """Images with captions. Whatever is wrong with sample i raises CorruptImage, which names it."""

    depth_step: float

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
    """Captioned shards."""

    def __init__(self, pattern: str, depth_step: float = 0.001):
        self.depth_step = depth_step
        self.samples: list[tuple[str, dict[str, Member]]] = []
        for path in expand(pattern):
            for key, kinds in samples(path).items():
                if picture_kind(kinds) is not None:
                    self.samples.append((f"{path.name}/{key}", kinds))

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
    """A folder of captioned images, looked through with all folders in it."""

    def __init__(self, root: str, depth_step: float = 0.001):
        self.root, self.depth_step = Path(root), depth_step
        found = sorted(p for p in self.root.rglob("*") if p.suffix.lower() in PICTURES)
        self.paths = [p for p in found if not p.name.lower().endswith((f".{DEPTH}", ".instance.png"))]
        if not self.paths:
            raise ValueError(f"{root} has no images: it needs {', '.join(PICTURES)} files with captions")
        self.listed = _listed(self.root)

    def __len__(self) -> int:
        return len(self.paths)

    def name(self, i: int) -> str:
        return str(self.paths[i])

    def files(self, i: int) -> Mapping[str, bytes]:
        path = self.paths[i]
        beside = {kind: path.with_name(f"{path.stem}.{kind}") for kind in ("txt", "json", DEPTH)}
        found = {path.suffix[1:].lower(): path.read_bytes()}
        found |= {kind: other.read_bytes() for kind, other in beside.items() if other.exists()}
        listed = self.listed.get(path.relative_to(self.root).as_posix()) or self.listed.get(path.name)
        if listed is not None:  # a list of all captions wins over files beside each image
            record = _record(found.get("json"), self.name(i))
            found["json"] = json.dumps(record | {"captions": listed}).encode()
        return found


def caption_set(source: str, where: str, depth_step: float = 0.001) -> CaptionSet:
    """The captioned images of a recipe's data.train or data.val."""
    if source not in ("shards", "folder"):
        raise ValueError(f"captioned images come from data.source=shards, folder, scenes or stream, got {source!r}")
    if not where:
        raise ValueError(f"data.source={source} needs data.train=… and data.val=…, got none: say where the images are")
    return ShardCaptions(where, depth_step) if source == "shards" else FolderCaptions(where, depth_step)


def picture_kind(kinds: Mapping[str, Any]) -> str | None:
    """Which of a sample's files is the image."""
    found = (kind for kind in kinds if f".{kind.lower().removeprefix('rgb.')}" in PICTURES)
    return next(found, None)


def captions_of(files: Mapping[str, bytes], name: str) -> list[str]:
    """The captions of a sample, without empty ones."""
    if "json" in files:
        record = _record(files["json"], name)
        given = record.get("captions", record.get("caption", []))
    else:
        given = files.get("txt", b"").decode("utf-8", "replace").splitlines()
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise CorruptImage(f"{name}: captions must be a list of texts, got {str(given)[:60]}")
    kept = [text.strip() for text in given if text.strip()]
    if not kept:
        raise CorruptImage(f"{name}: it has no caption, or only empty ones")
    return kept


def picture_of(files: Mapping[str, bytes], name: str) -> "Image":
    """The image of a sample as RGB."""
    from PIL import Image, UnidentifiedImageError

    kind = picture_kind(files)
    if kind is None:
        raise CorruptImage(f"{name}: it has no image")
    try:
        return Image.open(io.BytesIO(files[kind])).convert("RGB")
    except UnidentifiedImageError as error:
        raise CorruptImage(f"{name}: not an image that Pillow knows") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise CorruptImage(f"{name}: {error}") from error


def depth_of(files: Mapping[str, bytes], name: str, step: float) -> Tensor:
    """The depth of a sample in metres (H, W), 0 in holes; refused where it is not 16-bit or its unit is wrong."""
    from PIL import Image

    if DEPTH not in files:
        raise CorruptImage(
            f"{name}: it has no {DEPTH}, which a model with depth needs (`stringpe data depth` makes it)"
        )
    try:
        image = Image.open(io.BytesIO(files[DEPTH]))
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise CorruptImage(f"{name}: its depth: {error}") from error
    if not image.mode.startswith("I"):
        raise CorruptImage(f"{name}: its depth is an image of mode {image.mode}, not 16-bit")
    flat = torch.frombuffer(bytearray(image.convert("I").tobytes()), dtype=torch.int32)
    steps = flat.view(image.height, image.width)
    steps = torch.where(steps == _HOLE, 0, steps)
    step = depth_step_of(files, name) or step
    depth = steps.float() * step
    seen = depth[steps > 0]
    if len(seen) and not _NEAR <= (middle := float(seen.median())) <= _FAR:
        raise CorruptImage(f"{name}: its median depth would be {middle:.3g} m: is a step {step:g} m (data.depth_step)?")
    return depth


def depth_step_of(files: Mapping[str, bytes], name: str) -> float | None:
    """The metres per step of a sample's depth, as the file itself says or else the json beside it; None if neither."""
    record = _record(files.get("json"), name)
    try:
        stored = read_depth_step(files[DEPTH])
        step = record.get("depth_step") if stored is None else stored
        return None if step is None else float(step)
    except (TypeError, ValueError) as error:
        raise CorruptImage(f"{name}: its depth_step cannot be used: {error}") from error


def fits(depth: Tensor, picture: "Image", name: str) -> Tensor:
    """The depth, if it has the shape of the image, at whatever resolution."""
    height, width = depth.shape
    if abs(width * picture.height / (height * picture.width) - 1) > _ASPECT:
        size = f"{picture.width} × {picture.height}"
        raise CorruptImage(f"{name}: its depth is {width} × {height}, which is no scaled {size}, the image's size")
    return depth


def _record(encoded: bytes | None, name: str) -> dict[str, Any]:
    if encoded is None:
        return {}
    try:
        record = json.loads(encoded)
    except ValueError as error:
        raise CorruptImage(f"{name}: its json cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise CorruptImage(f"{name}: its json is no object with captions")
    return record


def _listed(root: Path) -> dict[str, list[str]]:
    """Captions by file name, from captions.json, captions.csv or captions.txt in the folder."""
    for name in ("captions.json", "captions.csv", "captions.txt"):
        path = root / name
        if path.exists():
            text = path.read_text(encoding="utf-8")
            return _from_json(json.loads(text), path) if name.endswith("json") else _from_csv(text, path)
    return {}


def _from_json(value: Any, path: Path) -> dict[str, list[str]]:
    """{file: caption or captions}, rows of {"file": …, "caption(s)": …}, or COCO's {"images": …, "annotations": …}."""
    if isinstance(value, dict) and "annotations" in value:
        names = {image["id"]: image["file_name"] for image in value["images"]}
        rows = [(names.get(a["image_id"]), a.get("caption")) for a in value["annotations"]]
    elif isinstance(value, dict):
        rows = list(value.items())
    elif isinstance(value, list):
        rows = [(next((r[k] for k in _FILE_NAMES if k in r), None), r.get("captions", r.get("caption"))) for r in value]
    else:
        raise ValueError(f"{path} must hold an object of captions by file name, or a list of rows")
    return _collected(rows)


def _from_csv(text: str, path: Path) -> dict[str, list[str]]:
    rows = list(csv.DictReader(io.StringIO(text)))
    file = next((k for k in _FILE_NAMES if rows and k in rows[0]), None)
    if file is None or "caption" not in rows[0]:
        raise ValueError(f"{path} needs a first line with the columns file and caption")
    return _collected([(row[file], row["caption"]) for row in rows])


def _collected(rows: list[tuple[Any, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, caption in rows:
        if name is not None and caption is not None:
            found.setdefault(str(name), []).extend([caption] if isinstance(caption, str) else caption)
    return found
