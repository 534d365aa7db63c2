"""What makes a family: which areas its rooms have and how their surfaces fill. Data, one row per family."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .catalogue import kind_number, kind_numbers
from .rooms import AREAS
from .scene import FAMILIES

LIVING = ("lounge", "dining", "office", "reading")
"""The areas of a living room; every family fills the rest of its rooms with them."""

SURFACES, CLUTTER, FLATS, ON_FLAT = 4, 18, 4, 4
"""At most so many surfaces receive objects; objects are tried on each; of those flat ones; and objects on each flat."""


@dataclass(frozen=True)
class Rule:
    """One family."""

    areas: tuple[str, ...]  # of the first area; the others are living areas
    surfaces: int  # pieces of furniture that receive objects
    anywhere: bool  # any furniture with a top, or else the first pieces of the first area
    clutter: int  # objects tried on each surface
    flats: int  # of those, flat ones, which carry objects of their own
    packing: tuple[float, float]  # the fraction of a surface that objects cover
    room: tuple[float, float]  # side lengths in metres
    divided: bool  # into several areas, where the room is large enough
    pool: str


RULES: dict[str, Rule] = {
    "living": Rule(LIVING, 4, True, 3, 0, (0.04, 0.25), (3.4, 7.2), True, "decor"),
    "tabletop": Rule(("one table",), 1, False, 18, 0, (0.08, 0.7), (3.6, 6.5), True, "clutter"),
    "tables": Rule(("tables",), 4, False, 9, 0, (0.06, 0.5), (4.2, 6.5), False, "clutter"),
    "trays": Rule(("one table",), 1, False, 10, 4, (0.25, 0.8), (3.6, 6.5), True, "clutter"),
}
assert tuple(RULES) == FAMILIES

_DECOR = ("book", "vase", "table lamp", "potted plant", "laptop", "candle", "bowl", "mug")
_SMALL = (
    *("mug", "cup", "glass", "bowl", "bottle", "can", "jar", "candle", "phone", "remote", "clock", "box", "ball"),
    *("apple", "orange", "banana", "toy car", "carton", "loaf"),
)
POOLS = ("decor", "clutter", "flat", "small")


@functools.cache
def pools(device: torch.device) -> tuple[Tensor, Tensor]:
    """The kinds in each pool, padded (pools, n), and how many they are (pools,)."""
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
    """The gather_rules of a batch, gathered: every field (b, …)."""

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
def _table(device: torch.device) -> tuple[Tensor, ...]:
    gather_rules = list(RULES.values())
    columns = (
        [[AREAS.index(r.areas[k % len(r.areas)]) for k in range(len(LIVING))] for r in gather_rules],
        [len(r.areas) for r in gather_rules],
        [r.surfaces for r in gather_rules],
        [r.anywhere for r in gather_rules],
        [r.clutter for r in gather_rules],
        [r.flats for r in gather_rules],
        [r.packing for r in gather_rules],
        [r.room for r in gather_rules],
        [r.divided for r in gather_rules],
        [POOLS.index(r.pool) for r in gather_rules],
    )
    return tuple(torch.tensor(column, device=device) for column in columns)


def gather_rules(family: Tensor) -> Rules:
    """The recipe of each scene, for families (b,) by number."""
    return Rules(*(column[family] for column in _table(family.device)))
