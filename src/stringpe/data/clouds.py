"""Point clouds of shapes with a class each, from one NumPy file, cut into groups of neighbours once.

The file is an .npz with, per split ("train" and "test"), `train_points` (n, p, 3) and `train_label` (n,), and perhaps
`classes`, the names. Points are floats, or integers in any unit: every cloud is centred and divided by its largest
distance from the centre, since CAD files of one collection differ in their units by factors of a million.
"""

import lzma
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..checks import check_choice, check_count, check_finite, check_floats
from ..models.points import group_points
from ..recipes.schema import Data
from .cache import digest, file_marks, load_or_make, remember
from .sources import split_limit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SPLITS = {"train": "train", "val": "test"}  # the name of a split in the file
_CHUNK = 256  # clouds that are grouped at a time
_MOST_BYTES = 16 << 30  # of a file, unpacked
_DAMAGE = (
    *(OSError, ValueError, TypeError, KeyError, AttributeError, EOFError, NotImplementedError, RuntimeError),
    *(MemoryError, OverflowError, SyntaxError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
)
"""What NumPy and zipfile raise for damaged files."""

Clouds = dict[str, Tensor]
"""points (n, g, k, 3) float32, in groups; centres (n, g, 3) float32; label (n,) int64."""


@remember
def load_clouds(data: Data, split: str) -> Clouds:
    """The clouds of a split in groups, which are found once and kept in data.cache. Grouping follows a cloud when it is
    turned or moved, so it can stand before any augmentation."""
    path = Path(data.train if split == "train" or not data.val else data.val)
    points, label = _read(path, _SPLITS[split], data.num_classes)
    most = split_limit(data, split)
    points, label = (t[: most or None] for t in (points, label))
    if not 0 < data.group_size <= points.shape[1] or data.groups > points.shape[1]:
        raise ValueError(
            f"data.groups={data.groups} of data.group_size={data.group_size} points need as many points per cloud; "
            f"those of {path} have {points.shape[1]}"
        )
    mark = digest(file_marks([path]), data.groups, data.group_size, most)
    members = load_or_make(data.cache, f"groups-{split}-{mark}", lambda: _group(points, data.groups, data.group_size))
    if data.pose == "principal":
        points = points @ principal_axes(points)
    rows = torch.arange(len(points))[:, None]
    return {
        "points": points[rows[:, :, None], members["members"].long()],
        "centres": points[rows, members["chosen"].long()],
        "label": label,
    }


def class_names(data: Data) -> list[str]:
    """The names of the classes, as the file has them, or numbers."""
    with _open(Path(data.train)) as file:
        listed = file["classes"] if "classes" in file.files else None
        if listed is not None and listed.ndim != 1:
            raise ValueError(f"classes must be a list of names, and is an array of shape {listed.shape}")
        names = None if listed is None else [str(name) for name in listed.tolist()]
    if names is None:
        return [f"class {i}" for i in range(data.num_classes)]
    if len(names) < data.num_classes:
        raise ValueError(f"{data.train} names {len(names)} classes: set data.num_classes, now {data.num_classes}")
    return names


def turn(points: Tensor, centres: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """Grouped points (b, g, k, 3) and centres (b, g, 3), each cloud turned by its rotation (b, 3, 3)."""
    return torch.einsum("bgkc,bdc->bgkd", points, rotation), torch.einsum("bgc,bdc->bgd", centres, rotation)


def stretch(points: Tensor, centres: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Grouped points (b, g, k, 3) and centres (b, g, 3), the axes of each cloud stretched by its factors (b, 3)."""
    return points * factor[:, None, None], centres * factor[:, None]


def principal_axes(points: Tensor) -> Tensor:
    """Rotations (b, 3, 3) whose columns are the principal axes of centred clouds (b, n, 3), that of the largest spread
    first; `points @ axes` is the cloud in its own frame. The first two axes point to where the third moment is
    positive, so that a cloud has the same frame in every pose; where moments or spreads are equal, the choice
    is arbitrary."""
    check_floats("points", points, ("b", None), ("n", None), ("3", 3))
    check_finite("points", points)
    x = points.double()
    axes = torch.linalg.eigh(x.mT @ x).eigenvectors.flip(-1)  # eigenvalues come in ascending order
    skew = (x @ axes).pow(3).sum(1)
    axes = axes * torch.where(skew < 0, -1.0, 1.0)[:, None]
    handed = torch.linalg.det(axes).sign()
    return torch.cat([axes[..., :2], axes[..., 2:] * handed[:, None, None]], -1).to(points.dtype)


def draw_rotations(count: int, kind: str, dice: torch.Generator) -> Tensor:
    """Rotations (count, 3, 3), evenly distributed: of all of SO(3) ("any"), about the z axis ("upright"), or none and
    the half turns about x, y and z ("half")."""
    check_count("count", count, 0)
    check_choice("kind", kind, ("any", "upright", "half"))
    if not isinstance(dice, torch.Generator):
        raise TypeError(f"dice must be a torch.Generator, got {dice!r:.40}")
    if kind == "half":
        signs = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
        return torch.diag_embed(signs[torch.randint(4, (count,), generator=dice)])
    if kind == "upright":
        angle = 2 * torch.pi * torch.rand(count, generator=dice)
        cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros(count), torch.ones(count)
        return torch.stack([cos, -sin, zero, sin, cos, zero, zero, zero, one], -1).unflatten(-1, (3, 3))
    w, x, y, z = torch.nn.functional.normalize(torch.randn(count, 4, generator=dice), dim=-1).unbind(-1)
    rows = [
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    ]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """The arrays of an .npz file; whatever is wrong with it, or goes wrong in the block, is one line with its name."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: set data.train to an .npz with train_points and train_label")
    try:
        with path.open("rb") as raw:
            file = np.load(raw, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, not several by name, as numpy.savez writes them")
            with file:
                assert file.zip is not None
                size: int = sum(entry.file_size for entry in file.zip.infolist())
                if size > _MOST_BYTES:
                    raise ValueError(f"it unpacks to {size} bytes, more than the {_MOST_BYTES} that are read")
                yield file
    except _DAMAGE as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is not a file of point clouds: {reason}") from None


def _read(path: Path, split: str, classes: int) -> tuple[Tensor, Tensor]:
    """Points (n, p, 3), centred and of size 1, and labels (n,) of a split."""
    with _open(path) as file:
        missing = [name for name in (f"{split}_points", f"{split}_label") if name not in file.files]
        if missing:
            raise ValueError(f"it has {', '.join(file.files)}, but not {' and '.join(missing)}")
        points, label = file[f"{split}_points"], file[f"{split}_label"]
    if points.ndim != 3 or points.shape[-1] != 3 or label.shape != points.shape[:1] or not points.size:
        raise ValueError(
            f"{split}_points must be (n, p, 3) and {split}_label (n,), with n and p above 0; {path} has "
            f"{points.shape} and {label.shape}"
        )
    if points.dtype.kind not in "iuf" or label.dtype.kind not in "iu":
        raise ValueError(
            f"{split}_points must be floats or integers and {split}_label integers; {path} has {points.dtype} and "
            f"{label.dtype}"
        )
    if label.min() < 0 or label.max() >= classes:
        raise ValueError(f"{path} has labels from {label.min()} to {label.max()}: set data.num_classes, now {classes}")
    return _normalise(points, f"{split}_points of {path}"), torch.from_numpy(label.astype(np.int64))


def _normalise(points: "NDArray[Any]", what: str) -> Tensor:
    """The clouds (n, p, 3), each centred and divided by its largest distance from the centre. In float64: in whatever
    unit and wherever they lie, rounding is relative to the clouds and not to their places."""
    parts = []
    for first in range(0, len(points), _CHUNK):
        x = torch.from_numpy(points[first : first + _CHUNK].astype(np.float64))
        if not x.isfinite().all():
            raise ValueError(f"{what} holds numbers that are not finite")
        x = x - x.mean(1, keepdim=True)
        x = x / x.abs().amax((1, 2), keepdim=True)  # before squares, which could overflow or vanish
        x = x / x.norm(dim=-1).amax(1)[:, None, None]
        if not x.isfinite().all():
            number = first + int((~x.isfinite()).flatten(1).any(1).nonzero()[0, 0])
            raise ValueError(
                f"cloud {number} of {what} has all its points at one place, or too far apart: leave it out"
            )
        parts.append(x.float())
    return torch.cat(parts)


def _group(points: Tensor, groups: int, size: int) -> Clouds:
    found = [group_points(part, groups, size) for part in points.split(_CHUNK)]
    chosen, members = (torch.cat(parts).to(torch.int32) for parts in zip(*found, strict=True))
    return {"chosen": chosen, "members": members}
