"""Oriented boxes in 3D: corners, rotations as two columns, and their exact intersection over union.

A box is 12 numbers, (…, 12): centre (3), the first two *columns* of its rotation matrix, one after the other (6), and
its size along its own axes (3), as the paper's detector predicts it (its appendix on the box format). The columns need
not be orthonormal: `rotation` makes them so, by Gram and Schmidt.

    box3d.iou(a, b)                               exact, (…, 12) and (…, 12) to (…)
    box3d.iou(a, b, method="monte_carlo")         the paper's estimate, from 100,000 points in a
"""

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import check_floats, check_number, check_tensor
from ..constants import Constant
from .box_overlap import CORNER_SIGNS, shared_fraction

EDGES = tuple((i, i | bit) for bit in (1, 2, 4) for i in range(8) if not i & bit)
"""The 12 edges of a box as pairs of its corners."""

_AXES = Constant(lambda dtype, device: torch.eye(3, dtype=dtype, device=device))
_SMALLEST = 1e-12  # a predicted column shorter than this has no direction
_OBLIQUE = 0.1  # below this sine of the angle between two columns, orthogonality needs a second step
_CHUNK = 512  # pairs of boxes at a time: their temporaries stay in a CPU's cache


class MonteCarloIoU(NamedTuple):
    """A Monte-Carlo value and its standard error."""

    value: Tensor
    error: Tensor


def from_parts(centre: Tensor, rotation: Tensor, size: Tensor) -> Tensor:
    """Boxes (…, 12) from centres (…, 3), rotation matrices (…, 3, 3) and sizes (…, 3)."""
    return torch.cat([centre, rotation[..., 0], rotation[..., 1], size], dim=-1)


def rotation(box: Tensor) -> Tensor:
    """R (…, 3, 3) in SO(3): the first column normalised, the second made orthogonal to it, the third their product.

    ValueError for columns that define no rotation: a first one that is zero, a second one that is parallel to the first
    up to rounding, or numbers that are not finite. The result is orthonormal however oblique the columns are."""
    first, second = _check_shape(box)[..., 3:6], box[..., 6:9]
    length = first.norm(dim=-1, keepdim=True)
    _refuse((length == 0) | ~length.isfinite(), "the first column of a rotation is zero or not finite")
    x = first / length
    y = _reject(second, x)
    length, longest = y.norm(dim=-1, keepdim=True), second.norm(dim=-1, keepdim=True)
    rounding = 8 * torch.finfo(box.dtype).eps
    _refuse(
        (length <= rounding * longest) | ~longest.isfinite(), "the columns of a rotation are parallel or not finite"
    )
    y = _orthogonalise_again(y / length, x, length < _OBLIQUE * longest)
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def complete(box: Tensor) -> Tensor:
    """The boxes with orthonormal columns, whatever theirs were: for predictions, which may degenerate. A first column
    without direction is replaced by an axis, and so is a second one that is parallel to the first. Never raises;
    gradients are those of `rotation`, and zero through replaced columns."""
    columns = _check_shape(box)[..., 3:9].nan_to_num(0.0, 0.0, 0.0)
    first, second = columns[..., :3], columns[..., 3:]
    axes = _AXES(box.dtype, box.device)
    size = first.norm(dim=-1, keepdim=True)
    x = torch.where(size > _SMALLEST, first / size.clamp_min(_SMALLEST), axes[0])
    fixed = x.detach()
    spare = _reject(axes[fixed.abs().argmin(-1)], fixed)  # from the axis that x is furthest from: never zero
    spare = spare / spare.norm(dim=-1, keepdim=True)
    y = _reject(second, x)
    size, longest = y.norm(dim=-1, keepdim=True), second.detach().norm(dim=-1, keepdim=True)
    y = torch.where(size > (1e-6 * longest).clamp_min(_SMALLEST), y / size.clamp_min(_SMALLEST), spare)
    y = _orthogonalise_again(y, x, size < _OBLIQUE * longest)
    return torch.cat([box[..., :3], x, y, box[..., 9:]], dim=-1)


def complete_corners(box: Tensor) -> Tensor:
    """`corners` of the boxes that `complete` returns: never raises, and does not wait for the device."""
    completed = complete(box)
    x, y = completed[..., 3:6], completed[..., 6:9]
    return _place_corners(completed, torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1))


def corners(box: Tensor) -> Tensor:
    """The eight corners (…, 8, 3) = centre + R (± size/2), in the fixed order of the bits of 0 … 7 (`CORNER_SIGNS`)."""
    return _place_corners(box, rotation(box))


def project_edges(box: Tensor, intrinsics: Tensor, near: float = 0.05) -> Tensor:
    """The edges of boxes (k, 12) in the camera frame as segments (s, 2, 2) in pixels, in float64 on the CPU.

    intrinsics: K (3, 3). Edges are cut `near` metres in front of the camera; those that lie nearer or behind it as a
    whole are left out, so s is at most 12 k. Degenerate rotations are replaced as in `complete`."""
    check_floats("box", box, ("k", None), ("12", 12))
    check_floats("intrinsics", intrinsics, ("3", 3), ("3", 3))
    if check_number("near", near) <= 0:
        raise ValueError(f"near is a distance before the camera in metres, above 0, got {near:g}")
    ends = complete_corners(box.double().cpu())[:, torch.tensor(EDGES)].reshape(-1, 2, 3)
    ends = ends[(ends[..., 2] > near).any(-1)]
    z = ends[..., 2]
    share = torch.where(
        z > near, 0, (near - z) / torch.where(z > near, 1, z.flip(-1) - z)
    )  # of the way to the other end
    ends = ends + share[..., None] * (ends.flip(-2) - ends)
    flat = ends @ intrinsics.double().cpu().T
    return flat[..., :2] / flat[..., 2:]


