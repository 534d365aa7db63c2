"""Rooms: their split into areas, the furniture of each area, the looks of their surfaces, and their light.

A programme furnishes an area. It is data: a list of slots, each a choice of kinds and a position relative to the area's
walls or to a piece placed before it. In the frame of an area its back wall is at +y, and furniture looks along −y, into
the area.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from .deterministic import TURN, Dice, constant, turn_plane
from .object_kinds import COLOURS, PATTERNS
from .placement import Items, Plot, colour_table, draw_items
from .templates import kind_number

_TRIES = 6
_WALL = 0.08
"""Furniture keeps this far from walls, so that a painting (4 cm) always fits behind it."""


@dataclass(frozen=True)
class Slot:
    """One piece of furniture.

    `side` (x, y) in −1 .. 1: the walls of the area towards which it stands, or the side of the piece `by` on which it
    stands, `gap` metres away and shifted sideways by `slide` half widths of that piece. `by` = −1 means the area
    itself. `turn` is in quarter turns: 0 looks to the front, 1 to the right, 2 to the back, 3 to the left.
    """

    kinds: tuple[str, ...]
    chance: float
    side: tuple[float, float]
    by: int = -1
    turn: int = 0
    gap: float = 0.05
    slide: float = 0.0
    jitter: float = 0.1


def _seats(kinds: tuple[str, ...], chance: float) -> tuple[Slot, ...]:
    """Six seats around piece 0: two on each long side, one at each end."""
    long_sides = tuple(
        Slot(kinds, chance, (0, y), 0, 0 if y > 0 else 2, 0.06, slide, 0.05) for y in (1, -1) for slide in (-0.45, 0.45)
    )
    return (*long_sides, *(Slot(kinds, chance * 0.6, (x, 0), 0, 3 if x > 0 else 1, 0.06, 0, 0.05) for x in (1, -1)))


_FREE = Slot(("plant", "floor lamp", "stool", "basket", "ottoman", "bin", "nightstand"), 0.45, (0, 0), jitter=1.0)
_TABLE = ("table", "table", "round table", "desk")

PROGRAMMES: dict[str, tuple[Slot, ...]] = {
    "lounge": (
        Slot(("sofa",), 1.0, (0, 1), jitter=0.25),
        Slot(("coffee table",), 0.9, (0, -1), 0, 0, 0.38, jitter=0.08),
        Slot(("armchair", "armchair", "chair"), 0.7, (1, 0), 1, 3, 0.4),
        Slot(("armchair", "ottoman", "stool"), 0.6, (-1, 0), 1, 1, 0.4),
        Slot(("floor lamp", "side table", "plant"), 0.7, (1, 0.4), 0, 0, 0.1),
        Slot(("side table", "floor lamp", "nightstand"), 0.6, (-1, 0.4), 0, 0, 0.1),
        Slot(("television", "cabinet"), 0.8, (0, -1), -1, 2, 0.05, jitter=0.2),
        Slot(("plant", "basket"), 0.6, (-1, -1)),
        _FREE,
    ),
    "dining": (
        Slot(("table", "round table"), 1.0, (0, 0), jitter=0.15),
        *_seats(("chair",), 0.85),
        Slot(("cabinet", "bookcase"), 0.7, (0, 1), jitter=0.4),
        _FREE,
    ),
    "office": (
        Slot(("desk",), 1.0, (-0.3, 1), jitter=0.2),
        Slot(("office chair",), 0.95, (0, -1), 0, 2, 0.08),
        Slot(("bookcase",), 0.8, (1, 1)),
        Slot(("bin",), 0.7, (1, 0), 0, 0, 0.12),
        Slot(("cabinet", "bookcase"), 0.6, (0.3, -1), -1, 2, 0.05, jitter=0.3),
        Slot(("floor lamp", "plant"), 0.6, (-1, 1)),
        Slot(("plant", "basket"), 0.5, (-1, -1)),
        Slot(("armchair", "stool"), 0.4, (1, -0.6), -1, 3),
        _FREE,
    ),
    "reading": (
        Slot(("armchair",), 1.0, (-0.4, 0.5), jitter=0.2),
        Slot(("side table", "nightstand"), 0.9, (1, 0.2), 0, 0, 0.1),
        Slot(("floor lamp",), 0.8, (-1, 0.6), 0, 0, 0.08),
        Slot(("ottoman", "stool"), 0.6, (0, -1), 0, 0, 0.2),
        Slot(("bookcase",), 0.9, (1, 1), jitter=0.2),
        Slot(("bookcase", "cabinet"), 0.5, (1, 0), -1, 3, 0.05, jitter=0.3),
        Slot(("plant",), 0.6, (-1, -1)),
        Slot(("basket",), 0.5, (1, -1)),
        _FREE,
    ),
    "one table": (
        Slot((*_TABLE, "coffee table"), 1.0, (0, 0), jitter=0.15),
        *_seats(("chair", "stool"), 0.3),
        Slot(("cabinet", "bookcase", "sofa"), 0.7, (0, 1), jitter=0.5),
        _FREE,
    ),
    "tables": (
        Slot(_TABLE, 1.0, (0, 0), jitter=0.15),
        Slot((*_TABLE, "coffee table"), 1.0, (1, 0), 0, 0, 0.2, jitter=0.15),
        Slot((*_TABLE, "side table"), 1.0, (-1, 0), 0, 0, 0.2, jitter=0.15),
        Slot(("coffee table", "table"), 0.7, (0, 1), 0, 0, 0.25, jitter=0.2),
        Slot(("chair", "stool"), 0.4, (0, -1), 0, 2, 0.08),
        Slot(("chair",), 0.3, (0, -1), 1, 2, 0.08),
        Slot(("plant", "bookcase"), 0.5, (1, 1)),
        Slot(("floor lamp",), 0.4, (-1, 1)),
        _FREE,
    ),
}
AREAS = tuple(PROGRAMMES)
SLOTS = max(len(slots) for slots in PROGRAMMES.values())
assert all(len(slots) == SLOTS for slots in PROGRAMMES.values())


@functools.cache
def _programme_table(device: torch.device) -> dict[str, Tensor]:
    """All programmes as tensors (areas, slots, …)."""
    rows = list(PROGRAMMES.values())
    width = max(len(slot.kinds) for slots in rows for slot in slots)
    kinds = [[[kind_number(s.kinds[k % len(s.kinds)]) for k in range(width)] for s in slots] for slots in rows]
    numbers = [[(s.chance, *s.side, s.gap, s.slide, s.jitter) for s in slots] for slots in rows]
    integers = [[(s.by, s.turn, len(s.kinds)) for s in slots] for slots in rows]
    return {
        "kinds": torch.tensor(kinds, device=device),
        "numbers": torch.tensor(numbers, device=device),
        "integers": torch.tensor(integers, device=device),
    }


@dataclass(frozen=True)
class Furniture:
    """Furniture (b, f) in the world, f = areas · SLOTS in order of area, then slot."""

    items: Items
    at: Tensor  # (b, f, 2)
    yaw: Tensor  # (b, f) in 1024ths of a turn
    present: Tensor  # (b, f)

    def __getitem__(self, rows: Tensor) -> Furniture:
        items = Items(**{name: getattr(self.items, name)[rows] for name in Items.__dataclass_fields__})
        return Furniture(items, self.at[rows], self.yaw[rows], self.present[rows])


def split_room(room: Tensor, dice: Dice, divided: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split rooms (b, 3) into up to 2 × 2 areas: centres (b, 4, 2), half sizes (b, 4, 2) and which exist (b, 4)."""
    split = (room[:, :2] > 4.6) & dice.chance(0.85, 2) & divided[:, None]  # (b, 2)
    half = torch.where(split, room[:, :2] / 4, room[:, :2] / 2)[:, None].expand(-1, 4, -1)
    sign = constant(((-1.0, -1.0), (1.0, -1.0), (-1.0, 1.0), (1.0, 1.0)), room.device)
    centre = torch.where(split[:, None], half * sign, 0.0)
    exists = (split[:, None] | (sign < 0)).all(-1)
    return centre, half - _WALL, exists


