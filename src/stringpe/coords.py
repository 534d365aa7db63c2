"""Where r comes from: coordinates are (n, c) or (b, n, c) floats, and an encoding never sees anything else.

Units decide which frequencies fit. Patch indices suit the default scale of 1 (shortest wavelength 6.3 patches);
coordinates in [−1, 1] need `scale` of about half the number of patches; metres, about 2π over the finest detail that
should matter. Patch indices extrapolate to another resolution (more patches, larger numbers), normalised coordinates
interpolate (the same numbers, closer together): `units` makes the choice.

Axes are in the order of the tensor's: (row, column), that is (y, x), then depth.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import can_read, check_choice, check_count, check_finite, check_number, check_tensor

UNITS = ("index", "centred", "normalised")


def grid(
    *sizes: int,
    units: str = "index",
    prefix: int = 0,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Coordinates of a grid of patches, row by row: (prefix + Π sizes, len(sizes)).

    units: "index", 0 … size − 1; "centred", the same with the grid's middle at the origin; "normalised", patch centres
        in [−1, 1] on each axis, the image's borders at ±1.
    prefix: that many rows of zeros in front, for class tokens and registers: they sit at the origin.
    """
    if not sizes:
        raise ValueError("grid needs one positive size per axis, got none")
    for size in sizes:
        check_count("a size of the grid", size)
    check_choice("units", units, UNITS)
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        raise ValueError(f"coordinates are float32 or float64, got {dtype}: half-precision positions collide")
    axes = []
    for size in sizes:
        axis = torch.arange(size, device=device, dtype=dtype)
        if units == "centred":
            axis = axis - (size - 1) / 2
        elif units == "normalised":
            axis = (2 * axis + 1) / size - 1
        axes.append(axis)
    return with_prefix(torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2), prefix)


def with_prefix(coords: Tensor, count: int) -> Tensor:
    """`count` tokens at the origin in front of (…, n, c): class tokens, registers, text."""
    check_tensor("coords", coords)
    check_count("prefix", count, 0)
    if coords.ndim < 2:
        raise ValueError(f"coords must be (n, c) or (b, n, c), got {tuple(coords.shape)}")
    return F.pad(coords, (0, 0, count, 0))


def valid_depth(depth: Tensor) -> Tensor:
    """Where a depth map holds a distance: zeros, negatives, infinities and NaNs are holes."""
    check_tensor("depth", depth)
    if depth.is_complex():
        raise ValueError(f"depth must be real, got {depth.dtype}")
    return depth.isfinite() & (depth > 0)


def pool_depth(depth: Tensor, patch_size: int | tuple[int, int]) -> Tensor:
    """Mean of the valid depth in each patch: (b, H, W) to (b, H/p, W/p).

    A patch without any valid pixel takes the mean over the image's other patches, and 0 if the image has none: a hole
    says nothing, so it is placed where it moves the least.
    """
    check_tensor("depth", depth)
    height, width = _patch(patch_size)
    if depth.ndim != 3 or not depth.is_floating_point():
        raise ValueError(f"depth must be (b, H, W) floats, in metres, got {depth.dtype} {tuple(depth.shape)}")
    if depth.shape[1] % height or depth.shape[2] % width:
        raise ValueError(f"depth of {depth.shape[1]}×{depth.shape[2]} does not divide into patches of {height}×{width}")
    valid = valid_depth(depth)
    clean = torch.where(valid, depth, 0)
    share = F.avg_pool2d(valid[:, None].to(depth.dtype), (height, width))[:, 0]
    total = F.avg_pool2d(clean[:, None], (height, width))[:, 0]
    tiny = 0.5 / (height * width)  # less than one pixel's share
    mean = total / share.clamp_min(tiny)
    seen = (share > tiny).to(depth.dtype)
    overall = (mean * seen).sum((1, 2)) / seen.sum((1, 2)).clamp_min(1)
    return torch.where(share > tiny, mean, overall[:, None, None])


