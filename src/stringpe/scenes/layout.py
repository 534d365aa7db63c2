"""Draws scenes from a seed and indices: room, areas, furniture, surfaces, objects, light, camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import cameras
from .deterministic import TURN, Dice, constant
from .families import CLUTTER, FLATS, LIVING, ON_FLAT, POOLS, SURFACES, Rules, gather_rules, pools
from .placement import Clutter, Items, draw_items, find_tops, rotations, scatter
from .rooms import SLOTS, Furniture, draw_light, draw_surfaces, furnish
from .scene import FAMILIES, Scenes
from .templates import kind_number

OBJECTS = 48
"""Object slots per scene; the few scenes that draw more objects lose the last ones, which carry no others."""

_WALLS = 4
_HANGINGS = (kind_number("painting"), kind_number("painting"), kind_number("wall clock"))


@dataclass(frozen=True)
class _Objects:
    """All objects of a batch with their poses, in slots (b, o); a parent comes before the objects that it carries."""

    items: Items
    at: Tensor  # (b, o, 2)
    yaw: Tensor  # (b, o)
    bottom: Tensor  # (b, o)
    present: Tensor  # (b, o)
    parent: Tensor  # (b, o)


def _rooms(dice: Dice, rules: Rules) -> tuple[Tensor, Furniture]:
    low, high = rules.room[:, :1], rules.room[:, 1:]
    room = torch.cat([low + (high - low) * dice.uniform(2), dice.uniform(1, low=2.5, high=3.1)], -1)
    area = dice.below(len(LIVING), 4)
    first = rules.areas.gather(1, dice.below(rules.area_count)[:, None])
    return room, furnish(room, torch.cat([first, area[:, 1:]], 1), dice, rules.divided)


def _on_walls(dice: Dice, room: Tensor) -> Clutter:
    """Paintings and clocks, at most one on each wall (+x, +y, −x, −y)."""
    device = room.device
    items = draw_items(dice, constant(_HANGINGS, device, torch.int64)[dice.below(3, _WALLS)])
    along = dice.uniform(_WALLS, low=-1.0, high=1.0) * (room[:, :2].flip(-1).repeat(1, 2) / 2 - 0.7)
    sign = constant((1.0, 1.0, -1.0, -1.0), device)
    outward = (room[:, :2].repeat(1, 2) / 2 - items.extent[..., 1] / 2 - 0.002) * sign
    on_x = constant((True, False, True, False), device, torch.bool)[:, None]
    at = torch.where(on_x, torch.stack([outward, along], -1), torch.stack([along, outward], -1))
    yaw = (constant((3, 0, 1, 2), device, torch.int64) * (TURN // 4)).expand(len(room), -1)
    bottom = dice.uniform(_WALLS, low=1.25, high=1.6)
    return Clutter(items, at, yaw, bottom, torch.full_like(yaw, -1), dice.chance(0.55, _WALLS))


def _pick_kinds(dice: Dice, pool: Tensor, *shape: int) -> Tensor:
    """Kinds (b, *shape) from pool number `pool`, which broadcasts."""
    table, count = pools(dice.device)
    return table[pool, dice.below(count[pool], *shape)]


def _on_furniture(dice: Dice, rules: Rules, placed: Furniture) -> list[Clutter]:
    """Objects on furniture and, in families with flat objects, objects on these."""
    b, f = placed.yaw.shape
    device = placed.at.device
    floor = torch.zeros_like(placed.at[..., 0])
    all_slots = torch.arange(f, device=device).expand(b, -1)
    usable = find_tops(placed.items, placed.at, placed.yaw, floor, placed.present, all_slots).usable
    random_slots = (dice.uniform(f) + usable).argsort(dim=1, descending=True, stable=True)[:, :SURFACES]
    slots = torch.where(rules.anywhere[:, None], random_slots, all_slots[:, :SURFACES])
    surfaces = find_tops(placed.items, placed.at, placed.yaw, floor, placed.present, slots)

    surface, number = torch.arange(SURFACES, device=device), torch.arange(CLUTTER, device=device)
    wanted = (surface < rules.surfaces[:, None])[..., None] & (number < rules.clutter[:, None])[:, None]  # (b, s, n)
    flat = (number < rules.flats[:, None])[:, None]
    pool = torch.where(flat, POOLS.index("flat"), rules.pool[:, None, None]).expand(-1, SURFACES, -1)
    low, high = rules.packing[:, :1], rules.packing[:, 1:]
    packing = low + (high - low) * dice.uniform(SURFACES)
    objects = scatter(dice, surfaces, _pick_kinds(dice, pool, SURFACES, CLUTTER), packing, wanted)

    carriers = all_slots[:, :FLATS]
    offset = f + _WALLS
    flat_tops = find_tops(objects.items, objects.at, objects.yaw, objects.bottom, objects.present, carriers, offset)
    small = constant((POOLS.index("small"),), device, torch.int64).expand(b, FLATS, ON_FLAT)
    wanted = (carriers < rules.flats[:, None])[..., None].expand(-1, -1, ON_FLAT)
    packing = dice.uniform(FLATS, low=0.3, high=1.0)
    return [objects, scatter(dice, flat_tops, _pick_kinds(dice, small, FLATS, ON_FLAT), packing, wanted)]


def _merge(placed: Furniture, groups: list[Clutter]) -> _Objects:
    """Everything in one list, present objects first, cut to OBJECTS slots."""
    floor = torch.zeros_like(placed.at[..., 0])
    furniture = Clutter(placed.items, placed.at, placed.yaw, floor, torch.full_like(placed.yaw, -1), placed.present)
    groups = [furniture, *groups]
    present = torch.cat([group.present for group in groups], 1)
    order = (~present).byte().argsort(dim=1, stable=True)[:, :OBJECTS]

    def pack(columns: list[Tensor]) -> Tensor:
        column = torch.cat(columns, 1)
        return column.gather(1, order.view(*order.shape, *[1] * (column.dim() - 2)).expand(-1, -1, *column.shape[2:]))

    names = list(Items.__dataclass_fields__)
    items = Items(**{name: pack([getattr(group.items, name) for group in groups]) for name in names})
    parent = pack([group.parent for group in groups])
    new_slot = present.cumsum(1) - 1  # of each present object
    parent = torch.where(parent >= 0, new_slot.gather(1, parent.clamp(min=0)), -1)
    at, yaw, bottom = (pack([getattr(group, name) for group in groups]) for name in ("at", "yaw", "bottom"))
    return _Objects(items, at, yaw, bottom, present.gather(1, order), parent)


def _camera(
    dice: Dice,
    rules: Rules,
    living: Tensor,
    room: Tensor,
    placed: Furniture,
    obstacles: cameras.Obstacles,
    distance: cameras.Distance,
) -> tuple[Tensor, Tensor]:
    """Pose and lens of a camera that looks at a piece of furniture: across a living room, or down on a table."""
    b = len(room)
    # The first piece of an area is its main piece. Choose an area, or a table, that exists.
    main_pieces = placed.present.view(b, 4, SLOTS)[:, :, 0]
    tables = placed.present[:, :SURFACES] & (torch.arange(SURFACES, device=room.device) < rules.surfaces[:, None])
    chosen = (dice.uniform(4) + torch.where(living[:, None], main_pieces, tables)).argmax(1)
    slot = torch.where(living, chosen * SLOTS, chosen)
    scene = torch.arange(b, device=room.device)
    extent, at = placed.items.extent[scene, slot], placed.at[scene, slot]
    room_focus = torch.cat([at * 0.8, torch.full_like(at[:, :1], 0.55)], -1)
    # With several tables, step back and look at the middle between this one and the first.
    several = (rules.surfaces > 1)[:, None]
    between = torch.where(several, (at + placed.at[:, 0]) / 2, at)
    radius = extent[:, :2].amax(-1) / 2 + torch.where(several[:, 0], 0.4, 0.0)
    table_focus = torch.cat([between, extent[:, 2:] + 0.06], -1)
    room_pose, room_lens = cameras.in_room(dice, room, room_focus, obstacles, distance)
    table_pose, table_lens = cameras.at_table(dice, room, table_focus, radius, obstacles, distance)
    pose = torch.where(living[:, None, None], room_pose, table_pose)
    return pose, torch.where(living[:, None], room_lens, table_lens)


def _build(seed: int, index: Tensor, family: Tensor, views: int, decorated: bool, distance: cameras.Distance) -> Scenes:
    """Lay out every scene once for all its views, then draw a camera for each view."""
    scene, scene_of_view = torch.unique(index // views, return_inverse=True)
    scene_family = torch.empty_like(scene).scatter_(0, scene_of_view, family)
    rules = gather_rules(scene_family, decorated)
    dice = Dice(seed, scene, stream=1)
    room, placed = _rooms(dice, rules)
    objects = _merge(placed, [_on_walls(dice, room), *_on_furniture(dice, rules, placed)])
    items, extent = objects.items, objects.items.extent
    centre = torch.cat([objects.at, (objects.bottom + extent[..., 2] / 2)[..., None]], -1)
    rug = torch.cat([placed.at[:, 0], dice.uniform(2, low=0.7, high=1.4) * dice.chance(0.6, 1) + 1e-3], -1)
    look = {**draw_surfaces(dice), **draw_light(dice, room)}

    columns = {
        name: getattr(items, name) for name in ("kind", "template", "colour", "material", "pattern", "tint", "size")
    }
    columns |= {
        "present": objects.present,
        "centre": centre,
        "rotation": rotations(objects.yaw, items.lying),
        "parent": objects.parent,
        "room": room,
        "rug": rug,
        **look,
    }
    obstacles = cameras.Obstacles(
        centre[scene_of_view], extent[scene_of_view] / 2, objects.yaw[scene_of_view], objects.present[scene_of_view]
    )
    living = family == FAMILIES.index("living")
    view_rules, view_dice = gather_rules(family, decorated), Dice(seed, index, stream=2)
    pose, lens = _camera(view_dice, view_rules, living, room[scene_of_view], placed[scene_of_view], obstacles, distance)
    return Scenes(
        seed=seed,
        index=index,
        family=family,
        pose=pose,
        lens=lens,
        **{name: column[scene_of_view] for name, column in columns.items()},
    )


def check_families(families: Sequence[str]) -> None:
    """Raise ValueError unless `families` consists of one or more names from FAMILIES."""
    wrong = [name for name in families if name not in FAMILIES]
    if wrong or not families:
        raise ValueError(f"families are {', '.join(FAMILIES)}; received {list(families)}: pass one or more of these")


def sample(
    seed: int,
    indices: int | Sequence[int] | Tensor,
    *,
    families: Sequence[str] = FAMILIES,
    views: int = 1,
    decorated: bool = False,
    distance: str = "any",
    device: torch.device | str = "cpu",
) -> Scenes:
    """The scenes with these indices (or the first n) of the world with this seed.

    A scene depends on (seed, index, families, views, decorated, distance) alone. Families take turns: scene i is of
    family families[i mod len(families)]. With `views` > 1, that many consecutive indices are the same room seen by
    different cameras. Living rooms have no objects on their furniture, as in the paper; `decorated` puts a few there.
    `distance`: how far cameras stand from what they look at, "any", "near" or "far".
    """
    if distance not in cameras.DISTANCES:
        raise ValueError(f"distance is one of {', '.join(cameras.DISTANCES)}, received {distance!r}")
    check_families(families)
    if views < 1:
        raise ValueError(f"views is the number of cameras per scene, received {views}: pass at least 1")
    if isinstance(indices, int):
        indices = range(indices)
    index = torch.as_tensor(indices if isinstance(indices, Tensor) else list(indices), dtype=torch.int64, device=device)
    if len(index) == 0:
        raise ValueError("no indices given: ask for at least one scene")
    family_numbers = constant(tuple(FAMILIES.index(name) for name in families), index.device, torch.int64)
    with torch.no_grad():
        family = family_numbers[(index // views) % len(families)]
        return _build(seed, index, family, views, decorated, cameras.DISTANCES[distance])
