"""The vocabulary that objects are described in: colours, materials, patterns, paints, parts and kinds.

A *colour* is an attribute of an object (its name goes into captions). A *material* says how the surface shines and
which patterns it may have. A *paint* covers one part of an object: `body` and `accent` take the object's own colours,
every other paint is fixed (leaves are green on any plant). A *part* is one solid, in metres. A *kind* is a named list
of variants, each made of parts, with its possible looks, where it may stand, and the surface it offers to others.

Object frame: x to its right, y to its back (its front looks along −y), z up; the origin may be anywhere, since every
kind is re-centred on its bounding box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import solids

RGB = tuple[float, float, float]

COLOURS: dict[str, RGB] = {
    "red": (0.78, 0.10, 0.10),
    "orange": (0.93, 0.47, 0.08),
    "yellow": (0.95, 0.80, 0.15),
    "green": (0.16, 0.55, 0.20),
    "teal": (0.07, 0.52, 0.53),
    "blue": (0.12, 0.29, 0.72),
    "purple": (0.45, 0.19, 0.60),
    "pink": (0.92, 0.50, 0.62),
    "brown": (0.45, 0.27, 0.14),
    "beige": (0.80, 0.70, 0.53),
    "white": (0.92, 0.91, 0.88),
    "grey": (0.50, 0.51, 0.53),
    "black": (0.09, 0.09, 0.10),
}
"""Named colours in sRGB; each object gets one of them with a small jitter."""

PATTERNS = ("plain", "stripes", "checks", "dots", "grain", "speckle", "planks", "tiles")
"""Procedural textures. A pattern mixes the surface's own colour with a second one."""


@dataclass(frozen=True)
class Material:
    """How a surface shines: `gloss` is the strength of the highlight, `sharpness` its exponent."""

    gloss: float
    sharpness: float
    patterns: tuple[str, ...]


MATERIALS: dict[str, Material] = {
    "wooden": Material(0.12, 20.0, ("grain",)),
    "metal": Material(0.90, 70.0, ("plain",)),
    "fabric": Material(0.00, 5.0, ("plain", "plain", "stripes", "checks", "speckle")),
    "leather": Material(0.25, 25.0, ("plain",)),
    "plastic": Material(0.35, 40.0, ("plain", "plain", "stripes")),
    "ceramic": Material(0.60, 60.0, ("plain", "plain", "stripes", "dots")),
    "glass": Material(1.00, 120.0, ("plain",)),
    "paper": Material(0.03, 8.0, ("plain", "stripes", "checks")),
    "natural": Material(0.15, 15.0, ("plain", "speckle")),
}


@dataclass(frozen=True)
class Paint:
    """The look of a part, whatever its object. `glow` is the light that the surface emits."""

    colour: RGB
    pattern: str = "plain"
    gloss: float = 0.1
    sharpness: float = 20.0
    glow: float = 0.0


PAINTS: dict[str, Paint] = {
    "body": Paint((1.0, 1.0, 1.0)),
    "accent": Paint((1.0, 1.0, 1.0)),
    "wood": Paint((0.50, 0.33, 0.18), "grain", 0.12),
    "dark wood": Paint((0.26, 0.15, 0.08), "grain", 0.15),
    "steel": Paint((0.62, 0.63, 0.65), gloss=0.9, sharpness=60.0),
    "iron": Paint((0.13, 0.13, 0.14), gloss=0.3),
    "black": Paint((0.05, 0.05, 0.06), gloss=0.4, sharpness=50.0),
    "screen": Paint((0.06, 0.09, 0.16), gloss=1.0, sharpness=150.0, glow=0.06),
    "white": Paint((0.90, 0.90, 0.88), gloss=0.3),
    "paper": Paint((0.90, 0.88, 0.80), "stripes", 0.0),
    "leaf": Paint((0.14, 0.42, 0.13), "speckle", 0.2),
    "young leaf": Paint((0.30, 0.56, 0.18), "speckle", 0.2),
    "soil": Paint((0.16, 0.10, 0.06), "speckle", 0.0),
    "coffee": Paint((0.17, 0.08, 0.04), gloss=0.7, sharpness=80.0),
    "shade": Paint((0.98, 0.90, 0.70), gloss=0.0, glow=0.55),
    "flame": Paint((1.00, 0.80, 0.35), gloss=0.0, glow=1.0),
    "rubber": Paint((0.07, 0.07, 0.07), gloss=0.05),
    "skin": Paint((0.90, 0.76, 0.25), "plain", 0.15),
    "crust": Paint((0.72, 0.48, 0.22), "speckle", 0.02),
    "red book": Paint((0.60, 0.13, 0.13), gloss=0.05),
    "blue book": Paint((0.13, 0.25, 0.50), gloss=0.05),
    "green book": Paint((0.16, 0.38, 0.24), gloss=0.05),
    "ochre book": Paint((0.75, 0.55, 0.20), gloss=0.05),
    "sea": Paint((0.25, 0.48, 0.62), "plain", 0.05),
    "sun": Paint((0.93, 0.72, 0.30), "plain", 0.05),
    "hill": Paint((0.30, 0.45, 0.25), "plain", 0.05),
}