def furnish(room: Tensor, area: Tensor, dice: Dice, divided: Tensor) -> Furniture:
    """Follow the programme number `area` (b, 4) in each of a room's four areas, in all areas of all rooms at once.

    Rooms that are not `divided` (b,) are one area.
    """
    b = len(room)
    table = _programme_table(room.device)
    centre, half, exists = split_room(room, dice, divided)
    # The back of an area is one of the walls it touches: ±y (quarter 0 or 2) or ±x (3 or 1), outwards.
    sideways = dice.chance(0.5, 4)
    outward = torch.where(centre == 0, dice.uniform(4, 2, low=-1.0, high=1.0), centre)
    quarter = torch.where(sideways, torch.where(outward[..., 0] > 0, 3, 1), torch.where(outward[..., 1] > 0, 0, 2))
    half = torch.where(sideways[..., None], half.flip(-1), half).reshape(-1, 2)  # (n, 2) with n = 4 b
    kind = table["kinds"][area]  # (b, 4, slots, choices)
    integers, numbers = table["integers"][area].flatten(0, 1), table["numbers"][area].flatten(0, 1)  # (n, slots, …)
    choice = dice.below(integers[..., 2].view(b, 4, SLOTS), 4, SLOTS)
    kind = kind.gather(3, choice[..., None])[..., 0].flatten(1)  # (b, 4 · slots)
    items = draw_items(dice, kind)
    sizes = items.half.view(-1, SLOTS, 2)
    wanted = (dice.chance(numbers[..., 0].view(b, 4, SLOTS), 4, SLOTS) & exists[..., None]).view(-1, SLOTS)
    noise = dice.uniform(4, SLOTS, _TRIES, 3, low=-1.0, high=1.0).view(4 * b, SLOTS, _TRIES, 3)
    plot = Plot(half, gap=0.03, capacity=SLOTS)
    at, yaw, placed = _follow(plot, sizes, wanted, integers, numbers, noise)
    area_yaw = (quarter.view(-1, 1) * (TURN // 4)).expand(-1, SLOTS)
    centres = turn_plane(at, area_yaw).view(b, 4, SLOTS, 2) + centre[:, :, None]
    return Furniture(items, centres.flatten(1, 2), ((yaw + area_yaw) % TURN).view(b, -1), placed.view(b, -1))


def _follow(
    plot: Plot, sizes: Tensor, wanted: Tensor, integers: Tensor, numbers: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Place slot after slot: centres (n, slots, 2), yaws (n, slots) and which were placed (n, slots), in area frames.

    Everything that does not depend on earlier placements is computed for all slots at once.
    """
    n = len(sizes)
    by, turn = integers[..., 0].clamp(min=0), integers[..., 1]  # (n, slots)
    by_area = integers[..., 0] < 0  # placed relative to the area itself
    side, gap = numbers[..., 1:3], numbers[..., 3:4]
    slide, jitter = numbers[..., 4:5], numbers[..., 5]
    reach = torch.where((turn % 2 == 1)[..., None], sizes.flip(-1), sizes)  # half sizes after the turn
    neighbour = sizes.gather(1, by[..., None].expand(-1, -1, 2))
    # Beside its neighbour, on the given side, shifted along that side by half widths of the neighbour.
    beside = side * (neighbour + reach + gap) + torch.where(side == 0, slide * neighbour, 0.0)
    walls = side * (plot.half[:, None] - reach - gap).clamp(min=0)
    anywhere = (jitter > 0.9)[..., None]
    spread = constant(tuple((k + 1) / _TRIES for k in range(_TRIES)), sizes.device)
    offset = noise[..., :2] * spread[:, None] * torch.where(anywhere, plot.half[:, None], jitter[..., None])[:, :, None]
    # Against a wall, jitter moves along it and away from it, never into it.
    against = (by_area[..., None] & (side.abs() == 1))[:, :, None]
    offset = torch.where(against, -offset.abs() * side.sign()[:, :, None], offset)  # (n, slots, tries, 2)
    yaw_noise = (noise[..., 2] * torch.where(anywhere, TURN / 2, 22.0 * jitter[..., None])).to(torch.int64)
    yaw_noise = yaw_noise + (turn * (TURN // 4))[..., None]

    rows = torch.arange(n, device=sizes.device)
    spots, yaws, placed = torch.zeros_like(sizes), torch.zeros_like(by), torch.zeros_like(wanted)
    for slot in range(SLOTS):
        from_area, neighbour_slot = by_area[:, slot], by[:, slot]
        base, facing = spots[rows, neighbour_slot], yaws[rows, neighbour_slot]
        spot = torch.where(from_area[:, None], walls[:, slot], turn_plane(beside[:, slot], facing) + base)
        yaw = (torch.where(from_area, 0, facing)[:, None] + yaw_noise[:, slot]) % TURN
        ready = wanted[:, slot] & (from_area | placed[rows, neighbour_slot])
        spots[:, slot], yaws[:, slot], placed[:, slot] = plot.place(
            spot[:, None] + offset[:, slot], yaw, sizes[:, slot], ready
        )
    return spots, yaws, placed


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
    """The fields light, light_colour and ambient: a lamp near or above the ceiling, warm or cool, and the ambient light
    that the room reflects."""
    spot = dice.uniform(2, low=-0.45, high=0.45) * room[:, :2]
    height = room[:, 2:] + dice.uniform(1, low=-0.05, high=0.5)
    tone = 1 + dice.uniform(1, low=-1.0, high=1.0) * constant((0.10, 0.0, -0.14), room.device)
    return {
        "light": torch.cat([spot, height], -1),
        "light_colour": dice.uniform(1, low=0.8, high=1.5) * tone,
        "ambient": dice.uniform(1, low=0.28, high=0.55) * (1 + 0.3 * (1 - tone)),
    }
