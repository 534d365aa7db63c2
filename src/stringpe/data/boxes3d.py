"""RGB-D images with oriented boxes, decoded once into memory: of the procedural world, or of an Omni3D file."""

from collections.abc import Sequence
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
from ..scenes import FAMILIES
from . import omni3d, one_object
from .cache import remember
from .depth_files import DEPTH, check_aspect, read_depth
from .images import PictureFiles
from .loader import read_all
from .order import Batch
from .scene_frames import FrameColumns, render_once, render_split
from .sources import check_source
from .transforms import to_unit

if TYPE_CHECKING:
    from PIL.Image import Image

MIN_SHARE, MIN_VISIBILITY = 0.0015, 0.25
"""An object of a scene is asked for if it covers this share of the image's pixels (24 of them at 128 px), and this
share of what it would cover if nothing stood in front of it."""

_CHUNKS = {"cpu": 64, "cuda": 512}  # frames rendered at a time


@dataclass(frozen=True)
class BoxSet:
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
def load_boxes3d(data: Data, split: str, depth: bool) -> BoxSet:
    """The split's images, with depth if asked for.

    omni3d: data.train_boxes is a file of Omni3D, data.train the folder, tars or zip of its images, and NAME.depth.png
    beside NAME.jpg the depth, 16-bit in steps of `data.depth_step`."""
    check_source("detection3d", data)
    if data.source == "scenes":
        return _from_scenes(render_once("boxes", data, split, _make, __file__))
    if data.source == "one_object":
        return _from_one(render_once("one-object", data, split, _make_one, one_object.__file__))
    where, path = (data.train, data.train_boxes) if split == "train" else (data.val, data.val_boxes)
    path = path or (str(Path(where).with_suffix(".json")) if where else "")
    if not Path(path).is_file():
        raise ValueError(
            f"data.source=omni3d needs data.{split}, the folder, tars or zip of the images, and data.{split}_boxes, an "
            f"Omni3D file (JSON), by default the one beside them; got {where!r}, and there is no file {path!r}"
        )
    return _from_omni3d(data, where, path, data.train_size if split == "train" else data.val_size, depth)


def _make(data: Data, split: str) -> FrameColumns:
    parts = [_columns(batch) for batch in render_split(data, split, _CHUNKS)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _make_one(data: Data, split: str) -> FrameColumns:
    parts = [_columns(batch) for batch in one_object.render_rooms(data, split)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _from_one(found: FrameColumns) -> BoxSet:
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
    return {
        "rgb": (batch.rgb[some] * 255).round().to(torch.uint8).cpu(),
        "depth": batch.depth[some].half().cpu(),  # 2 mm at 4 m
        "box": box[some].float().cpu(),
        "label": label[some].to(torch.int16).cpu(),
        "intrinsics": batch.intrinsics[some].float().cpu(),
        "group": batch.scenes.family[some].to(torch.int16).cpu(),
        "ids": batch.scenes.index[some].cpu(),
    }


def _from_scenes(found: FrameColumns) -> BoxSet:
    label = found["label"].long()
    most = int((label >= 0).sum(1).max())
    return BoxSet(
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


def _from_omni3d(data: Data, where: str, path: str, limit: int, depth: bool) -> BoxSet:
    """Every image on its padded square; images that cannot be used are left out, and one warning names everything."""
    found, files, size = omni3d.read(path), PictureFiles(where), data.image_size
    wanted = found.images[: limit or None]
    problems = Problems("images or annotations", path)
    problems.extend(found.problems)

    def read(i: int) -> tuple[Tensor, Tensor]:
        picture = wanted[i]
        try:
            image = files.decode(picture.path)
            if image.size != (picture.width, picture.height):
                stated = f"{picture.width} × {picture.height}"
                raise BadSample(f"it has {image.width} × {image.height} pixels, but the file says {stated}")
            far = _depth(files, picture, image, data) if depth else torch.zeros(size, size, dtype=torch.float16)
        except BadSample as error:
            raise BadSample(f"image {picture.id} ({picture.path}): {error}") from error
        return to_square(image, size), far

    decoded = read_all(len(wanted), read, problems)
    good = [(wanted[i], images) for i, images in decoded.items()]
    pictures = [p for p, _ in good]
    most = max(1, *(len(p.boxes) for p in pictures))
    scale = torch.tensor([data.image_size / max(p.width, p.height) for p in pictures])
    intrinsics = torch.stack([p.intrinsics for p in pictures]).float()
    intrinsics[:, :2] *= scale[:, None, None]
    return BoxSet(
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
        names=found.names,
        groups=("all",),
        label_ids=found.ids,
        problems=tuple(problems),
    )


def _depth(files: PictureFiles, picture: omni3d.Picture, image: "Image", data: Data) -> Tensor:
    """(size, size) metres on the padded square, 0 in holes and padding."""
    name = PurePosixPath(picture.path).with_suffix(f".{DEPTH}").as_posix()
    far = check_aspect(read_depth({DEPTH: files.read(name)}, name, data.depth_step), image, name)
    return depth_to_square(far, data.image_size).half()


def _pad(rows: Sequence[Tensor], most: int, value: float) -> Tensor:
    """Rows of different lengths (g, …) as one table (n, most, …)."""
    out = rows[0].new_full((len(rows), most, *rows[0].shape[1:]), value)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out
