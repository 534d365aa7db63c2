"""Mosaics of pictures and their boxes, made on the device for a whole batch.

A training image is a grid of 1 × 1, 2 × 2 or 3 × 3 tiles. A tile is a padded square again: a random part of a picture,
perhaps mirrored, in the tile's top left corner. Every random number comes from a table that is drawn on the CPU for the
global batch, so neither the device nor the number of processes changes anything.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..geometry.boxes import area, to_centre
from ..geometry.square import GREY
from ..models.owl_loss import Truth
from ..recipes.schema import Augment
from ..seeds import generator
from .order import MixedOrder, Order, Place
from .transforms import draw_crop, draw_flips

_SEEN = 0.6  # of an object's area: if a crop leaves less of it, it counts as a crowd, neither target nor mistake
_COLUMNS = 5  # area, aspect, x, y, mirror


class Plan(NamedTuple):
    """Which pictures go where, for u tiles of b images: picture (u,), image (u,), place (u,) in the image's grid, which
    has `side` (u,) tiles per row, and uniforms (u, 5). All on the CPU."""

    picture: Tensor
    image: Tensor
    place: Tensor
    side: Tensor
    u: Tensor


class PictureBoxes(NamedTuple):
    """What mosaics need to know of n pictures: size (n, 2), width and height on the padded square, the longer being 1;
    boxes (n, m, 4), corners on the square; labels, valid and crowd (n, m) as in `Truth`, with class numbers."""

    size: Tensor
    boxes: Tensor
    labels: Tensor
    valid: Tensor
    crowd: Tensor

    def to(self, device: torch.device) -> "PictureBoxes":
        return PictureBoxes(*(t.to(device) for t in self))


def parse_shares(text: str) -> list[float]:
    """The probabilities of 1 × 1, 2 × 2, … grids, from a text like "0.4 0.3 0.3"; an empty one means 1 × 1 only."""
    try:
        shares = [float(word) for word in text.split()] or [1.0]
    except ValueError:
        shares = [-1.0]
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"augment.mosaic holds the shares of 1×1, 2×2, … grids, which add up to 1: '0.4 0.3 0.3'; got {text!r}"
        )
    return shares


def plan_mosaics(
    order: Order | MixedOrder, step: int, place: Place, shares: list[float], sizes: Sequence[int] = ()
) -> Plan:
    """This process's tiles of a step. The first tile of an image follows the order of the epoch; the others are drawn
    from the whole set, or, where there are several data sets of these sizes, from that of the first tile."""
    most = len(shares) ** 2
    dice = generator(order.seed, "mosaic", step)
    side = 1 + torch.multinomial(torch.tensor(shares), order.batch, replacement=True, generator=dice)
    other = torch.randint(order.size, (order.batch, most), generator=dice)
    u = torch.rand(order.batch, most, _COLUMNS, generator=dice)
    within = torch.rand(order.batch, most, generator=dice, dtype=torch.float64)
    side, other, u, within = (t.chunk(place.world)[place.rank] for t in (side, other, u, within))
    first = order(step, place.rank, place.world)[:, None]
    if len(sizes) > 1:
        ends = torch.tensor(sizes).cumsum(0)
        own = torch.searchsorted(ends, first, right=True)  # (b, 1): the data set of the first tile
        count = torch.tensor(sizes)[own]
        other = ends[own] - count + (within * count).long()
    picture = torch.cat([first, other[:, 1:]], dim=1)
    image, tile = (torch.arange(most) < side[:, None] ** 2).nonzero(as_tuple=True)
    return Plan(picture[image, tile], image, tile, side[image], u[image, tile])


def draw_mosaics(pixels: Tensor, pictures: PictureBoxes, plan: Plan, how: Augment) -> tuple[Tensor, Truth]:
    """Images (b, 3, S, S) in [0, 255] and their truth, from the plan's pictures: pixels uint8 (u, 3, S, S)."""
    device, size = pixels.device, pixels.shape[-1]
    picture, image, place, side, u = (t.to(device, non_blocking=True) for t in plan)
    window, mirrored = _windows(pictures.size[picture], u, how)
    count = int(plan.image[-1]) + 1
    canvas = torch.full((count, 3, size, size), float(GREY), device=device)
    for k in sorted(set(plan.side.tolist())):
        chosen = plan.side == k  # on the CPU, where their number is known without waiting for the device
        here = chosen.nonzero()[:, 0].to(device, non_blocking=True)
        tile = size // k
        drawn = _tiles(pixels[here].float(), window[here], mirrored[here], tile, 1 if k == 1 else 2)
        for i in range(k * k):
            at = ((plan.place == i) & chosen).nonzero()[:, 0]
            row, column = i // k * tile, i % k * tile
            rank = (chosen.cumsum(0) - 1)[at].to(device, non_blocking=True)
            canvas[image[at.to(device)], :, row : row + tile, column : column + tile] = drawn[rank]
    shape = (count, int(plan.place.max()) + 1)
    return canvas, _objects(pictures, Plan(picture, image, place, side, u), window, mirrored, shape, size)


