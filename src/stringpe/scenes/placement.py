"""Objects drawn at random and placed on rectangles so that none overlap: furniture on floors, clutter on tables.

`draw_items` chooses variant, size, colour, material and pattern of objects of given kinds. `Plot` places rectangles on
a rectangle. `scatter` fills surfaces, those of trays and books included, with objects up to a packing fraction.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .deterministic import TURN, Dice, cos_sin, turn_plane
from .object_kinds import COLOURS
from .templates import load_templates


@dataclass(frozen=True)
class Items:
    """Objects (b, o) that have a kind and a size, but no place yet. `extent` is the size along the object's axes as it
    stands (or lies): the last entry is its height above the surface."""

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
    templates = load_templates(kind.device)
    o = kind.shape[1]
    template = templates.first[kind] + dice.below(templates.variants[kind], o)
    low, high = templates.scale[kind].unbind(-1)
    scale = low + (high - low) * dice.uniform(o)
    stretch = 1 + templates.stretch[kind][..., None] * dice.uniform(o, 3, low=-1.0, high=1.0)
    size = templates.nominal[template] * scale[..., None] * stretch
    lying = dice.chance(templates.lies[kind], o)
    colour = templates.colours[kind, dice.below(templates.colour_count[kind], o)]
    material = templates.materials[kind, dice.below(templates.material_count[kind], o)]
    pattern = templates.patterns[material, dice.below(templates.pattern_count[material], o)]
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


class Plot:
    """n independent rectangles [−half, half], all filled at once, one item at a time, up to `capacity` items.

    Each item comes with a few candidate poses and takes the first that stays inside and keeps `gap` metres from
    everything placed before. Two rotated rectangles are apart exactly if one of their four edge directions separates
    them.
    """

    def __init__(self, half: Tensor, gap: float, capacity: int) -> None:
        self.half, self.gap = half, gap  # (n, 2)
        n = len(half)
        # An item without a place stays a point far away, where it blocks no other item.
        self._at = half.new_full((n, capacity, 2), 1e4)
        self._reach = half.new_zeros(n, capacity, 2)
        self._turn = half.new_zeros(n, capacity, 2)
        self._count = 0
        self._rows = torch.arange(n, device=half.device)

    def _clear_of_others(self, at: Tensor, turn: Tensor, half: Tensor) -> Tensor:
        """(n, c): candidate c overlaps nothing placed so far. `at`, `turn` (n, c, 2); `half` (n, 2)."""
        k = self._count
        x, y = (at[:, :, None] - self._at[:, None, :k]).unbind(-1)  # (n, c, k)
        c0, s0 = turn[:, :, None].unbind(-1)
        c1, s1 = self._turn[:, None, :k].unbind(-1)
        cos, sin = (c0 * c1 + s0 * s1).abs(), (s0 * c1 - c0 * s1).abs()
        u0, v0 = (half + self.gap / 2)[:, None, None].unbind(-1)
        u1, v1 = (self._reach + self.gap / 2)[:, None, :k].unbind(-1)
        clear = (x * c0 + y * s0).abs() > u0 + u1 * cos + v1 * sin
        clear = clear | ((y * c0 - x * s0).abs() > v0 + u1 * sin + v1 * cos)
        clear = clear | ((x * c1 + y * s1).abs() > u1 + u0 * cos + v0 * sin)
        clear = clear | ((y * c1 - x * s1).abs() > v1 + u0 * sin + v0 * cos)
        return clear.all(-1)

    def place(self, at: Tensor, yaw: Tensor, half: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Try candidates `at` (n, c, 2), `yaw` (n, c) for an item of half size (n, 2) where it is `wanted` (n,).

        Returns its centre (n, 2), its yaw (n,) and whether it was placed (n,).
        """
        turn = cos_sin(yaw)
        cos, sin = turn.abs().unbind(-1)
        u, v = half[:, None].unbind(-1)
        reach = torch.stack([cos * u + sin * v, sin * u + cos * v], -1)  # (n, c, 2)
        fits = (at.abs() + reach <= self.half[:, None]).all(-1) & wanted[:, None]
        if self._count:
            fits = fits & self._clear_of_others(at, turn, half)
        weights = torch.arange(fits.shape[1], 0, -1, device=at.device)
        choice = (fits * weights).argmax(1)  # the first that fits has the largest weight
        placed, centre = fits[self._rows, choice], at[self._rows, choice]
        self._at[:, self._count] = torch.where(placed[:, None], centre, 1e4)
        self._reach[:, self._count] = half * placed[:, None]
        self._turn[:, self._count] = turn[self._rows, choice]
        self._count += 1
        return centre, yaw[self._rows, choice], placed