def lift_depth(
    depth: Tensor,
    patch_size: int | tuple[int, int],
    *,
    scale: Tensor | float = 1.0,
    offset: Tensor | float = 0.0,
    units: str = "index",
    prefix: int = 0,
) -> Tensor:
    """Patches lifted to 3D (section 4.4): (row, column, scale · mean valid depth + offset), (b, prefix + n, 3).

    depth: (b, H, W) in metres, holes as zero, NaN or infinity. scale and offset: the affine map that brings metres to
    the units of the patch grid; tensors make it learnable. With scale 0 every patch lies in one plane: the 2D encoding.
    """
    for what, value in {"scale": scale, "offset": offset}.items():
        if not isinstance(value, Tensor):
            check_number(what, value)
        elif value.numel() != 1:
            raise ValueError(f"{what} must be one number, got a tensor of shape {tuple(value.shape)}")
    pooled = pool_depth(depth, patch_size)
    plane = grid(*pooled.shape[1:], units=units, device=depth.device)
    z = (pooled.flatten(1) * scale + offset)[..., None]
    coords = torch.cat([plane.to(z.dtype).expand(z.shape[0], -1, -1), z], dim=-1)
    return with_prefix(coords, prefix)


class Calibration(NamedTuple):
    """Calibrated cameras: intrinsics K (…, 3, 3), in pixels of the pictures with pixel centres at half-integers, and
    pose (…, 4, 4), world from camera: a point x of the camera's frame (x right, y down, z forward, metres) is at
    R x + t, R = pose[:3, :3], t = pose[:3, 3]. "World" is any frame that all cameras share, such as a robot's base.

    Leading axes are none (the same cameras for every sample), (v,) for v cameras, or (b,) and (b, v) per sample: they
    are broadcast to those of a depth map (…, H, W)."""

    intrinsics: Tensor
    pose: Tensor


def backproject(depth: Tensor, intrinsics: Tensor, pose: Tensor | None = None) -> Tensor:
    """Pinhole back-projection to metric points: (…, H, W, 3), in the camera frame, or in the world frame with a pose.

    depth: (b, H, W), or (b, v, H, W) for v cameras; metres along the optical axis. intrinsics and pose: as in
    `Calibration`, of this depth map. Holes give points at the camera's centre, which is the origin of the camera frame
    and the last column of the pose in the world; they pass no gradient to depth. Intrinsics and pose receive one.
    """
    _check_camera(depth, intrinsics, pose)
    k = intrinsics.to(depth)[..., None, None]  # (…, 3, 3, 1, 1)
    v = torch.arange(depth.shape[-2], device=depth.device, dtype=depth.dtype)[:, None] + 0.5
    u = torch.arange(depth.shape[-1], device=depth.device, dtype=depth.dtype) + 0.5
    z = torch.where(valid_depth(depth), depth, 0)
    y = (v - k[..., 1, 2, :, :]) / k[..., 1, 1, :, :]
    x = (u - k[..., 0, 2, :, :] - k[..., 0, 1, :, :] * y) / k[..., 0, 0, :, :]
    points = torch.stack([x * z, y * z, z], dim=-1)
    return points if pose is None else to_world(points, pose)


def to_world(points: Tensor, pose: Tensor) -> Tensor:
    """Points (…, H, W, 3) of cameras in the frame of their poses (…, 4, 4): R x + t."""
    pose = pose.to(points)[..., None, None, :, :]
    # Written out: a matrix product may run in reduced precision, and coordinates are not for that.
    moved = sum(points[..., j, None] * pose[..., :3, j] for j in range(3)) + pose[..., :3, 3]
    assert isinstance(moved, Tensor)
    return moved


def patch_points(
    depth: Tensor,
    intrinsics: Tensor,
    patch_size: int | tuple[int, int],
    *,
    pose: Tensor | None = None,
    prefix: int = 0,
) -> Tensor:
    """One metric point per patch, the ray through its centre at its mean valid depth: (b, prefix + n, 3), or
    (b, prefix + v n, 3) for v cameras, one after the other. depth, intrinsics, pose: as in `backproject`.

    A patch without any valid pixel takes the mean depth of its camera's other patches."""
    _check_camera(depth, intrinsics, pose)
    height, width = _patch(patch_size)
    pooled = pool_depth(depth.flatten(0, -3), patch_size).unflatten(0, depth.shape[:-2])
    x, y, z = intrinsics.to(depth).unbind(-2)
    of_patches = torch.stack([x / width, y / height, z], dim=-2)  # K of an image of one pixel per patch
    points = backproject(pooled, of_patches, pose)
    return with_prefix(points.flatten(1, -2), prefix)


