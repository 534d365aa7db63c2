"""Every variant of every kind of object as tensors.

A *template* is one variant. Its parts are stored in the box frame of the object: the box is [−½, ½]³, so an object of
size s, rotation R and centre c has a part at R diag(s) (frame, centre) + c, and its oriented box is tight whatever
the size. `assembly` transforms the parts of all objects of a batch to the world frame.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..io.registry import look_up
from . import solids
from .furniture import FURNITURE
from .object_kinds import COLOURS, MATERIALS, PAINTS, PATTERNS, Kind, Part
from .tableware import TABLEWARE

ALL_KINDS: tuple[Kind, ...] = FURNITURE + TABLEWARE
_NUMBER = {kind.name: number for number, kind in enumerate(ALL_KINDS)}


def kinds() -> tuple[str, ...]:
    """The names of all kinds; a kind's index in this tuple is its class number everywhere."""
    return tuple(kind.name for kind in ALL_KINDS)


def kind_number(name: str) -> int:
    """The class number of a kind."""
    return look_up("kind of object", name, _NUMBER)


@dataclass(frozen=True)
class Templates:
    """k kinds, t templates, at most p parts per template. Lists of choices are padded: draw below their count."""

    # per template
    frame: Tensor  # (t, p, 3, 3) box frame from solid coordinates
    inverse: Tensor  # (t, p, 3, 3)
    centre: Tensor  # (t, p, 3)
    quadric: Tensor  # (t, p, 4)
    cavity: Tensor  # (t, p, 4)
    paint: Tensor  # (t, p) index into PAINTS; −1 where the template has fewer parts
    nominal: Tensor  # (t, 3) size in metres
    # per kind
    first: Tensor  # (k,) first template
    variants: Tensor  # (k,)
    scale: Tensor  # (k, 2)
    stretch: Tensor  # (k,)
    lies: Tensor  # (k,)
    top: Tensor  # (k, 3) the surface it offers, see object_kinds.Top; zeros for kinds without one
    materials: Tensor  # (k, 4)
    material_count: Tensor  # (k,)
    colours: Tensor  # (k, len(COLOURS))
    colour_count: Tensor  # (k,)
    # per material
    patterns: Tensor  # (m, 5)
    pattern_count: Tensor  # (m,)

    def to(self, device: torch.device) -> Templates:
        return Templates(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def _template(parts: Sequence[Part], width: int) -> dict[str, Tensor]:
    """Normalise the parts of one variant to the unit box and pad them to `width` rows."""
    placed = [part.place() for part in parts]
    # Row k of the matrix (object from solid) is the object's axis k in solid coordinates: the support along it says how
    # far the part reaches along that axis.
    high = torch.stack([c + solids.support(part.shape, m) for part, (m, c) in zip(parts, placed, strict=True)]).amax(0)
    low = torch.stack([c - solids.support(part.shape, -m) for part, (m, c) in zip(parts, placed, strict=True)]).amin(0)
    size, middle = high - low, (high + low) / 2
    frame = torch.eye(3, dtype=torch.float64).repeat(width, 1, 1)
    centre = torch.zeros(width, 3, dtype=torch.float64)
    quadric = torch.tensor(solids.BOX, dtype=torch.float64).repeat(width, 1)
    cavity = torch.zeros(width, 4, dtype=torch.float64)
    paint = torch.full((width,), -1)
    names = list(PAINTS)
    for row, (part, (m, c)) in enumerate(zip(parts, placed, strict=True)):
        frame[row], centre[row] = m / size[:, None], (c - middle) / size
        quadric[row], cavity[row] = torch.tensor(part.shape), torch.tensor(part.cavity)
        paint[row] = names.index(part.paint)
    return {
        "frame": frame,
        "inverse": frame.inverse(),
        "centre": centre,
        "quadric": quadric,
        "cavity": cavity,
        "paint": paint,
        "nominal": size,
    }


def _choices(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Lists of different lengths as one padded table, and their lengths."""
    width = max(len(row) for row in rows)
    return torch.tensor([[*row] + [row[0]] * (width - len(row)) for row in rows]), torch.tensor([len(r) for r in rows])


@functools.cache
def _build() -> Templates:
    variants = [parts for kind in ALL_KINDS for parts in kind.variants]
    width = max(len(parts) for parts in variants)
    templates = [_template(parts, width) for parts in variants]
    table = {name: torch.stack([t[name] for t in templates]) for name in templates[0]}
    per_kind = torch.tensor([len(kind.variants) for kind in ALL_KINDS])
    colour_names, material_names = list(COLOURS), list(MATERIALS)
    materials, material_count = _choices([[material_names.index(m) for m in kind.materials] for kind in ALL_KINDS])
    colours, colour_count = _choices([[colour_names.index(c) for c in kind.colours] for kind in ALL_KINDS])
    patterns, pattern_count = _choices([[PATTERNS.index(p) for p in m.patterns] for m in MATERIALS.values()])
    tops = [(k.top.width, k.top.depth, k.top.height) if k.top else (0.0, 0.0, 0.0) for k in ALL_KINDS]
    return Templates(
        **{name: value if name == "paint" else value.float() for name, value in table.items()},
        first=per_kind.cumsum(0) - per_kind,
        variants=per_kind,
        scale=torch.tensor([kind.scale for kind in ALL_KINDS]),
        stretch=torch.tensor([kind.stretch for kind in ALL_KINDS]),
        lies=torch.tensor([kind.lies for kind in ALL_KINDS]),
        top=torch.tensor(tops),
        materials=materials,
        material_count=material_count,
        colours=colours,
        colour_count=colour_count,
        patterns=patterns,
        pattern_count=pattern_count,
    )


@functools.cache
def load_templates(device: torch.device) -> Templates:
    """All templates on a device; built once, on first use."""
    return _build().to(device)


def kind_numbers(place: str) -> tuple[int, ...]:
    """The class numbers of the kinds with this `Kind.place`: table, flat, floor or wall."""
    return tuple(k for k, kind in enumerate(ALL_KINDS) if kind.place == place)