_TRIES = 8


@dataclass(frozen=True)
class Tops:
    """s surfaces per scene for objects to stand on: rectangles in the world frame, each the top of an object."""

    at: Tensor  # (b, s, 2)
    yaw: Tensor  # (b, s)
    half: Tensor  # (b, s, 2)
    height: Tensor  # (b, s)
    owner: Tensor  # (b, s) object slot
    usable: Tensor  # (b, s)


@dataclass(frozen=True)
class Clutter:
    """n objects per scene, in order of surface."""

    items: Items
    at: Tensor  # (b, n, 2)
    yaw: Tensor  # (b, n)
    bottom: Tensor  # (b, n) height of the surface it stands on
    parent: Tensor  # (b, n) slot of the object it stands on
    present: Tensor  # (b, n)


def find_tops(
    items: Items, at: Tensor, yaw: Tensor, bottom: Tensor, present: Tensor, slots: Tensor, offset: int = 0
) -> Tops:
    """The surfaces that the objects in `slots` (b, s) offer; an owner is numbered slot + `offset`."""

    def per_slot(column: Tensor) -> Tensor:
        return column.gather(1, slots.view(*slots.shape, *[1] * (column.dim() - 2)).expand(-1, -1, *column.shape[2:]))

    offer = load_templates(at.device).top[per_slot(items.kind)]  # (b, s, 3)
    extent = per_slot(items.extent)
    return Tops(
        per_slot(at),
        per_slot(yaw),
        extent[..., :2] / 2 * offer[..., :2],
        per_slot(bottom) + extent[..., 2] * offer[..., 2],
        slots + offset,
        per_slot(present) & (offer[..., 0] > 0) & ~per_slot(items.lying),
    )


def scatter(dice: Dice, surfaces: Tops, kind: Tensor, packing: Tensor, wanted: Tensor) -> Clutter:
    """Put objects of the given kinds (b, s, n) on s surfaces, one after the other, on all surfaces at once.

    A surface takes objects until they cover the fraction `packing` (b, s) of it.
    """
    b, s, n = kind.shape
    items = draw_items(dice, kind.flatten(1))
    sizes = items.half.view(b * s, n, 2)
    half = surfaces.half.view(-1, 2)
    position = dice.uniform(s, n, _TRIES, 2, low=-1.0, high=1.0).view(b * s, n, _TRIES, 2)
    yaw_choice = dice.below(TURN, s, n, _TRIES).view(b * s, n, _TRIES)
    plot = Plot(half, gap=0.006, capacity=n)
    budget = packing.view(-1) * half[:, 0] * half[:, 1]
    used = torch.zeros_like(budget)
    spots, yaws, placed = [], [], []
    for k in range(n):
        size = sizes[:, k]
        area = size[:, 0] * size[:, 1]
        allowed = wanted.view(b * s, n)[:, k] & surfaces.usable.view(-1) & ((used + area <= budget) | (used == 0))
        # Centres farther out than this cannot fit, so no candidate is wasted there.
        margin = (half - size.amin(-1, keepdim=True)).clamp(min=0)
        spot, yaw, success = plot.place(position[:, k] * margin[:, None], yaw_choice[:, k], size, allowed)
        used = used + area * success
        spots.append(spot)
        yaws.append(yaw)
        placed.append(success)
    base = surfaces.yaw.view(-1, 1).expand(-1, n)
    at = turn_plane(torch.stack(spots, 1), base) + surfaces.at.view(-1, 1, 2)

    def repeat_column(column: Tensor) -> Tensor:
        return column[..., None].expand(-1, -1, n).reshape(b, s * n)

    return Clutter(
        items,
        at.view(b, s * n, 2),
        ((torch.stack(yaws, 1) + base) % TURN).view(b, s * n),
        repeat_column(surfaces.height),
        repeat_column(surfaces.owner),
        torch.stack(placed, 1).view(b, s * n),
    )
