"""Objects drawn at random and placed on rectangles so that none overlap: furniture on floors, clutter on tables.

`draw_items` chooses variant, size, colour, material and pattern of objects of given kinds. `Plot` places rectangles on
a rectangle. `scatter` fills surfaces with objects up to a packing fraction, those of trays and books included.
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
    shelf = load_templates(kind.device)
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


class Plot:
    """n independent rectangles [−half, half] that fill up one item at a time, all n in step, up to `room_for` items.

    Each item comes with a few candidate poses and takes the first that stays inside and keeps `gap` metres from
    everything placed before. Two rotated rectangles are apart exactly if one of their four edge directions separates
    them.
    """

    def __init__(self, half: Tensor, gap: float, room_for: int) -> None:
        self.half, self.gap = half, gap  # (n, 2)
        n = len(half)
        # What found no place stays a point far away, where it blocks nobody.
        self._at = half.new_full((n, room_for, 2), 1e4)
        self._reach = half.new_zeros(n, room_for, 2)
        self._turn = half.new_zeros(n, room_for, 2)
        self._count = 0
        self._rows = torch.arange(n, device=half.device)

    def _apart(self, at: Tensor, turn: Tensor, half: Tensor) -> Tensor:
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

        Returns its centre (n, 2), its yaw (n,) and whether it found a place (n,).
        """
        turn = cos_sin(yaw)
        cos, sin = turn.abs().unbind(-1)
        u, v = half[:, None].unbind(-1)
        reach = torch.stack([cos * u + sin * v, sin * u + cos * v], -1)  # (n, c, 2)
        fits = (at.abs() + reach <= self.half[:, None]).all(-1) & wanted[:, None]
        if self._count:
            fits = fits & self._apart(at, turn, half)
        weights = torch.arange(fits.shape[1], 0, -1, device=at.device)
        choice = (fits * weights).argmax(1)  # the first that fits has the largest weight
        found, centre = fits[self._rows, choice], at[self._rows, choice]
        self._at[:, self._count] = torch.where(found[:, None], centre, 1e4)
        self._reach[:, self._count] = half * found[:, None]
        self._turn[:, self._count] = turn[self._rows, choice]
        self._count += 1
        return centre, yaw[self._rows, choice], found


_TRIES = 8


@dataclass(frozen=True)
class Tops:
    """s surfaces per scene to put things on: rectangles in the world, each belonging to an object."""

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
    bottom: Tensor  # (b, n) height of what carries it
    parent: Tensor  # (b, n)
    present: Tensor  # (b, n)


def tops(
    items: Items, at: Tensor, yaw: Tensor, bottom: Tensor, present: Tensor, slots: Tensor, offset: int = 0
) -> Tops:
    """The surfaces that the objects in `slots` (b, s) offer; `offset` is added to name their owners."""

    def of(column: Tensor) -> Tensor:
        return column.gather(1, slots.view(*slots.shape, *[1] * (column.dim() - 2)).expand(-1, -1, *column.shape[2:]))

    offer = load_templates(at.device).top[of(items.kind)]  # (b, s, 3)
    extent = of(items.extent)
    return Tops(
        of(at),
        of(yaw),
        extent[..., :2] / 2 * offer[..., :2],
        of(bottom) + extent[..., 2] * offer[..., 2],
        slots + offset,
        of(present) & (offer[..., 0] > 0) & ~of(items.lying),
    )


def scatter(dice: Dice, where: Tops, kind: Tensor, packing: Tensor, wanted: Tensor) -> Clutter:
    """Put objects of the given kinds (b, s, n) on s surfaces, one after the other, all surfaces in step.

    A surface takes objects until they cover the fraction `packing` (b, s) of it.
    """
    b, s, n = kind.shape
    items = draw_items(dice, kind.flatten(1))
    sizes = items.half.view(b * s, n, 2)
    half = where.half.view(-1, 2)
    place = dice.uniform(s, n, _TRIES, 2, low=-1.0, high=1.0).view(b * s, n, _TRIES, 2)
    turn = dice.below(TURN, s, n, _TRIES).view(b * s, n, _TRIES)
    plot = Plot(half, gap=0.006, room_for=n)
    budget = packing.view(-1) * half[:, 0] * half[:, 1]
    used = torch.zeros_like(budget)
    spots, yaws, founds = [], [], []
    for k in range(n):
        size = sizes[:, k]
        area = size[:, 0] * size[:, 1]
        may = wanted.view(b * s, n)[:, k] & where.usable.view(-1) & ((used + area <= budget) | (used == 0))
        # The candidates fill the room that the smaller half size leaves: none is wasted outside.
        free = (half - size.amin(-1, keepdim=True)).clamp(min=0)
        spot, yaw, found = plot.place(place[:, k] * free[:, None], turn[:, k], size, may)
        used = used + area * found
        spots.append(spot)
        yaws.append(yaw)
        founds.append(found)
    base = where.yaw.view(-1, 1).expand(-1, n)
    at = turn_plane(torch.stack(spots, 1), base) + where.at.view(-1, 1, 2)

    def repeat_column(column: Tensor) -> Tensor:
        return column[..., None].expand(-1, -1, n).reshape(b, s * n)

    return Clutter(
        items,
        at.view(b, s * n, 2),
        ((torch.stack(yaws, 1) + base) % TURN).view(b, s * n),
        repeat_column(where.height),
        repeat_column(where.owner),
        torch.stack(founds, 1).view(b, s * n),
    )
