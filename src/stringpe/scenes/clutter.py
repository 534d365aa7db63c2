"""Objects on surfaces: tables get clutter with a varying packing fraction, trays and books get objects of their own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .catalogue import catalogue
from .dice import TURN, Dice, turned
from .items import Items, draw_items
from .settle import Plot

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

    offer = catalogue(at.device).top[of(items.kind)]  # (b, s, 3)
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
    at = turned(torch.stack(spots, 1), base) + where.at.view(-1, 1, 2)

    def spread(column: Tensor) -> Tensor:
        return column[..., None].expand(-1, -1, n).reshape(b, s * n)

    return Clutter(
        items,
        at.view(b, s * n, 2),
        ((torch.stack(yaws, 1) + base) % TURN).view(b, s * n),
        spread(where.height),
        spread(where.owner),
        torch.stack(founds, 1).view(b, s * n),
    )
