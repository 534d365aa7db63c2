"""A batch of scenes as data: objects, room, light and camera. No pixels here, and no random numbers.

World frame: z up, metres, the floor at z = 0 and the middle of the room at x = y = 0. Camera frame (OpenCV): x right,
y down, z forward. b scenes, o object slots; slots where `present` is false are empty.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

FAMILIES = ("living", "tabletop", "tables", "trays")
"""Living rooms; one cluttered table; several cluttered tables; objects on trays and other flat objects."""


@dataclass(frozen=True)
class Scenes:
    """What is where. Everything a renderer needs, and everything an annotation is made from."""

    seed: int
    index: Tensor  # (b,) int64: with `seed`, all that the scene depends on
    family: Tensor  # (b,) index into FAMILIES
    # objects
    present: Tensor  # (b, o) bool
    kind: Tensor  # (b, o) index into kinds()
    template: Tensor  # (b, o) which variant, as a row of the catalogue
    colour: Tensor  # (b, o) index into COLOURS
    material: Tensor  # (b, o) index into MATERIALS
    pattern: Tensor  # (b, o) index into PATTERNS
    tint: Tensor  # (b, o, 2, 3) sRGB of body and accent
    centre: Tensor  # (b, o, 3) of the oriented box, world frame
    rotation: Tensor  # (b, o, 3, 3) world from object
    size: Tensor  # (b, o, 3) along the object's own axes
    parent: Tensor  # (b, o) the object it stands on, −1 for the floor or a wall
    # room
    room: Tensor  # (b, 3) width (x), depth (y), height
    surface_tint: Tensor  # (b, 3, 2, 3) floor, walls, ceiling: two sRGB colours each
    surface_pattern: Tensor  # (b, 3) index into PATTERNS
    rug: Tensor  # (b, 4) centre and half sizes on the floor; a background pattern without thickness
    rug_tint: Tensor  # (b, 2, 3)
    # light
    light: Tensor  # (b, 3) position, above every object
    light_colour: Tensor  # (b, 3) linear
    ambient: Tensor  # (b, 3) linear
    # camera
    pose: Tensor  # (b, 4, 4) world from camera
    lens: Tensor  # (b, 4) fx / width, fy / height, cx / width, cy / height

    def __len__(self) -> int:
        return len(self.index)

    @property
    def device(self) -> torch.device:
        return self.index.device

    def _map(self, change: object) -> Scenes:
        assert callable(change)
        return replace(self, **{f.name: change(getattr(self, f.name)) for f in fields(self) if f.name != "seed"})

    def to(self, device: torch.device | str) -> Scenes:
        """The same scenes on another device."""
        return self._map(lambda t: t.to(device))

    def __getitem__(self, rows: Tensor | slice) -> Scenes:
        """Some of the scenes, as a batch."""
        return self._map(lambda t: t[rows])

    def intrinsics(self, size: tuple[int, int]) -> Tensor:
        """K (b, 3, 3) in pixels for images of (height, width); pixel (i, j) has its centre at x = j + ½, y = i + ½."""
        height, width = size
        k = torch.zeros(len(self), 3, 3, device=self.device)
        k[:, 0, 0], k[:, 1, 1] = self.lens[:, 0] * width, self.lens[:, 1] * height
        k[:, 0, 2], k[:, 1, 2] = self.lens[:, 2] * width, self.lens[:, 3] * height
        k[:, 2, 2] = 1
        return k
