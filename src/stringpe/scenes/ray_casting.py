"""The first solid that each camera ray hits, and which of those points the light reaches.

Rays come in tiles of 64, with one pinhole per scene. In the plane z = 1 of the pinhole, a rectangle bounds each tile
and each solid, and only pairs whose rectangles overlap are tested. The pairs are tested in rounds: round r pairs every
tile with the r-th solid on its list, so that within a round no tile occurs twice and results are written without
conflicts or padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..geometry.box_overlap import CORNER_SIGNS
from .assembly import Assembly
from .scene import Scenes
from .solids import Solids, entry

TILE = 8
"""Tiles are 8 × 8 pixels."""

_NEAR = 0.02
_ROUND = {"cpu": 2048, "cuda": 1 << 18}
"""Pairs tested at once: on a CPU the temporaries should stay in the cache, on a GPU they should fill it."""


@dataclass(frozen=True)
class TilePairs:
    """Overlapping (tile, solid) pairs, sorted by tile and then by solid; both are numbered through the whole batch."""

    tile: Tensor  # (n,)
    solid: Tensor  # (n,)

    def rounds(self) -> Iterator[tuple[Tensor, list[slice]]]:
        """The pairs in rounds: positions in the list to test together, and the slices in which to write the results.

        No tile occurs twice within one of the slices; a tile's solids come in the order of its list.
        """
        count = torch.bincount(self.tile)
        start = count.cumsum(0) - count
        rank = torch.arange(len(self.tile), device=self.tile.device) - start[self.tile]
        order = rank.argsort(stable=True)
        ends = list(itertools.accumulate(torch.bincount(rank).tolist()))
        step = _ROUND.get(self.tile.device.type, _ROUND["cuda"])
        for low in range(0, len(order), step):
            high = min(low + step, len(order))
            cuts = [0, *(end - low for end in ends if low < end < high), high - low]
            yield order[low:high], [slice(a, b) for a, b in itertools.pairwise(cuts)]


def footprint(frames: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rectangles low, high (..., 2) in the plane z = 1 and least depths (...) of the cubes frames·[−1, 1]³ + centres.

    A cube that reaches behind the pinhole covers the whole plane; one that lies behind it entirely covers nothing.
    """
    corners = frames @ CORNER_SIGNS(frames.dtype, frames.device).T + centres[..., None]  # (..., 3, 8)
    depth = corners[..., 2, :]
    plane = corners[..., :2, :] / depth.clamp(min=_NEAR)[..., None, :]
    low, high = plane.amin(-1), plane.amax(-1)
    straddles = (depth.amin(-1) < _NEAR)[..., None]
    low, high = low.masked_fill(straddles, -torch.inf), high.masked_fill(straddles, torch.inf)
    behind = (depth.amax(-1) < _NEAR)[..., None]
    return low.masked_fill(behind, torch.inf), high.masked_fill(behind, -torch.inf), depth.amin(-1)


def overlaps(low: Tensor, high: Tensor, solid_low: Tensor, solid_high: Tensor) -> Tensor:
    """(b, t, p): does tile t's rectangle (b, t, 2) overlap solid p's (b, p, 2)?"""
    mask = low[:, :, None, 0] <= solid_high[:, None, :, 0]
    mask &= high[:, :, None, 0] >= solid_low[:, None, :, 0]
    mask &= low[:, :, None, 1] <= solid_high[:, None, :, 1]
    mask &= high[:, :, None, 1] >= solid_low[:, None, :, 1]
    return mask


