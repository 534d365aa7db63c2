"""The kinds of object that stand on the floor or hang on the wall."""

from __future__ import annotations

from . import solids
from .object_kinds import CLOTH, TIMBER, Kind, Part, Top, ball, box, legs, pillow, rod, round_part

SOFT = ("fabric", "leather")


def _seat(width: float, depth: float, cushions: int) -> tuple[Part, ...]:
    """A sofa or an armchair: base, back, two arms and cushions."""
    inner = width - 0.36
    cushion_width = inner / cushions
    places = [(k - (cushions - 1) / 2) * cushion_width for k in range(cushions)]
    return (
        box((0, 0, 0.08), (width - 0.04, depth - 0.04, 0.2)),
        pillow((0, depth / 2 - 0.13, 0.1), (width - 0.1, 0.24, 0.74)),
        *(pillow((s * (width / 2 - 0.1), -0.02, 0.08), (0.2, depth - 0.04, 0.52)) for s in (-1, 1)),
        *(pillow((x, -0.1, 0.26), (cushion_width - 0.01, depth - 0.26, 0.2), "accent") for x in places),
        *(rod((s * (width / 2 - 0.12), t * (depth / 2 - 0.1), 0), (0.05, 0.05, 0.1), "dark wood")
          for s in (-1, 1) for t in (-1, 1)),
    )


def _table(width: float, depth: float, height: float, thick: float) -> tuple[Part, ...]:
    plate = box((0, 0, height - 0.04), (width, depth, 0.04))
    return (plate, *legs(width - 0.06, depth - 0.06, height - 0.04, thick, "body"))


def _round_table(width: float, height: float) -> tuple[Part, ...]:
    return (
        round_part(solids.CYLINDER, (0, 0, height - 0.035), width, 0.035),
        rod((0, 0, 0.03), (0.08, 0.08, height - 0.06), "iron"),
        round_part(solids.DOME, (0, 0, 0), width * 0.55, 0.05, "iron"),
    )


def _drawers(width: float, depth: float, height: float, rows: int, columns: int) -> tuple[Part, ...]:
    """A chest of drawers: a body on a plinth, with drawer fronts and handles."""
    w, h = width / columns, (height - 0.1) / rows
    spots = [((i - (columns - 1) / 2) * w, 0.09 + j * h) for i in range(columns) for j in range(rows)]
    return (
        box((0, 0.01, 0.06), (width, depth - 0.02, height - 0.06)),
        box((0, 0.02, 0), (width - 0.06, depth - 0.08, 0.07), "black"),
        *(box((x, -depth / 2 + 0.01, z), (w - 0.03, 0.03, h - 0.03), "accent") for x, z in spots),
        *(rod((x, -depth / 2 - 0.012, z + h * 0.6), (0.1, 0.02, 0.02), "steel", "x") for x, z in spots),
    )


_CHAIR_LEGS = legs(0.4, 0.4, 0.43, 0.04, "body")
_CHAIRS = (
    (
        *_CHAIR_LEGS,
        pillow((0, 0, 0.42), (0.44, 0.44, 0.06), "accent"),
        box((0, 0.2, 0.62), (0.42, 0.03, 0.3), tilt=(-6, 0, 0)),
        *(box((s * 0.18, 0.19, 0.42), (0.035, 0.03, 0.36)) for s in (-1, 1)),
    ),
    (
        *_CHAIR_LEGS,
        box((0, 0, 0.42), (0.42, 0.42, 0.035), "accent"),
        *(box((x, 0.19, 0.44), (0.03, 0.025, 0.4)) for x in (-0.17, -0.06, 0.06, 0.17)),
        box((0, 0.19, 0.82), (0.42, 0.03, 0.08)),
    ),
)

_OFFICE_CHAIR = (
    pillow((0, -0.02, 0.44), (0.48, 0.48, 0.1)),
    pillow((0, 0.24, 0.58), (0.44, 0.1, 0.52), tilt=(-6, 0, 0)),
    box((0, 0.25, 0.47), (0.07, 0.03, 0.2), "black"),
    rod((0, 0, 0.08), (0.06, 0.06, 0.38), "steel"),
    box((0, 0, 0.05), (0.6, 0.05, 0.04), "black", tilt=(0, 0, 20)),
    box((0, 0, 0.05), (0.6, 0.05, 0.04), "black", tilt=(0, 0, 80)),
    box((0, 0, 0.05), (0.6, 0.05, 0.04), "black", tilt=(0, 0, 140)),
    *(box((s * 0.26, 0, 0.6), (0.05, 0.26, 0.03), "black") for s in (-1, 1)),
    *(box((s * 0.26, 0.02, 0.48), (0.03, 0.04, 0.14), "black") for s in (-1, 1)),
)


