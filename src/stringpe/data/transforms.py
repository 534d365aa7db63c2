"""Augmentation of whole batches, each transform once: crops, mirror images, shifts, colour.

Every random number of a step is one row of a table of uniforms, drawn on the CPU for the global batch. So an example
looks the same in a worker process, on a device and with any number of processes (between kinds of devices, equal to one
level of 255).
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..recipes.schema import Augment
from ..seeds import generator
from .images import Ragged
from .order import Place

_COLUMNS = 8  # area, aspect, x, y, mirror, brightness, contrast, saturation
CROP_COLUMNS = 10
"""Columns of uniforms that `draw_windows` and `change_colours` take for labelled images: those, and shifts in y and
x."""

_ASPECT = math.log(4 / 3)
_AT_ONCE = 100_000  # pixels that a CPU draws at a time: more would not fit into its cache


def uniforms(
    seed: int, step: int, batch: int, place: Place, columns: int = _COLUMNS, purpose: str = "augment"
) -> Tensor:
    """This process's rows (batch / world, columns) of the step's table, on its device. Each purpose has a table of its
    own."""
    table = torch.rand(batch, columns, generator=generator(seed, purpose, step))
    return place.part(table)


def to_unit(image: Tensor) -> Tensor:
    """0 … 255 to float in [−1, 1]."""
    return image.float() / 127.5 - 1


def to_bytes(image: Tensor) -> Tensor:
    """Floats in [−1, 1] to uint8: the inverse of `to_unit`."""
    return ((image + 1) * 127.5).round().to(torch.uint8)


class Windows(NamedTuple):
    """Parts of b images that become squares. corner and extent: (b, 2), y and x in pixels, at most the image; mirror:
    (b,) bool; shift: (b, 2), whole pixels of the square by which the part is moved, over the image's border into its
    reflection; exact: whether a pixel of every square is a pixel of its image."""

    corner: Tensor
    extent: Tensor
    mirror: Tensor
    shift: Tensor
    exact: bool

    def select(self, index: Tensor) -> "Windows":
        """The windows at `index`."""
        corner, extent, mirror, shift = (t[index] for t in (self.corner, self.extent, self.mirror, self.shift))
        return Windows(corner, extent, mirror, shift, self.exact)


def draw_windows(size: Tensor, u: Tensor, how: Augment, side: int) -> Windows:
    """What training shows of images of size (b, 2), by uniforms u (b, 10): with `how.crop` < 1 a part of the whole
    image, at least that share of its area and 3:4 to 4:3 in aspect (smaller where the image is too narrow for it), else
    the middle square; mirrored half of the time with `how.flip`; moved by up to `how.shift` pixels."""
    middle = middle_windows(size, side)
    mirror = draw_flips(u, how)
    shift = ((u[:, 8:10] * (2 * how.shift + 1)).floor() - how.shift).clamp(max=how.shift)
    if how.crop >= 1:
        return middle._replace(mirror=mirror, shift=shift)
    whole = size.float()
    share, aspect = draw_crop(u, how)
    area = whole.prod(1) * share
    extent = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()], -1)
    extent = extent * (whole / extent).amin(1, keepdim=True).clamp(max=1)
    return Windows((whole - extent) * u[:, [3, 2]], extent, mirror, shift, exact=False)


def middle_windows(size: Tensor, side: int) -> Windows:
    """The middle squares of `side` pixels, which validation shows."""
    corner = torch.div(size - side, 2, rounding_mode="floor").float()
    still = torch.zeros_like(corner)
    return Windows(corner, torch.full_like(corner, side), still[:, 0].bool(), still, exact=True)


def read_windows(images: Ragged, windows: Windows, side: int) -> Tensor:
    """The windows as uint8 (b, 3, side, side), between pixels by bilinear interpolation."""
    share = max(1, _AT_ONCE // side**2)
    if images.first.device.type == "cpu" and len(images.first) > share:
        parts = [torch.arange(len(images.first))[i : i + share] for i in range(0, len(images.first), share)]
        return torch.cat([_read_windows(images.select(part), windows.select(part), side) for part in parts])
    return _read_windows(images, windows, side)


def _read_windows(images: Ragged, windows: Windows, side: int) -> Tensor:
    y, x = (_positions(windows, images.size, side, axis) for axis in (0, 1))  # (b, side) each
    height, width = images.size[:, :1], images.size[:, 1:]
    y0, x0 = y.floor().long(), x.floor().long()
    row, column = images.first[:, None] + y0 * width, x0

    def read(row: Tensor, column: Tensor) -> Tensor:
        index = row[:, :, None] + column[:, None, :]  # (b, side, side)
        return images.pixels.index_select(0, index.flatten()).view(*index.shape, 3)

    if windows.exact:
        return read(row, column).permute(0, 3, 1, 2).contiguous()
    # Products and sums one by one: the same bits on every device, and for one image as for many.
    right = torch.minimum(column + 1, width - 1)
    below = torch.where(y0 + 1 < height, row + width, row)
    share_x, share_y = (x - x0)[:, None, :, None], (y - y0)[:, :, None, None]
    left, upper = read(row, column).float(), read(row, right).float()
    top = left + (upper - left) * share_x
    left, lower = read(below, column).float(), read(below, right).float()
    bottom = left + (lower - left) * share_x
    drawn = top + (bottom - top) * share_y
    return drawn.round().to(torch.uint8).permute(0, 3, 1, 2).contiguous()


def _positions(windows: Windows, size: Tensor, side: int, axis: int) -> Tensor:
    """Where the square's pixels are read along an axis, 0 for y and 1 for x: (b, side) in pixels of the image."""
    number = torch.arange(side, device=size.device).expand(len(size), -1)
    if axis == 1:
        number = torch.where(windows.mirror[:, None], side - 1 - number, number)
    number = number + windows.shift[:, axis : axis + 1]
    at = (number + 0.5) * (windows.extent[:, axis : axis + 1] / side) + windows.corner[:, axis : axis + 1] - 0.5
    last = (size[:, axis : axis + 1] - 1).float()
    at = at.remainder((2 * last).clamp(min=1))  # 0 1 2 1 0 1 2 …, without repeating the border
    return torch.minimum(at, 2 * last - at).clamp(min=0).minimum(last)


