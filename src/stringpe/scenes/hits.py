"""What each ray of the camera meets first, and what reaches the light."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .assemble import Assembly
from .solids import entry
from .tiles import TILE, footprint, into_tiles, overlaps, pairs, seen_from
from .world import Scenes

_BIAS = 1.5e-3
"""Metres by which something must stand before a point to shade it."""


@dataclass(frozen=True)
class Hits:
    """Per ray, in tiles: the depth and the solid met first."""

    x: Tensor  # (b, t, 64) the ray is t (x, y, 1) in the camera frame
    y: Tensor
    depth: Tensor  # (b, t, 64)
    row: Tensor  # (b, t, 64) row of the assembly
    alone: Tensor  # (b, o) pixels each object would cover if nothing stood before it


def camera_rays(scenes: Scenes, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """x and y (b, t, 64) of the rays through all pixel centres, and which of the rays (t, 64) are in the image."""
    height, width = size
    down, across = -(-height // TILE) * TILE, -(-width // TILE) * TILE
    k = scenes.intrinsics(size)
    i = torch.arange(down, device=scenes.device) + 0.5
    j = torch.arange(across, device=scenes.device) + 0.5
    x = ((j - k[:, :1, 2]) / k[:, :1, 0])[:, None, :].expand(-1, down, -1)
    y = ((i - k[:, 1:2, 2]) / k[:, 1:2, 1])[:, :, None].expand(-1, -1, across)
    inside = (i < height)[:, None] & (j < width)
    return into_tiles(x), into_tiles(y), into_tiles(inside[None])[0]


def _room_exit(scenes: Scenes, x: Tensor, y: Tensor, first_row: int) -> tuple[Tensor, Tensor]:
    """Depth at which rays leave the room, and the row of the assembly (floor, walls or ceiling) they leave through."""
    flat = (len(scenes), 1, 1)
    depth, row = torch.full_like(x, torch.inf), torch.zeros_like(x, dtype=torch.int64)
    for axis in range(3):
        r = scenes.pose[:, axis]
        d = r[:, 0].view(flat) * x + r[:, 1].view(flat) * y + r[:, 2].view(flat)
        low = 0.0 if axis == 2 else -0.5 * scenes.room[:, axis].view(flat)
        high = scenes.room[:, axis].view(flat) * (1.0 if axis == 2 else 0.5)
        t = (torch.where(d > 0, high, low) - r[:, 3].view(flat)) / d
        surface = torch.where(d > 0, 2, 0) if axis == 2 else torch.ones_like(row)
        row = torch.where(t < depth, surface, row)
        depth = torch.minimum(t, depth)
    return depth, row + first_row


def first_hits(scenes: Scenes, assembly: Assembly, size: tuple[int, int]) -> Hits:
    """The nearest solid along every ray of the camera."""
    x, y, inside = camera_rays(scenes, size)
    b, tiles, rays = x.shape
    rows = assembly.owner.shape[1]
    solids = rows - 3
    axes, origin = scenes.pose[:, :3, :3], scenes.pose[:, :3, 3]
    table = seen_from(assembly.inverse, assembly.centre, axes, origin, assembly.quadric, assembly.cavity)
    to_camera = axes.transpose(1, 2)[:, None]  # (b, 1, 3, 3)
    away = (to_camera @ (assembly.centre - origin[:, None])[..., None])[..., 0]
    low, high, _ = footprint((to_camera @ assembly.frame)[:, :solids], away[:, :solids])
    corner = torch.stack([x, y], -1)
    mask = overlaps(corner.amin(2), corner.amax(2), low, high) & (assembly.owner[:, None, :solids] >= 0)
    met = pairs(torch.nn.functional.pad(mask, (0, 3)))  # padded, so that solids are numbered as rows of the assembly

    depth, row = (part.view(-1, rays) for part in _room_exit(scenes, x, y, solids))
    x_flat, y_flat = x.view(-1, rays), y.view(-1, rays)
    owner = assembly.owner.flatten()[met.solid]
    # Pairs of one tile and one object follow each other: they share a row of `cover`.
    new = torch.ones_like(owner, dtype=torch.bool)
    new[1:] = (owner[1:] != owner[:-1]) | (met.tile[1:] != met.tile[:-1])
    slot = new.cumsum(0) - 1
    cover = torch.zeros(int(new.sum()), rays, dtype=torch.bool, device=x.device)
    for batch, pieces in met.rounds():
        tiles_met, solids_met, slots = met.tile[batch], met.solid[batch], slot[batch]
        depths = entry(table[solids_met], x_flat[tiles_met], y_flat[tiles_met])
        hit, new_row = depths < torch.inf, (solids_met % rows)[:, None]
        for piece in pieces:
            tile, t = tiles_met[piece], depths[piece]
            before = depth[tile]
            nearer = t < before
            depth[tile] = torch.where(nearer, t, before)
            row[tile] = torch.where(nearer, new_row[piece], row[tile])
            cover[slots[piece]] |= hit[piece]
    pixels = (cover & inside[(met.tile[new] % tiles)]).sum(1)
    objects = scenes.present.shape[1]
    alone = torch.zeros(b * objects, dtype=torch.int64, device=x.device)
    alone.index_add_(0, met.tile[new] // tiles * objects + owner[new], pixels)
    return Hits(x, y, depth.view(b, tiles, rays), row.view(b, tiles, rays), alone.view(b, objects))


def lit(scenes: Scenes, assembly: Assembly, points: Tensor, facing: Tensor) -> Tensor:
    """(b, t, 64) bool: the light reaches the point. `points` (3, b, t, 64) in the world; `facing` (b, t, 64) are the
    ones whose surface is turned to the light at all.

    The light is a pinhole that looks straight down, above every object: shadows are first hits once more.
    """
    b, tiles, rays = facing.shape
    solids = assembly.owner.shape[1] - 3
    down = torch.diag(torch.tensor([1.0, 1.0, -1.0], device=points.device)).expand(b, 3, 3)
    inverse, centre = assembly.inverse[:, :solids], assembly.centre[:, :solids]
    table = seen_from(inverse, centre, down, scenes.light, assembly.quadric[:, :solids], assembly.cavity[:, :solids])
    away = (centre - scenes.light[:, None]) * down[:, None, :, :].diagonal(dim1=-2, dim2=-1)
    low, high, top = footprint(down[:, None] @ assembly.frame[:, :solids], away)

    below = scenes.light[:, 2, None, None] - points[2]
    facing = facing & (below > 0.02)  # nothing stands between the light and the ceiling
    x = (points[0] - scenes.light[:, 0, None, None]) / below
    y = (points[1] - scenes.light[:, 1, None, None]) / below
    plane = torch.stack([x, y], -1)
    outside = ~facing[..., None]
    first, last = plane.masked_fill(outside, torch.inf).amin(2), plane.masked_fill(outside, -torch.inf).amax(2)
    mask = overlaps(first, last, low, high) & (assembly.owner[:, None, :solids] >= 0)
    mask &= top[:, None] < below.masked_fill(~facing, 0).amax(2)[..., None]
    met = pairs(mask)

    shaded = torch.zeros(b * tiles, rays, dtype=torch.bool, device=points.device)
    x_flat, y_flat = x.view(-1, rays), y.view(-1, rays)
    limit = (below - _BIAS - 1e-4 * below).view(-1, rays)
    for batch, pieces in met.rounds():
        tile = met.tile[batch]
        blocked = entry(table[met.solid[batch]], x_flat[tile], y_flat[tile]) < limit[tile]
        for piece in pieces:
            shaded[tile[piece]] |= blocked[piece]
    return facing & ~shaded.view(b, tiles, rays)