def _bookcase(width: float, height: float, levels: int) -> tuple[Part, ...]:
    """A case that is open at the front, with shelves and rows of books as parts of it."""
    pitch = height / levels
    paints = ("red book", "blue book", "ochre book", "green book", "paper")
    books = [
        box(((-0.3 if k % 2 else 0.12) * width + 0.02 * k, 0.02, k * pitch + 0.03),
            (0.26 * width + 0.02 * (k % 3), 0.2, pitch * (0.62 + 0.06 * (k % 2))), paints[k % 5])
        for k in range(levels)
    ]
    return (
        box((0, 0, 0), (width, 0.3, height), axis="-y").hollow(0.025, 0.015),
        *(box((0, 0.01, k * pitch), (width - 0.03, 0.26, 0.025)) for k in range(1, levels)),
        *books,
    )


def _plant(leaves: tuple[tuple[float, float, float, float, float], ...]) -> tuple[Part, ...]:
    """A pot with soil and a bush; each of `leaves` is (x, y, z of its bottom, width, height)."""
    blobs = [ball((x, y, z), (w, w, h), "leaf" if k % 2 else "young leaf", (8.0 * (-1) ** k, 10.0 * (k % 3 - 1), 0))
             for k, (x, y, z, w, h) in enumerate(leaves)]
    return (
        round_part(solids.taper(0.72, 1.0), (0, 0, 0), 0.34, 0.32).hollow(0.02),
        rod((0, 0, 0.02), (0.27, 0.27, 0.25), "soil"),
        rod((0, 0, 0.25), (0.04, 0.04, 0.4), "wood"),
        *blobs,
    )