def list_pairs(mask: Tensor) -> TilePairs:
    """The true entries of (b, t, p) as a list."""
    _, tiles, solids = mask.shape
    flat = mask.flatten().nonzero()[:, 0]
    tile = flat // solids
    return TilePairs(tile, flat % solids + tile // tiles * solids)


def to_tiles(image: Tensor) -> Tensor:
    """(b, h, w) to (b, t, 64); h and w are multiples of 8."""
    b, h, w = image.shape
    return image.view(b, h // TILE, TILE, w // TILE, TILE).transpose(2, 3).reshape(b, -1, TILE * TILE)


def from_tiles(tiles: Tensor, height: int, width: int) -> Tensor:
    """(b, t, 64) back to (b, h, w) with h = `height` and w = `width`; padding is cut off."""
    down, across = -(-height // TILE), -(-width // TILE)
    image = tiles.view(-1, down, across, TILE, TILE).transpose(2, 3).reshape(-1, down * TILE, across * TILE)
    return image[:, :height, :width].contiguous()


def pack_solids(
    solid_from_world: Tensor, centres: Tensor, axes: Tensor, origin: Tensor, quadric: Tensor, cavity: Tensor
) -> Solids:
    """Solids (b, p) as one table for rays from a pinhole at `origin` (b, 3); `axes` (b, 3, 3) is world from pinhole."""
    offset = centres - origin[:, None]  # (b, p, 3)
    return Solids.pack(
        axes=(solid_from_world @ axes[:, None]).flatten(0, 1),
        origin=-(solid_from_world @ offset[..., None])[..., 0].flatten(0, 1),
        middle=(offset * axes[:, None, :, 2]).sum(-1).clamp(min=0).flatten(),
        quadric=quadric.flatten(0, 1),
        cavity=cavity.flatten(0, 1),
    )


_BIAS = 1.5e-3
"""A solid shades a point only if it is at least this many metres nearer to the light."""


@dataclass(frozen=True)
class Hits:
    """Per ray, in tiles: the solid that it hits first, and the depth of that point."""

    x: Tensor  # (b, t, 64) the ray is t (x, y, 1) in the camera frame
    y: Tensor
    depth: Tensor  # (b, t, 64)
    row: Tensor  # (b, t, 64) row of the assembly
    unoccluded: Tensor  # (b, o) pixels each object would cover if nothing stood in front of it


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
    return to_tiles(x), to_tiles(y), to_tiles(inside[None])[0]


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
    table = pack_solids(assembly.inverse, assembly.centre, axes, origin, assembly.quadric, assembly.cavity)
    to_camera = axes.transpose(1, 2)[:, None]  # (b, 1, 3, 3)
    offset = (to_camera @ (assembly.centre - origin[:, None])[..., None])[..., 0]
    low, high, _ = footprint((to_camera @ assembly.frame)[:, :solids], offset[:, :solids])
    corner = torch.stack([x, y], -1)
    mask = overlaps(corner.amin(2), corner.amax(2), low, high) & (assembly.owner[:, None, :solids] >= 0)
    # Padded by the rows of the room, so that solids are numbered as rows of the assembly.
    pairs = list_pairs(torch.nn.functional.pad(mask, (0, 3)))

    depth, row = (part.view(-1, rays) for part in _room_exit(scenes, x, y, solids))
    x_flat, y_flat = x.view(-1, rays), y.view(-1, rays)
    owner = assembly.owner.flatten()[pairs.solid]
    # Pairs of the same tile and object are adjacent, and share a row of `cover`.
    starts = torch.ones_like(owner, dtype=torch.bool)
    starts[1:] = (owner[1:] != owner[:-1]) | (pairs.tile[1:] != pairs.tile[:-1])
    slot = starts.cumsum(0) - 1
    cover = torch.zeros(int(starts.sum()), rays, dtype=torch.bool, device=x.device)
    for batch, pieces in pairs.rounds():
        pair_tiles, pair_solids, slots = pairs.tile[batch], pairs.solid[batch], slot[batch]
        depths = entry(table[pair_solids], x_flat[pair_tiles], y_flat[pair_tiles])
        hit, new_row = depths < torch.inf, (pair_solids % rows)[:, None]
        for piece in pieces:
            tile, t = pair_tiles[piece], depths[piece]
            current = depth[tile]
            nearer = t < current
            depth[tile] = torch.where(nearer, t, current)
            row[tile] = torch.where(nearer, new_row[piece], row[tile])
            cover[slots[piece]] |= hit[piece]
    pixels = (cover & inside[(pairs.tile[starts] % tiles)]).sum(1)
    objects = scenes.present.shape[1]
    unoccluded = torch.zeros(b * objects, dtype=torch.int64, device=x.device)
    unoccluded.index_add_(0, pairs.tile[starts] // tiles * objects + owner[starts], pixels)
    return Hits(x, y, depth.view(b, tiles, rays), row.view(b, tiles, rays), unoccluded.view(b, objects))


def light_reaches(scenes: Scenes, assembly: Assembly, points: Tensor, facing: Tensor) -> Tensor:
    """(b, t, 64) bool: the light reaches the point. `points` (3, b, t, 64) in the world; `facing` (b, t, 64)
    bool: the surface is turned towards the light.

    The light is treated as a pinhole above every object that looks straight down, so shadows are found like hits.
    """
    b, tiles, rays = facing.shape
    solids = assembly.owner.shape[1] - 3
    down = torch.diag(torch.tensor([1.0, 1.0, -1.0], device=points.device)).expand(b, 3, 3)
    inverse, centre = assembly.inverse[:, :solids], assembly.centre[:, :solids]
    table = pack_solids(inverse, centre, down, scenes.light, assembly.quadric[:, :solids], assembly.cavity[:, :solids])
    offset = (centre - scenes.light[:, None]) * down[:, None, :, :].diagonal(dim1=-2, dim2=-1)
    low, high, least_depth = footprint(down[:, None] @ assembly.frame[:, :solids], offset)

    below = scenes.light[:, 2, None, None] - points[2]
    facing = facing & (below > 0.02)  # nothing stands between the light and the ceiling
    x = (points[0] - scenes.light[:, 0, None, None]) / below
    y = (points[1] - scenes.light[:, 1, None, None]) / below
    plane = torch.stack([x, y], -1)
    outside = ~facing[..., None]
    first, last = plane.masked_fill(outside, torch.inf).amin(2), plane.masked_fill(outside, -torch.inf).amax(2)
    mask = overlaps(first, last, low, high) & (assembly.owner[:, None, :solids] >= 0)
    mask &= least_depth[:, None] < below.masked_fill(~facing, 0).amax(2)[..., None]
    pairs = list_pairs(mask)

    shaded = torch.zeros(b * tiles, rays, dtype=torch.bool, device=points.device)
    x_flat, y_flat = x.view(-1, rays), y.view(-1, rays)
    limit = (below - _BIAS - 1e-4 * below).view(-1, rays)
    for batch, pieces in pairs.rounds():
        tile = pairs.tile[batch]
        blocked = entry(table[pairs.solid[batch]], x_flat[tile], y_flat[tile]) < limit[tile]
        for piece in pieces:
            shaded[tile[piece]] |= blocked[piece]
    return facing & ~shaded.view(b, tiles, rays)