def augment_rgbd(image: Tensor, depth: Tensor | None, u: Tensor, how: Augment) -> tuple[Tensor, Tensor | None]:
    """Square images uint8 (b, 3, S, S) and uniforms (b, 8) to float in [−1, 1], same size, with depth (b, S, S) cropped
    and mirrored alongside. Depth is read at the nearest pixel: the mean of two distances, or of one and a hole, is
    neither."""
    x = to_unit(image)
    if how.crop < 1 or how.flip:
        places = _crop_grid(u[:, :5], how, x.shape)
        x = F.grid_sample(x, places, mode="bilinear", padding_mode="reflection", align_corners=False)
        if depth is not None:
            depth = F.grid_sample(
                depth[:, None].float(), places, mode="nearest", padding_mode="border", align_corners=False
            )[:, 0]
    return change_colours(x, u[:, 5:8], how.colour), depth


def draw_crop(u: Tensor, how: Augment) -> tuple[Tensor, Tensor]:
    """The share of the image's area that a crop takes, and its width by its height, (b,) each: all of the image and 1
    where the recipe does not crop."""
    return how.crop + (1 - how.crop) * u[:, 0], torch.exp(_ASPECT * (2 * u[:, 1] - 1) * (how.crop < 1))


def draw_flips(u: Tensor, how: Augment) -> Tensor:
    """(b,) bool: which images are mirrored."""
    return (u[:, 4] < 0.5) & how.flip


def _crop_grid(u: Tensor, how: Augment, shape: torch.Size) -> Tensor:
    """Where each pixel of a crop is read: (b, H, W, 2)."""
    area, aspect = draw_crop(u, how)
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    middle_x, middle_y = (1 - width) * (2 * u[:, 2] - 1), (1 - height) * (2 * u[:, 3] - 1)
    mirror = torch.where(draw_flips(u, how), -1.0, 1.0)
    zero = torch.zeros_like(width)
    rows = [torch.stack([width * mirror, zero, middle_x], -1), torch.stack([zero, height, middle_y], -1)]
    return F.affine_grid(torch.stack(rows, 1), list(shape), align_corners=False)


def change_colours(x: Tensor, u: Tensor, strength: float) -> Tensor:
    """Brightness, contrast and saturation of x (b, 3, H, W) in [−1, 1] by uniforms u (b, 3), each by a factor from
    1 − strength to 1 + strength; x itself for a strength of 0."""
    if not strength:
        return x
    brightness, contrast, saturation = (1 + strength * (2 * u - 1)).view(-1, 3, 1, 1, 1).unbind(1)
    x = (x + 1) * brightness - 1
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + (x - mean) * contrast
    grey = x.mean(1, keepdim=True)
    return (grey + (x - grey) * saturation).clamp(-1, 1)


def shift_images(x: Tensor, offset: Tensor) -> Tensor:
    """x (n, c, H, W) moved by offset (n, 2) pixels, rows and columns; the border is repeated."""
    n, c, height, width = x.shape
    rows = (torch.arange(height, device=x.device) + offset[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) + offset[:, 1:]).clamp(0, width - 1)
    picture = torch.arange(n, device=x.device)[:, None, None, None]
    channel = torch.arange(c, device=x.device)[None, :, None, None]
    return x[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]
