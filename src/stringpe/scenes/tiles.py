"""Which rays meet which solids: tiles of rays, lists of solids, and the order in which to test them.

Rays come in tiles of 64 with one pinhole per scene. In the pinhole's plane a tile is a rectangle, a solid is a
rectangle, and only pairs that overlap are tested. The pairs are dealt in rounds: round r pairs every tile with the r-th
solid on its list, so within a round no tile occurs twice and results are written without conflicts or padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .solids import Solids

TILE = 8
"""Tiles are 8 × 8 pixels."""

_NEAR = 0.02
_ROUND = {"cpu": 2048, "cuda": 1 << 18}
"""Pairs tested at once: on a CPU the temporaries should stay in the cache, on a GPU they should fill it."""


@dataclass(frozen=True)
class Pairs:
    """Overlapping (tile, solid) pairs, sorted by tile and then by solid; both are numbered through the whole batch."""

    tile: Tensor  # (n,)
    solid: Tensor  # (n,)

    def rounds(self) -> Iterator[tuple[Tensor, list[slice]]]:
        """The pairs in rounds: positions in the list to be tested together, and how to write the results.

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
    signs = torch.tensor([[i, j, k] for i in (-1.0, 1.0) for j in (-1.0, 1.0) for k in (-1.0, 1.0)])
    corners = frames @ signs.T.to(frames.device) + centres[..., None]  # (..., 3, 8)
    depth = corners[..., 2, :]
    plane = corners[..., :2, :] / depth.clamp(min=_NEAR)[..., None, :]
    low, high = plane.amin(-1), plane.amax(-1)
    around = (depth.amin(-1) < _NEAR)[..., None]
    low, high = low.masked_fill(around, -torch.inf), high.masked_fill(around, torch.inf)
    behind = (depth.amax(-1) < _NEAR)[..., None]
    return low.masked_fill(behind, torch.inf), high.masked_fill(behind, -torch.inf), depth.amin(-1)


def overlaps(low: Tensor, high: Tensor, solid_low: Tensor, solid_high: Tensor) -> Tensor:
    """(b, t, p): does tile t's rectangle (b, t, 2) overlap solid p's (b, p, 2)?"""
    mask = low[:, :, None, 0] <= solid_high[:, None, :, 0]
    mask &= high[:, :, None, 0] >= solid_low[:, None, :, 0]
    mask &= low[:, :, None, 1] <= solid_high[:, None, :, 1]
    mask &= high[:, :, None, 1] >= solid_low[:, None, :, 1]
    return mask


def pairs(mask: Tensor) -> Pairs:
    """The true entries of (b, t, p) as a list."""
    _, tiles, solids = mask.shape
    flat = mask.flatten().nonzero()[:, 0]
    tile = flat // solids
    return Pairs(tile, flat % solids + tile // tiles * solids)


def into_tiles(image: Tensor) -> Tensor:
    """(b, h, w) to (b, t, 64); h and w are multiples of 8."""
    b, h, w = image.shape
    return image.view(b, h // TILE, TILE, w // TILE, TILE).transpose(2, 3).reshape(b, -1, TILE * TILE)


def out_of_tiles(tiles: Tensor, height: int, width: int) -> Tensor:
    """(b, t, 64) back to (b, h, w), cut to the size asked for."""
    down, across = -(-height // TILE), -(-width // TILE)
    image = tiles.view(-1, down, across, TILE, TILE).transpose(2, 3).reshape(-1, down * TILE, across * TILE)
    return image[:, :height, :width].contiguous()


def seen_from(
    own_from_world: Tensor, centres: Tensor, axes: Tensor, origin: Tensor, quadric: Tensor, cavity: Tensor
) -> Solids:
    """Solids (b, p) as the flat table that rays from `origin` (b, 3) need; `axes` (b, 3, 3) is world from pinhole."""
    away = centres - origin[:, None]  # (b, p, 3)
    return Solids.pack(
        axes=(own_from_world @ axes[:, None]).flatten(0, 1),
        origin=-(own_from_world @ away[..., None])[..., 0].flatten(0, 1),
        middle=(away * axes[:, None, :, 2]).sum(-1).clamp(min=0).flatten(),
        quadric=quadric.flatten(0, 1),
        cavity=cavity.flatten(0, 1),
    )