def volume(box: Tensor) -> Tensor:
    """(…): the product of the sizes."""
    return _check_shape(box)[..., 9:].prod(-1)


def intersection(a: Tensor, b: Tensor) -> Tensor:
    """Exact volume of a ∩ b, (…), computed in float64; differentiable where the volume is. See `box_overlap`."""
    a, b = torch.broadcast_tensors(_check_solid(a).double(), _check_solid(b).double())
    lead = a.shape[:-1]
    a, b = a.reshape(-1, 12), b.reshape(-1, 12)
    shares = [a.new_zeros(0)]
    for one, other in zip(a.split(_CHUNK), b.split(_CHUNK), strict=True):
        move = other[:, :3] - one[:, :3]
        shares.append(shared_fraction(rotation(one), one[:, 9:], rotation(other), other[:, 9:], move))
    return torch.minimum(torch.cat(shares) * volume(a), volume(b)).reshape(lead)


def iou(a: Tensor, b: Tensor, *, method: str = "exact", points: int = 100_000, seed: int = 0) -> Tensor:
    """Intersection over union of boxes (…, 12), in [0, 1]; leading shapes broadcast. It is 0 for boxes without volume.

    method: "exact", or "monte_carlo" as in the paper (see `monte_carlo_iou` for its standard error).
    """
    if method == "monte_carlo":
        return monte_carlo_iou(a, b, points=points, seed=seed).value
    if method != "exact":
        raise ValueError(f"method must be 'exact' or 'monte_carlo', got {method!r}")
    shared = intersection(a, b)
    union = volume(a.double()) + volume(b.double()) - shared
    return (shared / union.clamp_min(1e-300)).clamp(0, 1).to(torch.promote_types(a.dtype, b.dtype))


@torch.no_grad()
def monte_carlo_iou(a: Tensor, b: Tensor, *, points: int = 100_000, seed: int = 0) -> MonteCarloIoU:
    """The paper's estimate: r, the share of points drawn in a that lie in b, gives r V_a / (V_b + (1 − r) V_a)."""
    if points < 1:
        raise ValueError(f"points is the number of points drawn in each box, got {points}: pass at least 1")
    a, b = torch.broadcast_tensors(_check_solid(a).double(), _check_solid(b).double())
    lead = a.shape[:-1]
    random = torch.Generator().manual_seed(seed)
    inside = []
    for one, other in zip(a.reshape(-1, 12), b.reshape(-1, 12), strict=True):
        local = (torch.rand(points, 3, generator=random, dtype=torch.float64).to(one.device) - 0.5) * one[9:]
        world = local @ rotation(one).T + (one[:3] - other[:3])
        within = (world @ rotation(other)).abs() <= other[9:] / 2
        inside.append(within.all(-1).double().mean())
    r = (torch.stack(inside) if inside else a.new_zeros(0)).reshape(lead)
    va, vb = volume(a), volume(b)
    union = (vb + (1 - r) * va).clamp_min(1e-300)
    slope = va * (va + vb) / union.square()
    return MonteCarloIoU(r * va / union, slope * (r * (1 - r) / points).sqrt())


def _check_shape(box: Tensor) -> Tensor:
    check_tensor("boxes", box)
    if box.shape[-1:] != (12,) or not box.is_floating_point():
        raise ValueError(
            f"boxes must be (…, 12) floats: centre 3, two columns of R 6, size 3; got {box.dtype} {tuple(box.shape)}"
        )
    return box


def _check_solid(box: Tensor) -> Tensor:
    """The boxes, if all their numbers are finite and no size is negative."""
    _check_shape(box)
    message = "a box has numbers that are not finite, or a negative size: its overlap with others is undefined"
    _refuse(~box.isfinite().all(-1) | (box[..., 9:] < 0).any(-1), message)
    return box


def _refuse(wrong: Tensor, message: str) -> None:
    """ValueError if any entry of `wrong` is true; not while tracing, where there are no values to check."""
    if not wrong.is_meta and not torch.compiler.is_compiling() and bool(wrong.any()):
        raise ValueError(f"{message} ({int(wrong.sum())} of {wrong.numel()} boxes)")


def _place_corners(box: Tensor, frame: Tensor) -> Tensor:
    """Corners (…, 8, 3) of boxes whose rotations are `frame` (…, 3, 3)."""
    offsets = CORNER_SIGNS(box.dtype, box.device) * (box[..., None, 9:] / 2)  # (…, 8, 3)
    # Not a matrix product: autocast would compute it in bf16, with errors of centimetres.
    return box[..., None, :3] + (offsets[..., None, :] * frame[..., None, :, :]).sum(-1)


def _reject(v: Tensor, x: Tensor) -> Tensor:
    """The part of v at right angles to the unit vector x."""
    return v - (x * v).sum(-1, keepdim=True) * x


def _orthogonalise_again(y: Tensor, x: Tensor, oblique: Tensor) -> Tensor:
    """Unit vectors y at right angles to x. Those of `oblique` columns are orthogonalised twice: they lost digits the
    first time, and twice is enough."""
    again = _reject(y, x)
    return torch.where(oblique, again / again.norm(dim=-1, keepdim=True).clamp_min(0.5), y)
