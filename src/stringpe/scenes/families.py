"""The rules of the scene families: the areas of their rooms and the objects on their surfaces, one row per family."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .rooms import AREAS
from .scene import FAMILIES
from .templates import kind_number, kind_numbers

LIVING = ("lounge", "dining", "office", "reading")
"""The areas of a living room; every family also uses them for the remaining areas of its rooms."""

SURFACES, CLUTTER, FLATS, ON_FLAT = 4, 18, 4, 4
"""Upper limits: surfaces per scene that receive objects, objects tried per surface, flat objects among these, and
objects tried per flat object."""


@dataclass(frozen=True)
class Rule:
    """The rules of one family."""

    areas: tuple[str, ...]  # choices for the first area; the others are areas of a living room
    surfaces: int  # pieces of furniture that receive objects
    anywhere: bool  # on any furniture with a top, or else on the first pieces of the first area
    clutter: int  # objects tried on each surface
    flats: int  # how many of those are flat and carry objects themselves
    packing: tuple[float, float]  # the fraction of a surface that objects cover
    room: tuple[float, float]  # side lengths in metres
    divided: bool  # whether rooms that are large enough are divided into several areas
    pool: str  # the kinds to draw objects from


RULES: dict[str, Rule] = {
    "living": Rule(LIVING, 0, True, 0, 0, (0.04, 0.25), (3.4, 7.2), True, "decor"),
    "tabletop": Rule(("one table",), 1, False, 18, 0, (0.08, 0.7), (3.6, 6.5), True, "clutter"),
    "tables": Rule(("tables",), 4, False, 9, 0, (0.06, 0.5), (4.2, 6.5), False, "clutter"),
    "trays": Rule(("one table",), 1, False, 10, 4, (0.25, 0.8), (3.6, 6.5), True, "clutter"),
}
"""The four families of the paper (appendix on its simulated data): living rooms have no objects on their furniture."""
assert tuple(RULES) == FAMILIES

_DECORATED = RULES | {"living": replace(RULES["living"], surfaces=4, clutter=3)}

_DECOR = ("book", "vase", "table lamp", "potted plant", "laptop", "candle", "bowl", "mug")
_SMALL = (
    *("mug", "cup", "glass", "bowl", "bottle", "can", "jar", "candle", "phone", "remote", "clock", "box", "ball"),
    *("apple", "orange", "banana", "toy car", "carton", "loaf"),
)
POOLS = ("decor", "clutter", "flat", "small")


@functools.cache
def pools(device: torch.device) -> tuple[Tensor, Tensor]:
    """The kinds in each pool, padded (pools, n), and their number (pools,)."""
    rows = (
        tuple(kind_number(n) for n in _DECOR),
        kind_numbers("table") + kind_numbers("flat"),
        (kind_number("tray"),) * 4 + kind_numbers("flat"),
        tuple(kind_number(n) for n in _SMALL),
    )
    width = max(len(row) for row in rows)
    table = torch.tensor([row + row[:1] * (width - len(row)) for row in rows], device=device)
    return table, torch.tensor([len(row) for row in rows], device=device)


@dataclass(frozen=True)
class Rules:
    """The rules of a batch of scenes, gathered: every field (b, …)."""

    areas: Tensor  # (b, 4) choices for the first area
    area_count: Tensor
    surfaces: Tensor
    anywhere: Tensor
    clutter: Tensor
    flats: Tensor
    packing: Tensor  # (b, 2)
    room: Tensor  # (b, 2)
    divided: Tensor
    pool: Tensor


@functools.cache
def _table(device: torch.device, decorated: bool) -> tuple[Tensor, ...]:
    rules = list((_DECORATED if decorated else RULES).values())
    columns = (
        [[AREAS.index(r.areas[k % len(r.areas)]) for k in range(len(LIVING))] for r in rules],
        [len(r.areas) for r in rules],
        [r.surfaces for r in rules],
        [r.anywhere for r in rules],
        [r.clutter for r in rules],
        [r.flats for r in rules],
        [r.packing for r in rules],
        [r.room for r in rules],
        [r.divided for r in rules],
        [POOLS.index(r.pool) for r in rules],
    )
    return tuple(torch.tensor(column, device=device) for column in columns)


def gather_rules(family: Tensor, decorated: bool = False) -> Rules:
    """The rules of each scene, for families (b,) given by number. decorated: also put a few objects on the furniture of
    living rooms."""
    return Rules(*(column[family] for column in _table(family.device, decorated)))
