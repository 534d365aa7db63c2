"""Every variant of every kind as tensors, and the solids that a batch of scenes is made of.

A *template* is one variant. Its parts are stored in the box frame of the object: the box is [−½, ½]³, so an object of
size s, rotation R and centre c has a part at R diag(s) (frame, centre) + c, and its oriented box is tight whatever
the size. `assemble` gathers the parts of all objects of a batch and carries them into the world.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ..io.registry import look_up
from . import solids
from .deterministic import constant
from .furniture import FURNITURE
from .object_kinds import COLOURS, MATERIALS, PAINTS, PATTERNS, Kind, Part
from .scene import Scenes
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
    """k kinds, t templates, p parts at most in a template. Lists of choices are padded; draw below their count."""

    # per template
    frame: Tensor  # (t, p, 3, 3) box frame from the part's own coordinates
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
    top: Tensor  # (k, 3) the surface it offers, see kind.Top; zeros where it offers none
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
    # Row k of an own-to-object matrix is the object's axis k seen from the solid: its support is the half extent.
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
    """Lists of different lengths as one padded table and the lengths."""
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
    """The class numbers of the kinds that belong on the floor, on the wall, on a table, or that lie flat on one."""
    return tuple(k for k, kind in enumerate(ALL_KINDS) if kind.place == place)


LOOK = ("red", "green", "blue", "red 2", "green 2", "blue 2", "pattern", "frequency", "gloss", "sharpness", "glow")
"""The columns of a look: two linear colours, the pattern that mixes them and its frequency per metre, the shine."""


@dataclass(frozen=True)
class Assembly:
    """All solids of a batch: p per scene (padding rows have `owner` −1), then three rows for floor, walls, ceiling."""

    frame: Tensor  # (b, p + 3, 3, 3) world from own coordinates
    inverse: Tensor  # (b, p + 3, 3, 3)
    centre: Tensor  # (b, p + 3, 3)
    quadric: Tensor  # (b, p + 3, 4)
    cavity: Tensor  # (b, p + 3, 4)
    owner: Tensor  # (b, p + 3) object slot, −1 for the room
    look: Tensor  # (b, p + 3, len(LOOK))


def _linear(srgb: Tensor) -> Tensor:
    return srgb**2.2


@functools.cache
def _paints(device: torch.device) -> Tensor:
    """(paints, len(LOOK)): body and accent rows are filled in per object."""
    rows = []
    for paint in PAINTS.values():
        second = tuple(0.78 * c for c in paint.colour)
        rows.append(
            (*paint.colour, *second, PATTERNS.index(paint.pattern), 0.0, paint.gloss, paint.sharpness, paint.glow)
        )
    table = torch.tensor(rows)
    table[:, :6] = _linear(table[:, :6])
    return table.to(device)


@functools.cache
def _shine(device: torch.device) -> Tensor:
    return torch.tensor([(m.gloss, m.sharpness) for m in MATERIALS.values()]).to(device)


def _looks(scenes: Scenes, owner: Tensor, paint: Tensor) -> Tensor:
    """(b, p, len(LOOK)) for parts with the given owner (object slot) and paint."""

    def of(column: Tensor) -> Tensor:
        index = owner.reshape(*owner.shape, *[1] * (column.dim() - 2)).expand(-1, -1, *column.shape[2:])
        return column.gather(1, index)

    look = _paints(owner.device)[paint]
    tint = _linear(of(scenes.tint))  # (b, p, 2, 3)
    body, accent = (paint == 0)[..., None], (paint == 1)[..., None]
    # Wood shows a darker shade of itself; everything else is patterned in the accent colour.
    pattern = of(scenes.pattern)
    wooden = (pattern == PATTERNS.index("grain"))[..., None]
    second = torch.where(wooden, 0.8 * tint[..., 0, :], tint[..., 1, :])
    own = torch.cat(
        [
            tint[..., 0, :],
            second,
            pattern[..., None].float(),
            look[..., 7:8],
            _shine(owner.device)[of(scenes.material)],
            look[..., 10:],
        ],
        -1,
    )
    plain = torch.cat([tint[..., 1, :], tint[..., 1, :], look[..., 6:]], -1)
    look = torch.where(body, own, torch.where(accent, plain, look))
    # Patterns repeat a few times over an object, whatever its size.
    look[..., 7] = 9.0 / of(scenes.size).amax(-1)
    return look


def _room(scenes: Scenes) -> tuple[Tensor, Tensor, Tensor]:
    """Half sizes (b, 3), centre (b, 3) and looks (b, 3, len(LOOK)) of the room's box."""
    half = scenes.room / 2
    centre = torch.stack([torch.zeros_like(half[:, 0]), torch.zeros_like(half[:, 0]), half[:, 2]], -1)
    shine = constant(((1.6, 0.12, 25.0, 0.0), (2.2, 0.0, 5.0, 0.0), (1.0, 0.0, 5.0, 0.35)), half.device)
    look = torch.cat(
        [
            _linear(scenes.surface_tint).flatten(-2),
            scenes.surface_pattern[..., None].float(),
            shine.expand(len(scenes), -1, -1),
        ],
        -1,
    )
    return half, centre, look


def assemble(scenes: Scenes) -> Assembly:
    """Every solid of every scene, packed to the longest scene."""
    shelf = load_templates(scenes.device)
    parts = shelf.paint.shape[1]
    held = (scenes.present[..., None] & (shelf.paint[scenes.template] >= 0)).flatten(1)  # (b, o · parts)
    width = int(held.sum(1).max())
    order = (~held).byte().argsort(dim=1, stable=True)[:, :width]  # held parts first, in the order of their objects
    owner, part = order // parts, order % parts
    template = scenes.template.gather(1, owner)
    three = owner[..., None].expand(-1, -1, 3)
    size, middle = scenes.size.gather(1, three), scenes.centre.gather(1, three)
    rotation = scenes.rotation.flatten(2).gather(1, owner[..., None].expand(-1, -1, 9)).view(-1, width, 3, 3)
    frame = rotation @ (size[..., None] * shelf.frame[template, part])
    inverse = shelf.inverse[template, part] @ (rotation / size[..., None, :]).transpose(-1, -2)
    centre = middle + (rotation @ (size * shelf.centre[template, part])[..., None])[..., 0]
    look = _looks(scenes, owner, shelf.paint[template, part].clamp(min=0))
    half, room_centre, room_look = _room(scenes)
    quadric = constant(solids.BOX, scenes.device).expand(len(scenes), 3, 4)

    def with_room(rows: Tensor, last: Tensor) -> Tensor:
        return torch.cat([rows, last], 1)

    return Assembly(
        frame=with_room(frame, torch.diag_embed(half)[:, None].expand(-1, 3, -1, -1)),
        inverse=with_room(inverse, torch.diag_embed(1 / half)[:, None].expand(-1, 3, -1, -1)),
        centre=with_room(centre, room_centre[:, None].expand(-1, 3, -1)),
        quadric=with_room(shelf.quadric[template, part], quadric),
        cavity=with_room(shelf.cavity[template, part], torch.zeros_like(quadric)),
        owner=with_room(owner.masked_fill(~held.gather(1, order), -1), owner.new_full((len(scenes), 3), -1)),
        look=with_room(look, room_look),
    )
