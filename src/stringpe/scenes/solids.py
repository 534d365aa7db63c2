"""The solid that every object is made of, and the depth at which a ray enters it.

A solid is convex: in solid coordinates (x, y, z), its own, it is the cube [−1, 1]³ cut by one quadric of revolution,

    q_r (x² + y²) + q_z z² + l z + c ≤ 0        with q_r, q_z ≥ 0,

and it may have a cavity: the same solid again, in the coordinates (k_x x, k_y y, k_z (z − s)), taken away. One formula
then covers boxes, balls, cylinders, tapered cylinders, domes, bowls, barrels, pillows, and with a cavity cups, tubes,
trays and shelves. An affine map carries the solid into the world; rays are carried back, which leaves the ray
parameter t untouched, so stretching and even shearing a solid costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

Quadric = tuple[float, float, float, float]
"""(q_r, q_z, l, c)."""

_FLAT = 1e-8
"""Used in place of zero curvature: the quadric then closes 10⁴ half sizes away, and no root is 0/0."""

_TINY = 1e-20
"""Added to directions, so that a ray that lies exactly in a middle plane gives 0 · 10²⁰ and not 0 · ∞."""

BOX: Quadric = (_FLAT, _FLAT, 0.0, -1.0)
CYLINDER: Quadric = (1.0, _FLAT, 0.0, -1.0)
BALL: Quadric = (1.0, 1.0, 0.0, -1.0)
DOME: Quadric = (1.0, 0.25, 0.5, -0.75)
"""The upper half of a ball: widest at the bottom face."""
BOWL: Quadric = (1.0, 0.25, -0.5, -0.75)
"""The lower half of a ball: widest at the top face."""
PILLOW: Quadric = (0.46, 0.46, 0.0, -1.0)
"""A box with its edges and corners cut round."""


def taper(bottom: float, top: float) -> Quadric:
    """A tapered cylinder: a paraboloid of radius `bottom` at z = −1 and `top` at z = 1 (the larger should be 1)."""
    return (1.0, _FLAT, (bottom**2 - top**2) / 2, -(bottom**2 + top**2) / 2)


def barrel(end: float) -> Quadric:
    """A ball cut off at both ends, where its radius is `end`."""
    return (1.0, 1.0 - end**2, 0.0, -1.0)


@dataclass(frozen=True)
class Solids:
    """A table of solids seen from a pinhole (a camera, or a light): n rows.

    A ray is p(t) = t (x, y, 1) in the frame of the pinhole, so that t is the depth. In solid coordinates
    p(t) = origin + t (axes · (x, y, 1)).

    rows: (n, 21), which hold axes (9), origin (3), middle (1), quadric (4) and cavity (4), so that one gather suffices.
    """

    rows: Tensor

    @classmethod
    def pack(cls, axes: Tensor, origin: Tensor, middle: Tensor, quadric: Tensor, cavity: Tensor) -> Solids:
        """From axes (n, 3, 3), origin (n, 3), the depth of the centre (n,), quadric (n, 4) and the cavity's k_x, k_y,
        k_z, s (n, 4), zeros where there is none."""
        return cls(torch.cat([axes.flatten(1), origin, middle[:, None], quadric, cavity], 1))

    def __getitem__(self, rows: Tensor) -> Solids:
        return Solids(self.rows[rows])


Triple = tuple[Tensor, Tensor, Tensor]


def _interval(o: Triple, d: Triple, quadric: Tensor) -> tuple[Tensor, Tensor]:
    """Where the lines o + τ d (in solid coordinates) enter and leave the convex solid; enter > leave on a miss."""
    q_r, q_z, linear, constant = quadric  # (n, 1) each
    a = torch.addcmul(q_z * d[2] * d[2], q_r, torch.addcmul(d[0] * d[0], d[1], d[1]))
    zz = torch.addcmul(0.5 * linear, q_z, o[2])
    b = torch.addcmul(zz * d[2], q_r, torch.addcmul(o[0] * d[0], o[1], d[1]))
    c = torch.addcmul(constant, q_r, torch.addcmul(o[0] * o[0], o[1], o[1]))
    c = torch.addcmul(c, zz + 0.5 * linear, o[2])
    root = torch.addcmul(b * b, a, c, value=-1).sqrt_()  # NaN on a miss, and comparisons with NaN are false
    # The sum of like signs keeps both roots accurate when a is nearly 0: a ray along a cylinder.
    q = (torch.copysign(root, b).add_(b)).neg_()
    first, second = q / a, c / q
    enter, leave = torch.minimum(first, second), torch.maximum(first, second)
    for o_k, d_k in zip(o, d, strict=True):
        inverse = (d_k + _TINY).reciprocal_()
        centre, reach = o_k * inverse, inverse.abs_()
        enter = torch.maximum(enter, (centre + reach).neg_())
        leave = torch.minimum(leave, reach.sub_(centre))
    return enter, leave


def entry(solids: Solids, x: Tensor, y: Tensor) -> Tensor:
    """The depth at which rays t (x, y, 1) enter their solid, infinite where they miss it: (n, r) for x, y (n, r).

    Row i of x and y holds r rays, all tested against solid i alone.
    """
    column = solids.rows.T[:, :, None]  # (21, n, 1)
    near, quadric, cavity = column[12], column[13:17], column[17:]
    d = tuple(torch.addcmul(torch.addcmul(column[k + 2], column[k + 1], y), column[k], x) for k in (0, 3, 6))
    # Start the ray beside the solid: a 1 cm leg seen from 5 m would otherwise lose its roots to cancellation.
    o = tuple(torch.addcmul(column[9 + k], near, d[k]) for k in range(3))
    enter, leave = _interval(o, d, quadric)  # type: ignore[arg-type]
    hollow = cavity[0, :, 0].nonzero()[:, 0]
    if len(hollow):
        k_x, k_y, k_z, shift = cavity[:, hollow]
        o_in = (o[0][hollow] * k_x, o[1][hollow] * k_y, (o[2][hollow] - shift) * k_z)
        d_in = (d[0][hollow] * k_x, d[1][hollow] * k_y, d[2][hollow] * k_z)
        start, end = _interval(o_in, d_in, quadric[:, hollow])
        outer = enter[hollow]
        enter[hollow] = torch.where((start <= outer) & (outer < end), end, outer)
    depth = enter + near
    return torch.where((enter < leave) & (depth > 0), depth, math.inf)


def support(quadric: Quadric, directions: Tensor) -> Tensor:
    """How far the solid reaches along each direction: the largest a · p over its points p, for
    a in `directions` (n, 3).

    The cross section at height z is a disc of radius r(z) clipped to the square [−1, 1]²; the maximum over z is taken
    on a grid that holds the ends and the middle, where axis-aligned solids touch their cube.
    """
    q_r, q_z, linear, constant = quadric
    z = torch.linspace(-1, 1, 2049, dtype=torch.float64)
    a = directions.double().abs()[..., :2]
    r = (-(q_z * z * z + linear * z + constant) / q_r).clamp(min=0).sqrt()  # (2049,)
    corner = (r * r - 1).clamp(0, 1).sqrt()
    norm = a.norm(dim=-1, keepdim=True)
    tip = r * a.amax(-1, keepdim=True) <= norm  # the disc's own extreme point lies in the square
    clipped = r.clamp(max=1) * a.amax(-1, keepdim=True) + corner * a.amin(-1, keepdim=True)
    flat = torch.where(tip, norm * r, clipped)
    reach: Tensor = (flat + directions.double()[..., 2:] * z).amax(-1)
    return reach