FURNITURE: tuple[Kind, ...] = (
    Kind("sofa", (_seat(1.9, 0.88, 2), _seat(2.2, 0.92, 3)), SOFT, CLOTH, "floor"),
    Kind("armchair", (_seat(0.88, 0.85, 1),), SOFT, CLOTH, "floor"),
    Kind("chair", _CHAIRS, ("wooden", "metal", "plastic"), place="floor", scale=(0.92, 1.08), stretch=0.05),
    Kind("office chair", (_OFFICE_CHAIR,), SOFT, CLOTH, "floor", (0.95, 1.05), 0.04),
    Kind("stool", (
        (round_part(solids.CYLINDER, (0, 0, 0.45), 0.36, 0.05), *legs(0.27, 0.27, 0.46, 0.035, "body")),
        (pillow((0, 0, 0.42), (0.38, 0.38, 0.08), "accent"), *legs(0.34, 0.34, 0.44, 0.035, "body")),
    ), ("wooden", "metal"), TIMBER, "floor"),
    Kind("ottoman", (
        (pillow((0, 0, 0.06), (0.6, 0.6, 0.36)), *legs(0.44, 0.44, 0.1, 0.05, "dark wood")),
        (round_part(solids.barrel(0.85), (0, 0, 0), 0.56, 0.38),),
    ), SOFT, CLOTH, "floor"),
    Kind("table", (_table(1.5, 0.85, 0.74, 0.07), _table(1.15, 0.95, 0.74, 0.06)), ("wooden", "metal"), TIMBER, "floor",
         (0.92, 1.15), 0.08, top=Top()),
    Kind("round table", (_round_table(1.15, 0.74),), ("wooden", "plastic"), TIMBER, "floor", stretch=0.0,
         top=Top(0.69, 0.69)),
    Kind("coffee table", (
        _table(1.05, 0.6, 0.42, 0.05),
        (*_table(1.0, 0.6, 0.44, 0.05), box((0, 0, 0.14), (0.9, 0.5, 0.025), "accent")),
    ), ("wooden", "metal"), TIMBER, "floor", top=Top()),
    Kind("side table", (_round_table(0.45, 0.55), _table(0.42, 0.42, 0.55, 0.04)), ("wooden", "metal"), TIMBER,
         "floor", stretch=0.04, top=Top(0.68, 0.68)),
    Kind("desk", (
        (box((0, 0, 0.7), (1.35, 0.65, 0.035)), box((0.5, 0.02, 0), (0.32, 0.56, 0.7)),
         *(box((0.5, -0.28, 0.06 + 0.21 * k), (0.28, 0.03, 0.19), "accent") for k in range(3)),
         *(box((-0.62, y, 0), (0.05, 0.05, 0.7)) for y in (-0.28, 0.28))),
    ), ("wooden",), TIMBER, "floor", top=Top()),
    Kind("bookcase", (_bookcase(0.8, 1.85, 5), _bookcase(0.95, 1.2, 3)), ("wooden",), TIMBER, "floor", (0.92, 1.1)),
    Kind("cabinet", (_drawers(1.2, 0.42, 0.75, 2, 2), _drawers(0.8, 0.42, 1.0, 3, 1)), ("wooden",), TIMBER, "floor",
         top=Top()),
    Kind("nightstand", (_drawers(0.45, 0.4, 0.52, 2, 1),), ("wooden",), TIMBER, "floor", top=Top()),
    Kind("television", (
        (box((0, 0, 0), (1.3, 0.36, 0.42)), box((0, -0.17, 0.05), (1.22, 0.03, 0.32), "accent"),
         box((0, 0.02, 0.42), (0.36, 0.18, 0.02), "black"), box((0, 0.04, 0.43), (0.08, 0.04, 0.1), "black"),
         box((0, 0.02, 0.5), (1.12, 0.05, 0.66), "black"), box((0, -0.006, 0.52), (1.08, 0.01, 0.62), "screen")),
    ), ("wooden",), TIMBER, "floor", coloured=False),
    Kind("floor lamp", (
        (round_part(solids.DOME, (0, 0, 0), 0.3, 0.04, "iron"), rod((0, 0, 0.03), (0.03, 0.03, 1.35), "iron"),
         round_part(solids.taper(1.0, 0.65), (0, 0, 1.32), 0.42, 0.3, "shade").tube(0.008)),
        (round_part(solids.CYLINDER, (0, 0, 0), 0.26, 0.03), rod((0, 0, 0.03), (0.025, 0.025, 1.45)),
         ball((0, 0, 1.4), (0.3, 0.3, 0.3), "shade")),
    ), ("metal",), ("black", "white", "grey", "brown"), "floor", stretch=0.0, coloured=False),
    Kind("plant", (
        _plant(((0, 0, 0.55, 0.5, 0.5), (0.16, 0.05, 0.42, 0.36, 0.36), (-0.15, 0.08, 0.46, 0.36, 0.4),
                (0.02, -0.16, 0.44, 0.36, 0.36), (0.02, 0.17, 0.5, 0.34, 0.36))),
        _plant(((0, 0, 0.5, 0.16, 0.75), (0.13, 0.02, 0.42, 0.14, 0.6), (-0.13, 0.02, 0.42, 0.14, 0.62),
                (0, 0.13, 0.42, 0.14, 0.58), (0, -0.13, 0.42, 0.14, 0.56))),
    ), ("ceramic", "plastic"), place="floor", scale=(0.75, 1.2), stretch=0.03, coloured=False),
    Kind("bin", (
        (round_part(solids.taper(0.8, 1.0), (0, 0, 0), 0.28, 0.32).hollow(0.008),),
        (box((0, 0, 0), (0.3, 0.24, 0.36)).hollow(0.008),),
    ), ("metal", "plastic"), place="floor"),
    Kind("basket", (
        (round_part(solids.barrel(0.85), (0, 0, 0), 0.42, 0.3).hollow(0.02),
         *(box((s * 0.19, 0, 0.24), (0.05, 0.12, 0.09), axis="x").tube(0.015) for s in (-1, 1))),
    ), ("fabric", "natural"), ("beige", "brown", "grey", "white"), "floor"),
    Kind("painting", (
        (box((0, 0, 0), (0.8, 0.03, 0.6)), box((0, -0.012, 0.04), (0.72, 0.016, 0.52), "sea"),
         box((0, -0.015, 0.04), (0.72, 0.014, 0.2), "hill"),
         rod((0.16, -0.015, 0.36), (0.12, 0.012, 0.12), "sun", "y")),
        (box((0, 0, 0), (0.5, 0.03, 0.7)), box((0, -0.012, 0.04), (0.42, 0.016, 0.62), "white"),
         rod((0, -0.015, 0.26), (0.26, 0.012, 0.3), "accent", "y"),
         box((0, -0.015, 0.1), (0.3, 0.012, 0.08), "accent")),
    ), ("wooden",), TIMBER, "wall", coloured=False),
    Kind("wall clock", (
        (rod((0, 0, 0), (0.34, 0.03, 0.34), axis="y"), rod((0, -0.012, 0.02), (0.3, 0.016, 0.3), "white", "y"),
         box((0, -0.018, 0.165), (0.015, 0.01, 0.1), "black"), box((0.04, -0.018, 0.15), (0.09, 0.01, 0.018), "black")),
    ), ("plastic", "metal"), place="wall", stretch=0.0),
)
