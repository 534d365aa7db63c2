"""The look of a room: floor, walls, ceiling, rug and light."""

from __future__ import annotations

import torch
from torch import Tensor

from .constant import constant
from .dice import Dice
from .items import colour_table
from .palette import COLOURS, PATTERNS

_FLOORS = (
    ((0.55, 0.38, 0.22), ("planks", "planks", "tiles")),
    ((0.40, 0.26, 0.15), ("planks", "planks", "plain")),
    ((0.70, 0.56, 0.40), ("planks", "plain", "planks")),
    ((0.58, 0.57, 0.55), ("tiles", "plain", "checks")),
    ((0.75, 0.72, 0.66), ("tiles", "speckle", "checks")),
    ((0.36, 0.40, 0.46), ("speckle", "plain", "tiles")),
)
"""Colours of floors in sRGB, and the patterns each comes in."""

_FLOOR_TINTS = tuple(colour for colour, _ in _FLOORS)
_FLOOR_PATTERNS = tuple(tuple(PATTERNS.index(p) for p in names) for _, names in _FLOORS)
_WALLS = (
    *((0.88, 0.86, 0.80), (0.76, 0.82, 0.84), (0.80, 0.84, 0.74), (0.86, 0.76, 0.68)),
    *((0.68, 0.70, 0.76), (0.90, 0.90, 0.90), (0.55, 0.62, 0.60), (0.82, 0.72, 0.74)),
)


def draw_surfaces(dice: Dice) -> dict[str, Tensor]:
    """The fields surface_tint, surface_pattern and rug_tint of a scene."""
    device = dice.device
    which = dice.below(len(_FLOORS))
    floor_pattern = constant(_FLOOR_PATTERNS, device, torch.int64)[which, dice.below(3)]
    floor = constant(_FLOOR_TINTS, device)[which] * dice.uniform(1, low=0.85, high=1.1)
    wall = constant(_WALLS, device)[dice.below(len(_WALLS))] * dice.uniform(1, low=0.82, high=1.05)
    ceiling = dice.uniform(1, low=0.85, high=0.97).expand(-1, 3)
    base = torch.stack([floor, wall, ceiling], 1).clamp(max=1)  # (b, 3, 3)
    wall_pattern = torch.where(dice.chance(0.25), PATTERNS.index("stripes"), PATTERNS.index("plain"))
    return {
        "surface_tint": torch.stack([base, base * constant(((0.62,), (0.90,), (1.0,)), device)], 2),
        "surface_pattern": torch.stack([floor_pattern, wall_pattern, torch.zeros_like(wall_pattern)], 1),
        "rug_tint": colour_table(device)[dice.below(len(COLOURS), 2)],
    }


def draw_light(dice: Dice, room: Tensor) -> dict[str, Tensor]:
    """The fields light, light_colour and ambient: a lamp near or above the ceiling, warm or cool, and what the room
    gives back of it."""
    spot = dice.uniform(2, low=-0.45, high=0.45) * room[:, :2]
    height = room[:, 2:] + dice.uniform(1, low=-0.05, high=0.5)
    tone = 1 + dice.uniform(1, low=-1.0, high=1.0) * constant((0.10, 0.0, -0.14), room.device)
    return {
        "light": torch.cat([spot, height], -1),
        "light_colour": dice.uniform(1, low=0.8, high=1.5) * tone,
        "ambient": dice.uniform(1, low=0.28, high=0.55) * (1 + 0.3 * (1 - tone)),
    }
