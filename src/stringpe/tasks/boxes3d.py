"""RGB-D images with oriented boxes, decoded once and kept in memory: of the procedural world, or of an Omni3D file."""

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import scenes
from ..scenes.world import FAMILIES
from ..training.recipe import Data
from ..training.task import Batch
from ..vision import omni3d
from ..vision.square import to_square
from .augment import to_unit
from .frames import Frames, kept, teller

MIN_SHARE, MIN_VISIBILITY = 0.0015, 0.25
"""An object of a scene is asked for if it covers this share of the image's pixels (24 of them at 128 px), and this
share of what it would cover if nothing stood before it."""

_CHUNK = 64
_NAMED = 3  # problems that a warning names


@dataclass(frozen=True)
class BoxSet:
    """n images of S × S pixels with at most m objects each, and the names that labels stand for.

    rgb (n, 3, S, S) uint8; depth (n, S, S) float16 in metres, 0 where it is not known; box (n, m, 12) float32 in the
    camera frame; label (n, m), −1 where there is no object; ignore (n, m), objects that are there but not counted;
    intrinsics (n, 3, 3) in pixels of S × S; group (n,), for numbers by part of the set, named in `groups`; ids, the
    images' own numbers. problems: what was left out.
    """

    rgb: Tensor
    depth: Tensor
    box: Tensor
    label: Tensor
    ignore: Tensor
    intrinsics: Tensor
    group: Tensor
    ids: Tensor
    names: tuple[str, ...]
    groups: tuple[str, ...]
    label_ids: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rgb)

    def to(self, device: torch.device) -> "BoxSet":
        """The set with its tensors on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in _PER_IMAGE})

    def rows(self, index: Tensor, device: torch.device) -> Batch:
        """rgb, depth (float), box, label, ignore, intrinsics and group of the images at `index`, on a device."""
        rows = {name: getattr(self, name)[index].to(device) for name in _PER_IMAGE}
        return {**rows, "depth": rows["depth"].float()}

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """The same with the image in [−1, 1]."""
        rows = self.rows(index, device)
        return {"image": to_unit(rows.pop("rgb")), **rows}


_PER_IMAGE = ("rgb", "depth", "box", "label", "ignore", "intrinsics", "group")


@lru_cache(maxsize=4)
def box_set(data: Data, split: str) -> BoxSet:
    """The split's images, kept for the next run in this process."""
    if data.source == "scenes":
        return _of_scenes(kept("boxes", data, split, _make, __file__))
    if data.source != "omni3d":
        raise ValueError(f"data.source for boxes in 3D is scenes or omni3d, got {data.source!r}")
    path = data.train if split == "train" else data.val
    if not path:
        raise ValueError(f"data.source=omni3d needs data.{split}, an Omni3D file (JSON), and data.images, their folder")
    limit = data.train_size if split == "train" else data.val_size
    return _of_omni3d(path, Path(data.images or Path(path).parent), data.depths, data.image_size, limit)


def _make(data: Data, split: str) -> Frames:
    count = data.train_size if split == "train" else data.val_size
    if count < 1:
        raise ValueError("data.source=scenes needs data.train_size and data.val_size, the numbers of frames to make")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = 2 * data.seed + (split == "val")  # no room is in both splits
    parts: list[Frames] = []
    tell = teller(count)
    for first in range(0, count, _CHUNK):
        numbers = range(first, min(first + _CHUNK, count))
        layouts = scenes.sample(world, numbers, device=device)
        parts.append(_boxed(scenes.render(layouts, (data.image_size, data.image_size))))
        tell(numbers.stop)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _boxed(rendered: scenes.Frames) -> Frames:
    """What detection in 3D needs of a batch, without the frames in which no object is seen; seen objects come first."""
    enough = rendered.pixels >= MIN_SHARE * rendered.depth[0].numel()
    seen = enough & (rendered.visibility >= MIN_VISIBILITY)
    order = (~seen).byte().argsort(dim=1, stable=True)
    box = rendered.box3d.gather(1, order[..., None].expand(-1, -1, 12))
    label = rendered.kind.masked_fill(~seen, -1).gather(1, order)
    some = seen.any(1)
    return {
        "rgb": (rendered.rgb[some] * 255).round().to(torch.uint8).cpu(),
        "depth": rendered.depth[some].half().cpu(),  # 2 mm at 4 m
        "box": box[some].float().cpu(),
        "label": label[some].to(torch.int16).cpu(),
        "intrinsics": rendered.intrinsics[some].float().cpu(),
        "group": rendered.scenes.family[some].to(torch.int16).cpu(),
        "ids": rendered.scenes.index[some].cpu(),
    }


