"""All solids of a batch of scenes: the parts of every object, in the world frame, and the look of each part."""

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
"""The columns of a look: two linear colours, the pattern that mixes them, its frequency per metre, and how the part
shines (gloss and sharpness of the highlight) and glows."""


@dataclass(frozen=True)
class Assembly:
    """All solids of a batch: p per scene (padding rows have `owner` −1), then three rows for floor, walls, ceiling."""

    frame: Tensor  # (b, p + 3, 3, 3) world from solid coordinates
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
    """(paints, len(LOOK)): the look of each paint; `_looks` replaces body and accent by the colours of the object."""
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
    """(materials, 2): gloss and sharpness."""
    return torch.tensor([(m.gloss, m.sharpness) for m in MATERIALS.values()]).to(device)


def _looks(scenes: Scenes, owner: Tensor, paint: Tensor) -> Tensor:
    """(b, p, len(LOOK)): the looks of parts with the given owners (object slots) and paints."""

    def per_part(column: Tensor) -> Tensor:
        index = owner.reshape(*owner.shape, *[1] * (column.dim() - 2)).expand(-1, -1, *column.shape[2:])
        return column.gather(1, index)

    look = _paints(owner.device)[paint]
    tint = _linear(per_part(scenes.tint))  # (b, p, 2, 3)
    is_body, is_accent = (paint == 0)[..., None], (paint == 1)[..., None]
    # Wood shows a darker shade of itself; everything else is patterned in the accent colour.
    pattern = per_part(scenes.pattern)
    wooden = (pattern == PATTERNS.index("grain"))[..., None]
    second = torch.where(wooden, 0.8 * tint[..., 0, :], tint[..., 1, :])
    body_look = torch.cat(
        [
            tint[..., 0, :],
            second,
            pattern[..., None].float(),
            look[..., 7:8],
            _shine(owner.device)[per_part(scenes.material)],
            look[..., 10:],
        ],
        -1,
    )
    accent_look = torch.cat([tint[..., 1, :], tint[..., 1, :], look[..., 6:]], -1)
    look = torch.where(is_body, body_look, torch.where(is_accent, accent_look, look))
    # Patterns repeat a few times over an object, whatever its size.
    look[..., 7] = 9.0 / per_part(scenes.size).amax(-1)
    return look


def _room(scenes: Scenes) -> tuple[Tensor, Tensor, Tensor]:
    """The room as a box: half sizes (b, 3), centres (b, 3), and looks (b, 3, len(LOOK)) of floor, walls and ceiling."""
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
    """All solids of all scenes; scenes with fewer parts are padded to the one with the most."""
    templates = load_templates(scenes.device)
    parts = templates.paint.shape[1]
    exists = (scenes.present[..., None] & (templates.paint[scenes.template] >= 0)).flatten(1)  # (b, o · parts)
    width = int(exists.sum(1).max())
    order = (~exists).byte().argsort(dim=1, stable=True)[:, :width]  # existing parts first, object by object
    owner, part = order // parts, order % parts
    template = scenes.template.gather(1, owner)
    owner3 = owner[..., None].expand(-1, -1, 3)
    size, object_centre = scenes.size.gather(1, owner3), scenes.centre.gather(1, owner3)
    rotation = scenes.rotation.flatten(2).gather(1, owner[..., None].expand(-1, -1, 9)).view(-1, width, 3, 3)
    frame = rotation @ (size[..., None] * templates.frame[template, part])
    inverse = templates.inverse[template, part] @ (rotation / size[..., None, :]).transpose(-1, -2)
    centre = object_centre + (rotation @ (size * templates.centre[template, part])[..., None])[..., 0]
    look = _looks(scenes, owner, templates.paint[template, part].clamp(min=0))
    half, room_centre, room_look = _room(scenes)
    quadric = constant(solids.BOX, scenes.device).expand(len(scenes), 3, 4)

    def with_room(rows: Tensor, room_rows: Tensor) -> Tensor:
        return torch.cat([rows, room_rows], 1)

    return Assembly(
        frame=with_room(frame, torch.diag_embed(half)[:, None].expand(-1, 3, -1, -1)),
        inverse=with_room(inverse, torch.diag_embed(1 / half)[:, None].expand(-1, 3, -1, -1)),
        centre=with_room(centre, room_centre[:, None].expand(-1, 3, -1)),
        quadric=with_room(templates.quadric[template, part], quadric),
        cavity=with_room(templates.cavity[template, part], torch.zeros_like(quadric)),
        owner=with_room(owner.masked_fill(~exists.gather(1, order), -1), owner.new_full((len(scenes), 3), -1)),
        look=with_room(look, room_look),
    )
