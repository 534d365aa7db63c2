"""Oriented boxes in 3D: corners, rotations as two columns, and their exact intersection over union.

A box is 12 numbers, (…, 12): centre (3), the first two *columns* of its rotation matrix, one after the other (6), and
its size along its own axes (3), as the paper's detector predicts it (its appendix on the box format). The columns need
not be orthonormal: `rotation` makes them so, by Gram and Schmidt.

    box3d.iou(a, b)                               exact, (…, 12) and (…, 12) to (…)
    box3d.iou(a, b, method="monte_carlo")         the paper's estimate, from 100,000 points in a
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..constants import Constant

# Corner i has the signs of its three bits, the first axis the slowest: 0 is (−, −, −), 1 is (−, −, +), 7 is (+, +, +).
# Sent to a device once, not in every step.
_SIGNS = Constant(
    lambda dtype, device: torch.tensor(
        [[1.0 if i & bit else -1.0 for bit in (4, 2, 1)] for i in range(8)], dtype=dtype, device=device
    )
)
_AXES = Constant(lambda dtype, device: torch.eye(3, dtype=dtype, device=device))
_SAME = 1e-10  # relative to the boxes: planes, and lines in a plane, that are closer than this count as one
_SMALLEST = 1e-12  # a predicted column shorter than this has no direction
_PARALLEL = 1e-8  # sines below this are zero: planes and lines do not cross


class Estimate(NamedTuple):
    """A Monte-Carlo value and its standard error."""

    value: Tensor
    error: Tensor


def from_parts(centre: Tensor, rotation: Tensor, size: Tensor) -> Tensor:
    """Boxes (…, 12) from centres (…, 3), rotation matrices (…, 3, 3) and sizes (…, 3)."""
    return torch.cat([centre, rotation[..., 0], rotation[..., 1], size], dim=-1)


def rotation(box: Tensor) -> Tensor:
    """R (…, 3, 3) in SO(3): the first column normalised, the second made orthogonal to it, the third their product."""
    first, second = _checked(box)[..., 3:6], box[..., 6:9]
    x = _unit(first, "the first column of a rotation is zero")
    y = _unit(_beside(second, x), "the columns of a rotation are parallel")
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def completed(box: Tensor) -> Tensor:
    """The boxes with orthonormal columns whatever theirs were, for predictions, which nothing keeps from degenerating:
    a first column without direction becomes an axis, and so does a second one along the first. Never raises; gradients
    are those of `rotation`, and zero through what was replaced."""
    columns = _checked(box)[..., 3:9].nan_to_num(0.0, 0.0, 0.0)
    first, second = columns[..., :3], columns[..., 3:]
    axes = _AXES(box.dtype, box.device)
    size = first.norm(dim=-1, keepdim=True)
    x = torch.where(size > _SMALLEST, first / size.clamp_min(_SMALLEST), axes[0])
    fixed = x.detach()
    spare = _beside(axes[fixed.abs().argmin(-1)], fixed)  # from the axis that x is furthest from: never nothing
    spare = spare / spare.norm(dim=-1, keepdim=True)
    y = _beside(second, x)
    size, floor = y.norm(dim=-1, keepdim=True), (1e-6 * second.detach().norm(dim=-1, keepdim=True)).clamp_min(_SMALLEST)
    y = torch.where(size > floor, y / size.clamp_min(_SMALLEST), spare)
    return torch.cat([box[..., :3], x, y, box[..., 9:]], dim=-1)


def completed_corners(box: Tensor) -> Tensor:
    """`corners` of `completed` boxes: never raises, and waits for no device."""
    whole = completed(box)
    x, y = whole[..., 3:6], whole[..., 6:9]
    return _placed(whole, torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1))


def corners(box: Tensor) -> Tensor:
    """The eight corners (…, 8, 3) = centre + R (± size/2), in the fixed order of the bits of 0 … 7 (see `_SIGNS`)."""
    return _placed(box, rotation(box))


def volume(box: Tensor) -> Tensor:
    """(…): the product of the sizes."""
    return _checked(box)[..., 9:].prod(-1)


def intersection(a: Tensor, b: Tensor) -> Tensor:
    """Exact volume of a ∩ b, (…), in float64 inside, differentiable where the volume is.

    The intersection is the polytope of twelve half-spaces n·x ≤ h. By Lasserre's recursion its volume is a third of the
    sum over its faces of (distance of the face) · (area), an area is half of the sum over its edges of (distance of the
    edge) · (length), and an edge is the part of the line between two planes that the other ten half-spaces leave.
    Distances are taken from the centre of a, so that boxes far from the origin lose no digits. Of planes that coincide,
    and of lines that coincide in a plane, only the first counts.
    """
    a, b = torch.broadcast_tensors(_checked(a).double(), _checked(b).double())
    lead = a.shape[:-1]
    a, b = a.reshape(-1, 12), b.reshape(-1, 12)
    scale = (a[:, 9:].abs().amax(-1) + b[:, 9:].abs().amax(-1)).detach().clamp_min(1e-300)
    frames = torch.stack([rotation(a), rotation(b)], dim=1)  # (N, 2, 3, 3)
    axes = frames.mT.flatten(1, 2)  # (N, 6, 3): the columns of both
    normal = torch.cat([axes, -axes], dim=1)  # (N, 12, 3)
    half = torch.cat([a[:, 9:], b[:, 9:]], dim=1) / 2
    offset = (axes[:, 3:] * (b[:, :3] - a[:, :3])[:, None]).sum(-1)  # of b's centre along b's axes, seen from a's
    middle = torch.cat([torch.zeros_like(offset), offset], dim=1)
    height = torch.cat([half + middle, half - middle], dim=1) / scale[:, None]  # (N, 12)
    volumes = [_polytope(n, h) for n, h in zip(normal.split(256), height.split(256), strict=True)]
    empty = normal.new_zeros(0)
    return (torch.cat([empty, *volumes]) * scale**3).reshape(lead)


def _polytope(normal: Tensor, height: Tensor) -> Tensor:
    """Volume of {x: n_i·x ≤ h_i} for unit normals (N, 12, 3) and heights (N, 12) of order one: (N,)."""
    planes = torch.arange(12, device=normal.device)
    i, j = torch.triu_indices(12, 12, 1, device=normal.device)  # the 66 pairs of planes, each with its line
    ni, nj, hi, hj = normal[:, i], normal[:, j], height[:, i], height[:, j]
    cos, cross = (ni * nj).sum(-1), torch.linalg.cross(ni, nj)
    sin2 = cross.square().sum(-1)
    crossing = sin2 > _PARALLEL**2
    sin = torch.where(crossing, sin2, 1).sqrt()
    same = ~crossing & (cos > 0) & ((hi - hj).abs() < _SAME)
    repeated = (_matrix(same, i, j) & (planes[:, None] < planes)).any(1)  # (N, 12): an earlier plane is this one
    # In a plane, seen from its foot h n, a line lies at `apart` in the direction `across`.
    apart_i, apart_j = (hj - hi * cos) / sin, (hi - hj * cos) / sin  # (N, 66), in plane i and in plane j
    across_i, across_j = (nj - cos[..., None] * ni) / sin[..., None], (ni - cos[..., None] * nj) / sin[..., None]
    foot = hi[..., None] * ni + apart_i[..., None] * across_i  # (N, 66, 3), one point of the line
    # Half-space k leaves of foot + t · direction the t with slope · t ≤ room.
    slope = (cross / sin[..., None]) @ normal.mT  # (N, 66, 12)
    room = height[:, None] - foot @ normal.mT
    free = (planes == i[:, None]) | (planes == j[:, None]) | repeated[:, None]  # its own planes, and planes left out
    parallel = slope.abs() < _PARALLEL
    bound = room / torch.where(parallel, 1, slope)
    upper = torch.where(~free & ~parallel & (slope > 0), bound, math.inf).amin(-1)
    lower = torch.where(~free & ~parallel & (slope < 0), bound, -math.inf).amax(-1)
    seen = crossing & ~repeated[:, i] & ~repeated[:, j] & (upper > lower)
    length = torch.where(seen, torch.where(seen, upper, 0) - torch.where(seen, lower, 0), 0)  # (N, 66)
    sines, crossings = _matrix(sin.detach(), i, j), _matrix(crossing, i, j)
    total = normal.new_zeros(len(normal))
    for face, line, h, apart, across in ((i, j, hi, apart_i, across_i), (j, i, hj, apart_j, across_j)):
        within = room / torch.where(crossings[:, face], sines[:, face], 1)  # in the face, to a parallel line beyond
        beside = ~free & parallel
        outside = (beside & (within < -_SAME)).any(-1)
        twin = beside & crossings[:, face] & (across @ normal.mT > 0) & (within.abs() < _SAME)
        doubled = (twin & (planes < line[:, None])).any(-1)  # an earlier line of the face is this one
        total = total + torch.where(outside | doubled, 0, h * apart * length).sum(-1)
    return (total / 6).clamp_min(0)


def _matrix(pairs: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """(N, 66) values of pairs as symmetric matrices (N, 12, 12), zero on the diagonal."""
    out = pairs.new_zeros(len(pairs), 12, 12)
    out[:, i, j] = pairs
    out[:, j, i] = pairs
    return out


def iou(a: Tensor, b: Tensor, *, method: str = "exact", points: int = 100_000, seed: int = 0) -> Tensor:
    """Intersection over union of boxes (…, 12), in [0, 1]; leading shapes broadcast.

    method: "exact", or "monte_carlo" as in the paper (see `monte_carlo_iou` for its standard error).
    """
    if method == "monte_carlo":
        return monte_carlo_iou(a, b, points=points, seed=seed).value
    if method != "exact":
        raise ValueError(f"method must be 'exact' or 'monte_carlo', got {method!r}")
    shared = intersection(a, b)
    union = volume(a).double() + volume(b).double() - shared
    return (shared / union.clamp_min(1e-300)).clamp(0, 1).to(torch.promote_types(a.dtype, b.dtype))


@torch.no_grad()
def monte_carlo_iou(a: Tensor, b: Tensor, *, points: int = 100_000, seed: int = 0) -> Estimate:
    """The paper's estimate: r, the share of points drawn in a that lie in b, gives r V_a / (V_b + (1 − r) V_a)."""
    a, b = torch.broadcast_tensors(_checked(a).double(), _checked(b).double())
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
    value = r * va / (vb + (1 - r) * va)
    slope = va * (va + vb) / (vb + (1 - r) * va).square()
    return Estimate(value, slope * (r * (1 - r) / points).sqrt())


def _checked(box: Tensor) -> Tensor:
    if box.shape[-1:] != (12,) or not box.is_floating_point():
        raise ValueError(
            f"boxes must be (…, 12) floats: centre 3, two columns of R 6, size 3; got {box.dtype} {tuple(box.shape)}"
        )
    return box


def _placed(box: Tensor, frame: Tensor) -> Tensor:
    """Corners (…, 8, 3) of boxes whose rotations are `frame` (…, 3, 3)."""
    offsets = _SIGNS(box.dtype, box.device) * (box[..., None, 9:] / 2)  # (…, 8, 3)
    # No matrix product: under autocast it would be one of bf16, with errors of centimetres.
    return box[..., None, :3] + (offsets[..., None, :] * frame[..., None, :, :]).sum(-1)


def _beside(v: Tensor, x: Tensor) -> Tensor:
    """The part of v at right angles to the unit vector x."""
    return v - (x * v).sum(-1, keepdim=True) * x


def _unit(v: Tensor, complaint: str) -> Tensor:
    length = v.norm(dim=-1, keepdim=True)
    if not v.is_meta and not torch.compiler.is_compiling() and bool((length == 0).any()):
        raise ValueError(f"{complaint}: it has no direction to make a rotation of")
    return v / length