def _of_scenes(found: Frames) -> BoxSet:
    label = found["label"].long()
    most = int((label >= 0).sum(1).max())
    return BoxSet(
        rgb=found["rgb"],
        depth=found["depth"],
        box=found["box"][:, :most],
        label=label[:, :most],
        ignore=torch.zeros_like(label[:, :most], dtype=torch.bool),
        intrinsics=found["intrinsics"],
        group=found["group"].long(),
        ids=found["ids"],
        names=scenes.kinds(),
        groups=FAMILIES,
        label_ids=tuple(range(len(scenes.kinds()))),
    )


def _of_omni3d(path: str, root: Path, depths: str, size: int, limit: int) -> BoxSet:
    """Every image on its padded square; images that cannot be read are left out, and everything wrong is told once."""
    found = omni3d.read(path)
    wanted = found.images[: limit or None]

    def one(picture: omni3d.Picture) -> tuple[Tensor, Tensor] | str:
        try:
            return _picture(root / picture.path, size), _depth(picture, depths, size)
        except (OSError, ValueError) as error:
            return f"image {picture.id}: {error}"

    with ThreadPoolExecutor() as pool:
        decoded = list(pool.map(one, wanted))
    good = [(p, d) for p, d in zip(wanted, decoded, strict=True) if not isinstance(d, str)]
    problems = (*found.problems, *(d for d in decoded if isinstance(d, str)))
    _tell(path, problems)
    if not good:
        why = f": {problems[0]}" if problems else ""
        raise ValueError(
            f"none of the {len(wanted)} images of {path} can be used{why}; check data.images and data.depths"
        )
    pictures = [p for p, _ in good]
    most = max(1, *(len(p.boxes) for p in pictures))
    scale = torch.tensor([size / max(p.width, p.height) for p in pictures])
    intrinsics = torch.stack([p.intrinsics for p in pictures]).float()
    intrinsics[:, :2] *= scale[:, None, None]
    return BoxSet(
        rgb=torch.stack([image for _, (image, _) in good]),
        depth=torch.stack([depth for _, (_, depth) in good]),
        box=_padded([p.boxes.float() for p in pictures], most, 0.0),
        label=_padded([p.labels for p in pictures], most, -1),
        ignore=_padded([p.ignore for p in pictures], most, False),
        intrinsics=intrinsics,
        group=torch.zeros(len(pictures), dtype=torch.long),
        ids=torch.tensor([p.id for p in pictures]),
        names=found.names,
        groups=("all",),
        label_ids=found.ids,
        problems=problems,
    )


def _picture(path: Path, size: int) -> Tensor:
    from PIL import Image

    with Image.open(path) as image:
        return to_square(image, size)


def _depth(picture: omni3d.Picture, folder: str, size: int) -> Tensor:
    """(size, size) metres on the padded square; zeros without a folder of depth maps."""
    if not folder:
        return torch.zeros(size, size, dtype=torch.float16)
    from PIL import Image

    path = (Path(folder) / picture.path).with_suffix(".png")
    with Image.open(path) as image:
        if not image.mode.startswith("I"):
            raise ValueError(f"{path} has mode {image.mode}: a depth map is a 16-bit PNG in millimetres")
        wide, high = (max(1, round(side * size / max(picture.width, picture.height))) for side in _size(picture))
        small = image.resize((wide, high), Image.Resampling.NEAREST)  # between surfaces there is no depth to mix
        values = torch.tensor(small.get_flattened_data() if hasattr(small, "get_flattened_data") else small.getdata())
    metres = values.view(high, wide).float() / 1000
    metres[values.view(high, wide) == 65535] = 0  # a hole in some sensors' files
    return F.pad(metres, (0, size - wide, 0, size - high)).half()


def _size(picture: omni3d.Picture) -> tuple[int, int]:
    return picture.width, picture.height


def _padded(rows: Sequence[Tensor], most: int, value: float) -> Tensor:
    """Rows of different lengths (g, …) as one table (n, most, …)."""
    out = rows[0].new_full((len(rows), most, *rows[0].shape[1:]), value)
    for place, row in zip(out, rows, strict=True):
        place[: len(row)] = row
    return out


def _tell(path: str, problems: Sequence[str]) -> None:
    if problems:
        listed = "; ".join(problems[:_NAMED]) + ("; …" if len(problems) > _NAMED else "")
        warnings.warn(
            f"{path}: {len(problems)} images or annotations cannot be used as they are: {listed}", RuntimeWarning, 2
        )
