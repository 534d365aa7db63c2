"""The words the catalogue is written in: parts of an object, in metres, standing where they are said to stand.

Object frame: x to its right, y to its back (its front looks along −y), z up; the origin is wherever the author likes,
since every kind is re-centred on its bounding box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import solids

Vector = tuple[float, float, float]

_FRAMES = {  # columns: where the solid's own x, y, z point in the object frame
    "z": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "x": ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
    "y": ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
    "-y": ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)),
}


@dataclass(frozen=True)
class Part:
    """One solid of an object: `size` (w, d, h) along the object's axes before `tilt`, `at` the middle of its bottom.

    `axis` is the object axis along which the solid's own z runs (the axis of a cylinder, the mouth of a cavity);
    `tilt` turns the part about its centre by degrees around x, then y, then z.
    """

    shape: solids.Quadric
    at: Vector
    size: Vector
    paint: str = "body"
    axis: str = "z"
    tilt: Vector = (0.0, 0.0, 0.0)
    cavity: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def _own_half(self) -> list[float]:
        """Half sizes along the solid's own axes."""
        frame = torch.tensor(_FRAMES[self.axis])  # row k: own axis k in the object frame
        half: list[float] = (frame.abs() @ torch.tensor(self.size) / 2).tolist()
        return half

    def hollow(self, wall: float, floor: float | None = None) -> Part:
        """Open at own +z: a cavity that leaves a wall and a floor of the given thickness in metres."""
        hx, hy, hz = self._own_half()
        return replace(self, cavity=(hx / (hx - wall), hy / (hy - wall), 1.0, (wall if floor is None else floor) / hz))

    def tube(self, wall: float) -> Part:
        """Open at both ends of its own z."""
        hx, hy, _ = self._own_half()
        return replace(self, cavity=(hx / (hx - wall), hy / (hy - wall), 0.98, 0.0))

    def placed(self) -> tuple[Tensor, Tensor]:
        """Object from own coordinates: the matrix (3, 3) and the centre (3,), in metres."""
        frame = torch.tensor(_FRAMES[self.axis], dtype=torch.float64).T
        half = torch.tensor(self._own_half(), dtype=torch.float64)
        centre = torch.tensor(self.at, dtype=torch.float64) + torch.tensor([0.0, 0.0, self.size[2] / 2])
        return _rotation(self.tilt) @ frame * half, centre


def _rotation(degrees: Vector) -> Tensor:
    turn = torch.eye(3, dtype=torch.float64)
    for axis, angle in enumerate(degrees):
        c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        step = torch.eye(3, dtype=torch.float64)
        i, j = (axis + 1) % 3, (axis + 2) % 3
        step[i, i], step[i, j], step[j, i], step[j, j] = c, -s, s, c
        turn = step @ turn
    return turn


def box(at: Vector, size: Vector, paint: str = "body", axis: str = "z", tilt: Vector = (0.0, 0.0, 0.0)) -> Part:
    return Part(solids.BOX, at, size, paint, axis, tilt)


def pillow(at: Vector, size: Vector, paint: str = "body", tilt: Vector = (0.0, 0.0, 0.0)) -> Part:
    return Part(solids.PILLOW, at, size, paint, "z", tilt)


def ball(at: Vector, size: Vector, paint: str = "body", tilt: Vector = (0.0, 0.0, 0.0)) -> Part:
    return Part(solids.BALL, at, size, paint, "z", tilt)


def rod(at: Vector, size: Vector, paint: str = "body", axis: str = "z", tilt: Vector = (0.0, 0.0, 0.0)) -> Part:
    """A cylinder along `axis`."""
    return Part(solids.CYLINDER, at, size, paint, axis, tilt)


def round_part(shape: solids.Quadric, at: Vector, width: float, height: float, paint: str = "body") -> Part:
    """An upright body of revolution of the given shape and widest diameter."""
    return Part(shape, at, (width, width, height), paint)


def legs(width: float, depth: float, height: float, thick: float, paint: str = "wood") -> tuple[Part, ...]:
    """Four square legs whose outer faces enclose width × depth."""
    x, y = (width - thick) / 2, (depth - thick) / 2
    return tuple(box((i * x, j * y, 0.0), (thick, thick, height), paint) for i in (-1, 1) for j in (-1, 1))
