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

# Corner i has the signs of its three bits, the first axis the slowest: 0 is (−, −, −), 1 is (−, −, +), 7 is (+, +, +).
_SIGNS = [[1.0 if i & bit else -1.0 for bit in (4, 2, 1)] for i in range(8)]
_SAME = 1e-10  # relative to the boxes: planes, and lines in a plane, that are closer than this count as one
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
    y = _unit(second - (x * second).sum(-1, keepdim=True) * x, "the columns of a rotation are parallel")
    return torch.stack([x, y, torch.linalg.cross(x, y)], dim=-1)


def corners(box: Tensor) -> Tensor:
    """The eight corners (…, 8, 3) = centre + R (± size/2), in the fixed order of the bits of 0 … 7 (see `_SIGNS`)."""
    offsets = box.new_tensor(_SIGNS) * box[..., None, 9:] / 2  # (…, 8, 3)
    return box[..., None, :3] + offsets @ rotation(box).mT


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
    volumes = [_polytope(n, h) for n, h in zip(normal.split(1024), height.split(1024), strict=True)]
    empty = normal.new_zeros(0)
    return (torch.cat([empty, *volumes]) * scale**3).reshape(lead)


def _polytope(normal: Tensor, height: Tensor) -> Tensor:
    """Volume of {x: n_i·x ≤ h_i} for unit normals (N, 12, 3) and heights (N, 12) of order one: (N,)."""
    cos = normal @ normal.mT  # (N, 12, 12)
    along = torch.linalg.cross(normal[:, :, None].expand(-1, -1, 12, -1), normal[:, None].expand(-1, 12, -1, -1))
    sin2 = along.square().sum(-1)
    crossing = sin2 > _PARALLEL**2
    gap = height[:, None, :] - height[:, :, None]
    same = ~crossing & (cos > 0) & (gap.abs() < _SAME)
    repeated = (same & torch.ones_like(same).triu(1)).any(1)  # (N, 12): an earlier plane is this one
    kept = ~repeated
    sin = torch.where(crossing, sin2, 1).sqrt()
    # In plane i, seen from its foot h_i n_i: the line with plane j lies at `apart` along the part of n_j across n_i.
    apart = (height[:, None, :] - height[:, :, None] * cos) / sin  # (N, i, j)
    across = (normal[:, None] - cos[..., None] * normal[:, :, None]) / sin[..., None]
    foot = height[:, :, None, None] * normal[:, :, None] + apart[..., None] * across  # (N, i, j, 3)
    direction = along / sin[..., None]
    # Half-space k leaves of foot + t · direction the t with slope · t ≤ room.
    slope = direction @ normal.mT[:, None]  # (N, i, j, k)
    room = height[:, None, None] - foot @ normal.mT[:, None]
    eye = torch.eye(12, dtype=torch.bool, device=normal.device)
    free = (eye[:, None] | eye[None]) | repeated[:, None, None]  # its own two planes, and planes left out
    parallel = slope.abs() < _PARALLEL
    bound = room / torch.where(parallel, 1, slope)
    upper = torch.where(~free & ~parallel & (slope > 0), bound, math.inf).amin(-1)
    lower = torch.where(~free & ~parallel & (slope < 0), bound, -math.inf).amax(-1)
    within = room / sin[:, :, None]  # in plane i, the distance of a parallel line k beyond line j
    outside = (~free & parallel & (within < -_SAME)).any(-1)
    ahead = across @ across.mT > 0  # (N, i, j, k)
    twin = ~free & parallel & ahead & crossing[:, :, None] & (within.abs() < _SAME)
    doubled = (twin & torch.ones_like(eye).tril(-1)).any(-1)  # an earlier line is this one
    edge = crossing & ~outside & ~doubled & kept[:, :, None] & kept[:, None] & (upper > lower)
    length = torch.where(edge, torch.where(edge, upper, 0) - torch.where(edge, lower, 0), 0)
    area = (apart * length).sum(-1) / 2
    return ((height * area).sum(-1) / 3).clamp_min(0)


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


def _unit(v: Tensor, complaint: str) -> Tensor:
    length = v.norm(dim=-1, keepdim=True)
    if not v.is_meta and not torch.compiler.is_compiling() and bool((length == 0).any()):
        raise ValueError(f"{complaint}: it has no direction to make a rotation of")
    return v / length
