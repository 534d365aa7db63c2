"""RGB-D images with oriented boxes, decoded once into memory: of the procedural world, of an Omni3D file, or of a
source that users register."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import scenes
from ..geometry.square import depth_to_square, to_square
from ..io.pictures import BadSample
from ..io.problems import Problems
from ..metrics.average_precision3d import ScoredBoxes
from ..recipes.schema import Data
from ..scenes import FAMILIES, one_object
from . import omni3d
from .cache import remember
from .depth_files import DEPTH, check_aspect, read_depth
from .images import PictureFiles
from .loader import read_all
from .omni3d import Omni3D
from .order import Batch
from .scene_frames import FrameColumns, join_columns, render_once, render_split, store_images
from .sources import FILES, add_source, check_source, split_limit, split_place
from .transforms import to_unit

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_SHARE, MIN_VISIBILITY = 0.0015, 0.25
"""An object of a scene is asked for if it covers this share of the image's pixels (24 of them at 128 px), and this
share of what it would cover if nothing stood in front of it."""


class BoxSet3D(ABC):
    """RGB-D images with oriented boxes, image by image. annotations: what is in each of them."""

    annotations: Omni3D

    @abstractmethod
    def decode(self, path: str) -> "Image":
        """The image with this `Picture.path` as RGB; BadSample if it cannot be decoded."""

    def depth(self, path: str) -> Tensor:
        """Its depth in metres (H, W), 0 in holes."""
        raise BadSample(f"{path}: it has no depth, which a model with depth needs")


class Omni3DFiles(BoxSet3D):
    """A file of Omni3D, and the folder, tars or zip of its images."""

    def __init__(self, where: str, file: str, depth_step: float):
        self.annotations, self.files, self.depth_step = omni3d.read(file), PictureFiles(where), depth_step

    def decode(self, path: str) -> "Image":
        return self.files.decode(path)

    def depth(self, path: str) -> Tensor:
        name = PurePosixPath(path).with_suffix(f".{DEPTH}").as_posix()
        return read_depth({DEPTH: self.files.read(name)}, name, self.depth_step)


_SETS: dict[str, Callable[[str], BoxSet3D]] = {}


def register_boxes3d(source: str, make: Callable[[str], BoxSet3D], about: str) -> None:
    """Let detection in 3D read `data.source=<source>`.

    make: from data.train, or data.val, to the images. about: what the source is, in a few words, for error texts.
    """
    add_source("detection3d", source, about, (*FILES, "queries"))
    _SETS[source] = make


@dataclass(frozen=True)
class BoxedFrames:
    """n images of S × S pixels with at most m objects each, and the names of the labels.

    rgb (n, 3, S, S) uint8; depth (n, S, S) float16 in metres, 0 where it is not known; box (n, m, 12) float32 in the
    camera frame; label (n, m), −1 where there is no object; ignore (n, m), objects that are there but are not counted;
    intrinsics (n, 3, 3) in pixels of S × S; width (n,), the number of columns that are picture and not padding; group
    (n,), the part of the set that an image belongs to, named in `groups`; ids, the images' own numbers; camera
    (n, 3, 3), intrinsics in pixels of the original images. problems: what was left out.
    """

    rgb: Tensor
    depth: Tensor
    box: Tensor
    label: Tensor
    ignore: Tensor
    intrinsics: Tensor
    width: Tensor
    group: Tensor
    ids: Tensor
    camera: Tensor
    names: tuple[str, ...]
    groups: tuple[str, ...]
    label_ids: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rgb)

    def columns(self) -> Batch:
        """What belongs to an image, for a loader."""
        return {name: getattr(self, name) for name in _PER_IMAGE}

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """image in [−1, 1], depth, box, label, ignore, intrinsics, width and group of the images at `index`, on a
        device."""
        rows = {name: column[index].to(device) for name, column in self.columns().items()}
        return {"image": to_unit(rows.pop("rgb")), **rows, "depth": rows["depth"].float()}

    def results(self, found: Sequence[ScoredBoxes], index: Tensor) -> list[dict[str, Any]]:
        """Detections in the images at `index` (the first of them, if there are fewer) as entries of an Omni3D file."""
        entries = []
        for one, i in zip(found, index.tolist(), strict=False):
            entries += omni3d.results(one, int(self.ids[i]), self.camera[i], self.label_ids)
        return entries


_PER_IMAGE = ("rgb", "depth", "box", "label", "ignore", "intrinsics", "width", "group")


@remember
def load_boxes3d(data: Data, split: str, depth: bool) -> BoxedFrames:
    """The split's images, with depth if asked for.

    omni3d: data.train_boxes is a file of Omni3D, data.train the folder, tars or zip of its images, and NAME.depth.png
    beside NAME.jpg the depth, 16-bit in steps of `data.depth_step`."""
    check_source("detection3d", data)
    if data.source == "scenes":
        return _from_scenes(render_once("boxes", data, split, _render, __file__))
    if data.source == "one_object":
        return _from_one_object(render_once("one-object", data, split, _render_one, __file__))
    where, limit = split_place(data, split), split_limit(data, split)
    if data.source != "omni3d":
        return _decode(_SETS[data.source](where), where, data.image_size, limit, depth)
    file = _find_annotations(data, split, where)
    return _decode(Omni3DFiles(where, file, data.depth_step), file, data.image_size, limit, depth)


def _find_annotations(data: Data, split: str, where: str) -> str:
    """The Omni3D file of a split: the one that the recipe names, or the one beside the images."""
    file = data.train_boxes if split == "train" else data.val_boxes
    file = file or (str(Path(where).with_suffix(".json")) if where else "")
    if not Path(file).is_file():
        raise ValueError(
            f"data.source=omni3d needs data.{split}, the folder, tars or zip of the images, and data.{split}_boxes, an "
            f"Omni3D file (JSON), by default the one beside them; got {where!r}, and there is no file {file!r}"
        )
    return file


def _render(data: Data, split: str) -> FrameColumns:
    return join_columns(map(_columns, render_split(data, split)))


def _render_one(data: Data, split: str) -> FrameColumns:
    def sample(world: int, numbers: range, device: torch.device) -> scenes.Scenes:
        return one_object.sample_one_object(world, torch.tensor(numbers)).to(device)

    return join_columns(map(_columns, render_split(data, split, sample)))


def _from_one_object(found: FrameColumns) -> BoxedFrames:
    """The same set with names for the kinds that there are, and no families."""
    kept, numbers = _from_scenes(found), [scenes.kinds().index(name) for name in one_object.KINDS]
    label = torch.full_like(kept.label, -1)
    for new, old in enumerate(numbers):
        label[kept.label == old] = new
    ids = tuple(range(len(numbers)))
    return replace(kept, label=label, names=one_object.KINDS, groups=("all",), label_ids=ids)


def _columns(batch: scenes.Frames) -> FrameColumns:
    """What detection in 3D needs of a batch of frames: those in which an object is seen, seen objects first."""
    enough = batch.pixels >= MIN_SHARE * batch.depth[0].numel()
    seen = enough & (batch.visibility >= MIN_VISIBILITY)
    order = (~seen).byte().argsort(dim=1, stable=True)
    box = batch.box3d.gather(1, order[..., None].expand(-1, -1, 12))
    label = batch.kind.masked_fill(~seen, -1).gather(1, order)
    some = seen.any(1)
    return store_images(batch, some) | {
        "box": box[some].float().cpu(),
        "label": label[some].to(torch.int16).cpu(),
        "intrinsics": batch.intrinsics[some].float().cpu(),
        "group": batch.scenes.family[some].to(torch.int16).cpu(),
        "ids": batch.scenes.index[some].cpu(),
    }


def _from_scenes(found: FrameColumns) -> BoxedFrames:
    label = found["label"].long()
    most = int((label >= 0).sum(1).max())
    return BoxedFrames(
        rgb=found["rgb"],
        depth=found["depth"],
        box=found["box"][:, :most],
        label=label[:, :most],
        ignore=torch.zeros_like(label[:, :most], dtype=torch.bool),
        intrinsics=found["intrinsics"],
        width=torch.full((len(label),), found["rgb"].shape[-1]),
        group=found["group"].long(),
        ids=found["ids"],
        camera=found["intrinsics"],
        names=scenes.kinds(),
        groups=FAMILIES,
        label_ids=tuple(range(len(scenes.kinds()))),
    )


def _decode(found: BoxSet3D, where: str, size: int, limit: int, depth: bool) -> BoxedFrames:
    """Every image on its padded square; images that cannot be used are left out, and one warning names everything."""
    annotations = found.annotations
    wanted = annotations.images[: limit or None]
    problems = Problems("images or annotations", where)
    problems.extend(annotations.problems)

    def read(i: int) -> tuple[Tensor, Tensor]:
        picture = wanted[i]
        try:
            image = found.decode(picture.path)
            if image.size != (picture.width, picture.height):
                stated = f"{picture.width} × {picture.height}"
                raise BadSample(f"it has {image.width} × {image.height} pixels, but its annotations say {stated}")
            if not depth:
                return to_square(image, size), torch.zeros(size, size, dtype=torch.float16)
            far = check_aspect(found.depth(picture.path), image, picture.path)
            return to_square(image, size), depth_to_square(far, size).half()
        except BadSample as error:
            raise BadSample(f"image {picture.id} ({picture.path}): {error}") from error

    decoded = read_all(len(wanted), read, problems)
    good = [(wanted[i], images) for i, images in decoded.items()]
    pictures = [p for p, _ in good]
    most = max(1, *(len(p.boxes) for p in pictures))
    scale = torch.tensor([size / max(p.width, p.height) for p in pictures])
    intrinsics = torch.stack([p.intrinsics for p in pictures]).float()
    intrinsics[:, :2] *= scale[:, None, None]
    return BoxedFrames(
        rgb=torch.stack([image for _, (image, _) in good]),
        depth=torch.stack([depth for _, (_, depth) in good]),
        box=_pad([p.boxes.float() for p in pictures], most, 0.0),
        label=_pad([p.labels for p in pictures], most, -1),
        ignore=_pad([p.ignore for p in pictures], most, False),
        intrinsics=intrinsics,
        width=torch.tensor([max(1, round(float(p.width * s))) for p, s in zip(pictures, scale, strict=True)]),
        group=torch.zeros(len(pictures), dtype=torch.long),
        ids=torch.tensor([p.id for p in pictures]),
        camera=torch.stack([p.intrinsics for p in pictures]).float(),
        names=annotations.names,
        groups=("all",),
        label_ids=annotations.ids,
        problems=tuple(problems),
    )


def _pad(rows: Sequence[Tensor], most: int, value: float) -> Tensor:
    """Rows of different lengths (g, …) as one table (n, most, …)."""
    out = rows[0].new_full((len(rows), most, *rows[0].shape[1:]), value)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out
