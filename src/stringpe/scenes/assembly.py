"""The solids that a batch of scenes is made of: the parts of all objects, in the world, and how each of them looks."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from . import solids
from .deterministic import constant
from .object_kinds import MATERIALS, PAINTS, PATTERNS
from .scene import Scenes
from .templates import load_templates

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
