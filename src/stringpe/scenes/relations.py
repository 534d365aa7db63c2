"""Which objects are seen, and how they stand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .catalogue import kinds
from .frames import Frames
from .palette import COLOURS, MATERIALS, PATTERNS

RELATIONS = ("left of", "right of", "behind", "in front of", "on", "nearer than")

_NEARER = 0.1


@dataclass(frozen=True)
class Seen:
    """One visible object of one frame, as plain data."""

    slot: int  # object i of the frame; its instance id is slot + 1
    kind: str
    kind_index: int
    colour: str
    colour_index: int
    material: str
    pattern: str
    centre: tuple[float, ...]  # camera frame, metres
    rotation: tuple[tuple[float, ...], ...]
    size: tuple[float, ...]
    box2d: tuple[float, ...]
    visibility: float
    pixels: int
    parent: int  # slot of what it stands on, −1 for floor or wall


def in_view(frames: Frames, min_pixels: int = 1, min_visibility: float = 0.0) -> Tensor:
    """(b, o) bool: objects of which enough is seen."""
    return (frames.pixels >= max(min_pixels, 1)) & (frames.visibility >= min_visibility)


def seen(frames: Frames, min_pixels: int = 1, min_visibility: float = 0.0) -> list[list[Seen]]:
    """For every frame, its visible objects."""
    chosen = in_view(frames, min_pixels, min_visibility).cpu()
    scenes = frames.scenes
    names, colours, materials = kinds(), list(COLOURS), list(MATERIALS)
    columns = [
        t.cpu()
        for t in (
            frames.kind,
            frames.colour,
            scenes.material,
            scenes.pattern,
            frames.centre,
            frames.rotation,
            frames.size,
            frames.box2d,
            frames.visibility,
            frames.pixels,
            scenes.parent,
        )
    ]
    result: list[list[Seen]] = []
    for b in range(len(frames)):
        row: list[Seen] = []
        for o in chosen[b].nonzero()[:, 0].tolist():
            values: list[Any] = [c[b, o].tolist() for c in columns]
            kind, colour, material, pattern, centre, rotation, size, box, share, pixels, parent = values
            row.append(
                Seen(
                    o,
                    names[kind],
                    kind,
                    colours[colour],
                    colour,
                    materials[material],
                    PATTERNS[pattern],
                    tuple(centre),
                    tuple(map(tuple, rotation)),
                    tuple(size),
                    tuple(box),
                    share,
                    pixels,
                    parent,
                )
            )
        result.append(row)
    return result


def relations(frames: Frames) -> Tensor:
    """(b, o, o, len(RELATIONS)) bool: entry [·, i, j, r] says "object i is r object j"; only visible objects have any.

    - left of: i's 2D box ends before j's begins (the viewer's left); right of is the converse.
    - behind: every corner of i's 3D box is deeper than every corner of j's, and their 2D boxes share columns; in front
      of is the converse.
    - on: i stands on j.
    - nearer than: i's centre is at least 0.1 m nearer to the camera than j's.
    """
    box, depth = frames.box2d, frames.corners()[..., 2]
    near, far, distance = depth.amin(-1), depth.amax(-1), frames.centre.norm(dim=-1)

    def first(column: Tensor) -> Tensor:
        return column[:, :, None]

    def second(column: Tensor) -> Tensor:
        return column[:, None, :]

    left = first(box[..., 2]) <= second(box[..., 0])
    share = (first(box[..., 0]) < second(box[..., 2])) & (second(box[..., 0]) < first(box[..., 2]))
    behind = (first(near) > second(far)) & share
    slots = torch.arange(box.shape[1], device=box.device)
    on = first(frames.scenes.parent) == slots
    nearer = first(distance) < second(distance) - _NEARER
    table = torch.stack([left, left.transpose(1, 2), behind, behind.transpose(1, 2), on, nearer], -1)
    visible = frames.visible
    both = first(visible) & second(visible) & ~torch.eye(len(slots), dtype=torch.bool, device=box.device)
    return table & both[..., None]
