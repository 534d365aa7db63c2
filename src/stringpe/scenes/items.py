"""Objects before they have a place: given kinds, draw a variant, a size, a colour, a material and a pattern."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .catalogue import catalogue
from .dice import Dice, cos_sin
from .palette import COLOURS


@dataclass(frozen=True)
class Items:
    """Objects (b, o) of known kind and size. `extent` is the size along the object's axes as it stands (or lies): the
    last entry is its height above what carries it."""

    kind: Tensor  # (b, o)
    template: Tensor
    colour: Tensor
    material: Tensor
    pattern: Tensor
    tint: Tensor  # (b, o, 2, 3)
    size: Tensor  # (b, o, 3)
    lying: Tensor  # (b, o) bool
    extent: Tensor  # (b, o, 3)

    @property
    def half(self) -> Tensor:
        """(b, o, 2): half width and half depth on the ground."""
        return self.extent[..., :2] / 2


@functools.cache
def colour_table(device: torch.device) -> Tensor:
    """(colours, 3) sRGB."""
    return torch.tensor(list(COLOURS.values()), device=device)


def draw_items(dice: Dice, kind: Tensor) -> Items:
    """An object of each kind in (b, o)."""
    shelf = catalogue(kind.device)
    o = kind.shape[1]
    template = shelf.first[kind] + dice.below(shelf.variants[kind], o)
    low, high = shelf.scale[kind].unbind(-1)
    scale = low + (high - low) * dice.uniform(o)
    stretch = 1 + shelf.stretch[kind][..., None] * dice.uniform(o, 3, low=-1.0, high=1.0)
    size = shelf.nominal[template] * scale[..., None] * stretch
    lying = dice.chance(shelf.lies[kind], o)
    colour = shelf.colours[kind, dice.below(shelf.colour_count[kind], o)]
    material = shelf.materials[kind, dice.below(shelf.material_count[kind], o)]
    pattern = shelf.patterns[material, dice.below(shelf.pattern_count[material], o)]
    accent = dice.below(len(COLOURS), o)
    tint = colour_table(kind.device)[torch.stack([colour, accent], -1)]  # (b, o, 2, 3)
    tint = (tint * dice.uniform(o, 2, 1, low=0.85, high=1.12) + dice.uniform(o, 2, 3, low=-0.03, high=0.03)).clamp(
        0.02, 1
    )
    swapped = torch.stack([size[..., 0], size[..., 2], size[..., 1]], -1)
    extent = torch.where(lying[..., None], swapped, size)
    return Items(kind, template, colour, material, pattern, tint, size, lying, extent)


def rotations(yaw: Tensor, lying: Tensor) -> Tensor:
    """World from object (..., 3, 3): turned by `yaw` (1024ths of a turn) about the vertical; lying puts y up."""
    c, s = cos_sin(yaw).unbind(-1)
    zero, one = torch.zeros_like(c), torch.ones_like(c)
    upright = torch.stack([c, -s, zero, s, c, zero, zero, zero, one], -1)
    fallen = torch.stack([c, zero, s, s, zero, -c, zero, one, zero], -1)
    return torch.where(lying[..., None], fallen, upright).view(*yaw.shape, 3, 3)
