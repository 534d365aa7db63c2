"""What a kind of object is: its variants as parts, what it may look like, where it may stand, what may stand on it."""

from __future__ import annotations

from dataclasses import dataclass

from .palette import COLOURS
from .parts import Part

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
    place: str = "table"  # table, flat (a table object that carries others), floor or wall
    scale: tuple[float, float] = (0.88, 1.15)
    stretch: float = 0.08
    lies: float = 0.0  # the probability that it lies on its back: y up
    top: Top | None = None
    coloured: bool = True  # its body is what a person would name its colour by
