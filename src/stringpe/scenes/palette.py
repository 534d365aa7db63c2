"""Colours, materials, patterns and paints: what a surface looks like, as data.

A *colour* is an attribute of an object (its name goes into captions). A *material* says how the surface shines and
which patterns it may wear. A *paint* is what one part of an object is covered with: `body` and `accent` take the
object's own colours, every other paint is fixed (leaves are green on any plant).
"""

from __future__ import annotations

from dataclasses import dataclass

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
"""Named colours in sRGB; each object wears a small jitter of one of them."""

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
    """A fixed covering. `glow` is light the surface gives off by itself."""

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