def augment(
    coords: Tensor,
    *,
    batch: int | None = None,
    shift: float = 0.0,
    jitter: float = 1.0,
    rescale: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Coordinates changed at random for training, drawn per sample: (b, n, c), or (n, c) with `batch` given.

    shift: added to each axis, uniform in [−shift, shift]. jitter: one factor per axis, log-uniform in
    [1/jitter, jitter]. rescale: one factor for all axes, log-uniform in [1/rescale, rescale].
    """
    check_tensor("coords", coords)
    if coords.ndim == 2 and batch is not None:
        check_count("batch", batch)
        coords = coords.expand(batch, -1, -1)
    if coords.ndim != 3:
        raise ValueError(f"augment draws per sample: give (b, n, c), or (n, c) and batch=, got {tuple(coords.shape)}")
    for what, value in {"shift": shift, "jitter": jitter, "rescale": rescale}.items():
        check_number(what, value)
    if jitter < 1 or rescale < 1 or shift < 0:
        raise ValueError(f"need shift >= 0, jitter >= 1 and rescale >= 1, got {shift}, {jitter} and {rescale}")

    def uniform(columns: int) -> Tensor:
        draw = torch.rand(len(coords), 1, columns, generator=generator, device=coords.device, dtype=coords.dtype)
        return 2 * draw - 1

    axes = coords.shape[-1]
    factor = torch.exp(uniform(axes) * math.log(jitter) + uniform(1) * math.log(rescale))
    return coords * factor + uniform(axes) * shift


def _check_camera(depth: Tensor, intrinsics: Tensor, pose: Tensor | None) -> None:
    check_tensor("depth", depth)
    check_tensor("intrinsics", intrinsics)
    matrices = {"intrinsics": (intrinsics, 3)}
    if pose is not None:
        check_tensor("pose", pose)
        matrices["pose"] = (pose, 4)
    lead = tuple(depth.shape[:-2])
    for what, (matrix, size) in matrices.items():
        before = tuple(matrix.shape[:-2])
        fits = matrix.shape[-2:] == (size, size) and before in (lead, lead[1:], ())
        if len(lead) not in (1, 2) or not fits:
            raise ValueError(
                f"back-projection needs depth (b, H, W) and {what} ({size}, {size}) or (b, {size}, {size}), or depth "
                f"(b, v, H, W) and {what} (v, {size}, {size}) or (b, v, {size}, {size}) for v cameras, "
                f"got {tuple(depth.shape)} and {tuple(matrix.shape)}"
            )
        if not matrix.is_floating_point():
            raise ValueError(f"{what} must be floats, got {matrix.dtype}")
    if not depth.is_floating_point():
        raise ValueError(f"depth must be floats, in metres, got {depth.dtype}")
    check_finite("intrinsics", intrinsics)
    if pose is not None:
        check_finite("pose", pose)
    _check_values(intrinsics, pose)


def _check_values(intrinsics: Tensor, pose: Tensor | None) -> None:
    """Refuse cameras that cannot be, where values can be read (see `checks.can_read`)."""
    if can_read(intrinsics) and not (intrinsics.diagonal(dim1=-2, dim2=-1)[..., :2] > 0).all():
        raise ValueError(
            "focal lengths fx and fy must be positive: intrinsics are [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]"
        )
    if pose is None or not can_read(pose):
        return
    turn, last = pose[..., :3, :3], pose[..., 3, :]
    rigid = (turn @ turn.mT - torch.eye(3, dtype=pose.dtype)).abs().max() < 1e-2 and (torch.linalg.det(turn) > 0).all()
    if not rigid or not (last == torch.eye(4, dtype=pose.dtype)[3]).all():
        raise ValueError(
            "pose must be rigid, world from camera: a rotation and a translation in metres, with the last row 0 0 0 1"
        )


def _patch(patch_size: int | tuple[int, int]) -> tuple[int, int]:
    pair = patch_size if isinstance(patch_size, (tuple, list)) else (patch_size, patch_size)
    if len(pair) != 2:
        raise ValueError(f"patch_size must be one number, or a height and a width, got {patch_size}")
    for size in pair:
        check_count("patch_size", size)
    return pair[0], pair[1]


@dataclass(frozen=True)
class Group:
    """An Abelian group acting on points, and coordinates in which it acts by translation (extension 2 of the paper).

    chart: ρ, points (…, D) to canonical coordinates (…, c). act: T, (points, ψ) to points, with ψ (k,) or (…, k), such
    that ρ(T_ψ x) = ρ(x) + ψ on the axes `moves`. periodic: axes of ρ that are angles; pass them to the encoding. Supply
    your own in the same way; `stringpe.testing.canonical_error` checks it.
    """

    chart: Callable[[Tensor], Tensor]
    act: Callable[[Tensor, Tensor], Tensor]
    moves: Sequence[int]
    periodic: Sequence[int] = ()


def polar(points: Tensor) -> Tensor:
    """(x, y) to (radius, φ), φ = atan2(y, x): rotation about the origin shifts φ. φ has period 2π (periodic=(1,))."""
    x, y = _columns(points, 2)
    return torch.stack([_hypot(x, y), _angle(y, x)], dim=-1)


def log_polar(points: Tensor) -> Tensor:
    """(x, y) to (log radius, φ): rotation and scaling of the plane shift φ and log radius; the origin is (0, 0)."""
    x, y = _columns(points, 2)
    return torch.stack([_safe_log(_hypot(x, y)), _angle(y, x)], dim=-1)


def spherical(points: Tensor, *, radius: bool = False) -> Tensor:
    """(x, y, z) to (θ, φ) with sin θ = √(x² + y²) / ‖r‖ and tan φ = y / x (section 3.3), or (θ, φ, log ‖r‖).

    θ ∈ [0, π] is the angle from the z axis, φ the azimuth. Azimuthal and polar rotations shift them; with the radius,
    scaling shifts its logarithm. φ is periodic.
    """
    x, y, z = _columns(points, 3)
    across = _hypot(x, y)
    columns = [_angle(across, z), _angle(y, x)]
    return torch.stack([*columns, _safe_log(_hypot(across, z))] if radius else columns, dim=-1)


def cylindrical(points: Tensor) -> Tensor:
    """(x, y, z) to (radius, φ, z): rotation about the z axis shifts φ, translation along it shifts z. φ is periodic."""
    x, y, z = _columns(points, 3)
    return torch.stack([_hypot(x, y), _angle(y, x), z], dim=-1)


def _turn(points: Tensor, angle: Tensor) -> Tensor:
    """Rotate the first two columns of points by an angle."""
    x, y, *rest = points.unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([x * cos - y * sin, x * sin + y * cos, *rest], dim=-1)


def _turn_sphere(points: Tensor, psi: Tensor) -> Tensor:
    """Polar rotation by ψ_0 along each point's own meridian, then azimuthal rotation by ψ_1."""
    across, z = _hypot(points[..., 0], points[..., 1]), points[..., 2]
    meridian = _turn(torch.stack([z, across], dim=-1), psi[..., 0])
    moved = _turn(torch.stack([meridian[..., 1], torch.zeros_like(z)], dim=-1), _angle(points[..., 1], points[..., 0]))
    return _turn(torch.cat([moved, meridian[..., :1]], dim=-1), psi[..., 1])


GROUPS = {
    "polar": Group(polar, lambda x, psi: _turn(x, psi[..., 0]), moves=(1,), periodic=(1,)),
    "log_polar": Group(
        log_polar, lambda x, psi: _turn(x, psi[..., 1]) * psi[..., :1].exp(), moves=(0, 1), periodic=(1,)
    ),
    "spherical": Group(spherical, _turn_sphere, moves=(0, 1), periodic=(1,)),
    "cylindrical": Group(
        cylindrical,
        lambda x, psi: _turn(x, psi[..., 0]) + F.pad(psi[..., 1:], (2, 0)),
        moves=(1, 2),
        periodic=(1,),
    ),
}


def _columns(points: Tensor, count: int) -> tuple[Tensor, ...]:
    check_tensor("points", points)
    if points.shape[-1:] != (count,) or not points.is_floating_point():
        raise ValueError(f"points must be (…, {count}) floats, got {points.dtype} {tuple(points.shape)}")
    return points.unbind(-1)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    """√(x² + y²), with gradient 0 where it has none: a prefix token sits at the origin."""
    origin = (x == 0) & (y == 0)
    return torch.where(origin, 0, torch.hypot(torch.where(origin, 1, x), y))


def _angle(y: Tensor, x: Tensor) -> Tensor:
    """atan2(y, x), 0 at the origin with gradient 0."""
    origin = (x == 0) & (y == 0)
    return torch.where(origin, 0, torch.atan2(y, torch.where(origin, 1, x)))


def _safe_log(radius: Tensor) -> Tensor:
    return torch.where(radius == 0, 0, torch.where(radius == 0, 1, radius).log())