def _windows(size: Tensor, u: Tensor, how: Augment) -> tuple[Tensor, Tensor]:
    """The part of every picture that is shown: x, y, width and height (u, 4) on its square; and whether in a mirror."""
    share, aspect = draw_crop(u, how)
    extent = size * torch.stack([(share * aspect).sqrt(), (share / aspect).sqrt()], -1).clamp(max=1)
    return torch.cat([(size - extent) * u[:, 2:4], extent], -1), draw_flips(u, how)


def _tiles(x: Tensor, window: Tensor, mirrored: Tensor, size: int, finer: int) -> Tensor:
    """Windows of padded squares x (v, 3, S, S), fitted into squares of `size`; drawn `finer` times as fine, then
    averaged, so that small tiles keep what lies between their pixels."""
    corner, extent = window[:, :2], window[:, 2:]
    scale = extent.amax(1, keepdim=True)  # (v, 1): of the square, how much the tile spans
    middle = 2 * corner + scale - 1
    back = 2 * (corner + extent) - scale - 1  # of a mirrored one: its right edge comes first
    zero = torch.zeros_like(scale[:, 0])
    sign = torch.where(mirrored, -1.0, 1.0)
    across = torch.stack([sign * scale[:, 0], zero, torch.where(mirrored, back[:, 0], middle[:, 0])], -1)
    down = torch.stack([zero, scale[:, 0], middle[:, 1]], -1)
    fine = size * finer
    where = F.affine_grid(torch.stack([across, down], 1), [len(x), 3, fine, fine], align_corners=False)
    drawn = F.grid_sample(x, where, mode="bilinear", padding_mode="border", align_corners=False)
    axis = (torch.arange(fine, device=x.device) + 0.5) / fine
    inside = axis < (extent / scale)[..., None]  # (v, 2, fine)
    drawn = torch.where((inside[:, 1, :, None] & inside[:, 0, None])[:, None], drawn, float(GREY))
    return F.avg_pool2d(drawn, finer) if finer > 1 else drawn


def _objects(
    pictures: PictureBoxes, plan: Plan, window: Tensor, mirrored: Tensor, shape: tuple[int, int], size: int
) -> Truth:
    """The truth of the mosaics, objects first and padding last. shape: images, and the most tiles that one has."""
    boxes, valid, crowd = pictures.boxes[plan.picture], pictures.valid[plan.picture], pictures.crowd[plan.picture]
    corner, extent = window[:, None, :2], window[:, None, 2:]
    low, high = boxes[..., :2] - corner, boxes[..., 2:] - corner  # from the window's corner
    turned_low, turned_high = low.clone(), high.clone()
    turned_low[..., 0], turned_high[..., 0] = extent[..., 0] - high[..., 0], extent[..., 0] - low[..., 0]
    low = torch.where(mirrored[:, None, None], turned_low, low)
    high = torch.where(mirrored[:, None, None], turned_high, high)
    cut = torch.cat([low.clamp(min=0).minimum(extent), high.clamp(min=0).minimum(extent)], -1)
    seen = area(cut) / area(boxes).clamp(min=1e-12)
    valid, crowd = valid & (seen > 0), crowd | (seen < _SEEN)
    scale = extent.amax(-1, keepdim=True)
    k = plan.side[:, None, None]
    share = (size // k).float() / size  # of the image, a tile's side
    origin = torch.stack([plan.place % plan.side, plan.place // plan.side], -1)[:, None].repeat(1, 1, 2)
    placed = (cut / scale + origin) * share
    return _gather(Truth(placed, pictures.labels[plan.picture], valid, crowd), plan, shape)


def _gather(tiles: Truth, plan: Plan, shape: tuple[int, int]) -> Truth:
    """The objects of an image's tiles (u, m) in one row (b, …), boxes as cxcywh. Most of the padding of several tiles
    is left out; that of one tile is kept, so that the shape is the same in every step."""

    def rows(x: Tensor) -> Tensor:
        out = x.new_zeros(*shape, *x.shape[1:])
        out[plan.image, plan.place] = x
        return out.flatten(1, 2)

    boxes, labels, valid, crowd = (rows(t) for t in tiles)
    most = int(valid.sum(1).amax()) if shape[1] > 1 else valid.shape[1]
    order = valid.int().argsort(dim=1, descending=True, stable=True)[:, :most]
    boxes = boxes.gather(1, order[..., None].expand(-1, -1, 4))
    labels, valid, crowd = (t.gather(1, order) for t in (labels, valid, crowd))
    return Truth(to_centre(boxes), labels, valid, crowd)