Vector = tuple[float, float, float]

_FRAMES = {  # row k: the direction of the solid's axis k in the object frame
    "z": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "x": ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
    "y": ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)),
    "-y": ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)),
}


@dataclass(frozen=True)
class Part:
    """One solid of an object: `size` (w, d, h) along the object's axes before `tilt`, `at` the middle of its bottom.

    `axis` is the object axis along which the solid's z axis runs (the axis of a cylinder, the mouth of a cavity);
    `tilt` turns the part about its centre by degrees around x, then y, then z.
    """

    shape: solids.Quadric
    at: Vector
    size: Vector
    paint: str = "body"
    axis: str = "z"
    tilt: Vector = (0.0, 0.0, 0.0)
    cavity: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)

    def _half_sizes(self) -> list[float]:
        """Half sizes along the axes of the solid."""
        frame = torch.tensor(_FRAMES[self.axis])
        half: list[float] = (frame.abs() @ torch.tensor(self.size) / 2).tolist()
        return half

    def hollow(self, wall: float, floor: float | None = None) -> Part:
        """This part, open at the +z end of its solid: the cavity leaves a wall and a floor this thick, in metres."""
        hx, hy, hz = self._half_sizes()
        return replace(self, cavity=(hx / (hx - wall), hy / (hy - wall), 1.0, (wall if floor is None else floor) / hz))

    def tube(self, wall: float) -> Part:
        """This part, open at both ends of its solid's z axis."""
        hx, hy, _ = self._half_sizes()
        return replace(self, cavity=(hx / (hx - wall), hy / (hy - wall), 0.98, 0.0))

    def place(self) -> tuple[Tensor, Tensor]:
        """Object from solid coordinates: the matrix (3, 3) and the centre (3,), in metres."""
        frame = torch.tensor(_FRAMES[self.axis], dtype=torch.float64).T
        half = torch.tensor(self._half_sizes(), dtype=torch.float64)
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


CLOTH = ("red", "green", "teal", "blue", "purple", "beige", "white", "grey", "brown", "pink")
TIMBER = ("brown", "beige", "white", "black", "grey")


@dataclass(frozen=True)
class Top:
    """The surface a kind offers to others: a rectangle, in fractions of the half width, half depth and height."""

    width: float = 0.94
    depth: float = 0.94
    height: float = 1.0


@dataclass(frozen=True)
class Kind:
    """A named kind. Each variant is a tuple of parts in metres; an object scales one of them by `scale` as a whole and
    by up to ± `stretch` along each axis."""

    name: str
    variants: tuple[tuple[Part, ...], ...]
    materials: tuple[str, ...]
    colours: tuple[str, ...] = tuple(COLOURS)
    place: str = "table"  # table, flat (on a table, and carries others), floor or wall
    scale: tuple[float, float] = (0.88, 1.15)
    stretch: float = 0.08
    lies: float = 0.0  # the probability that it lies on its back, with its y axis up
    top: Top | None = None
    coloured: bool = True  # whether people would name its colour after its body
