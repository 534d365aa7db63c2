"""Augmentation of whole batches where they are: inception crop, flip and colour on uint8 images.

Every random number of a step is one row of a table of uniforms, drawn on the CPU for the global batch: the same picture
comes out on any device and with any number of processes.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..recipes.schema import Augment
from .order import generator
from .place import Place

_COLUMNS = 8  # area, aspect, x, y, flip, brightness, contrast, saturation
_ASPECT = math.log(4 / 3)


def uniforms(seed: int, step: int, batch: int, place: Place, columns: int = _COLUMNS) -> Tensor:
    """This process's rows (batch / world, columns) of the step's table, on its device."""
    table = torch.rand(batch, columns, generator=generator(seed, "augment", step))
    return table.chunk(place.world)[place.rank].to(place.device, non_blocking=True)


def to_unit(image: Tensor) -> Tensor:
    """uint8 to float in [−1, 1]."""
    return image.float() / 127.5 - 1


def augment(image: Tensor, u: Tensor, how: Augment) -> Tensor:
    """uint8 (b, 3, H, W) and uniforms (b, 8) to float in [−1, 1], same size."""
    return augment_rgbd(image, None, u, how)[0]


def augment_rgbd(image: Tensor, depth: Tensor | None, u: Tensor, how: Augment) -> tuple[Tensor, Tensor | None]:
    """The same with depth (b, H, W) cropped and flipped alongside. It is read at the nearest pixel: the mean of two
    distances, or of one and a hole, is neither."""
    x = to_unit(image)
    if how.crop < 1 or how.flip:
        places = _crop(u[:, :5], how, x.shape)
        x = F.grid_sample(x, places, mode="bilinear", padding_mode="reflection", align_corners=False)
        if depth is not None:
            depth = F.grid_sample(
                depth[:, None].float(), places, mode="nearest", padding_mode="border", align_corners=False
            )[:, 0]
    return colour(x, u[:, 5:8], how.colour) if how.colour else x, depth


def flipped(u: Tensor, how: Augment) -> Tensor:
    """(b,) bool: which images `augment` flips."""
    return (u[:, 4] < 0.5) & how.flip


def _crop(u: Tensor, how: Augment, shape: torch.Size) -> Tensor:
    """Where each pixel of a crop is read: (b, H, W, 2)."""
    area = how.crop + (1 - how.crop) * u[:, 0]
    aspect = torch.exp(_ASPECT * (2 * u[:, 1] - 1) * (how.crop < 1))
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    middle_x, middle_y = (1 - width) * (2 * u[:, 2] - 1), (1 - height) * (2 * u[:, 3] - 1)
    mirror = torch.where(flipped(u, how), -1.0, 1.0)
    zero = torch.zeros_like(width)
    rows = [torch.stack([width * mirror, zero, middle_x], -1), torch.stack([zero, height, middle_y], -1)]
    return F.affine_grid(torch.stack(rows, 1), list(shape), align_corners=False)


def colour(x: Tensor, u: Tensor, strength: float) -> Tensor:
    """Brightness, contrast and saturation of x (b, 3, H, W) in [−1, 1] by uniforms u (b, 3), each by a factor from
    1 − strength to 1 + strength."""
    brightness, contrast, saturation = (1 + strength * (2 * u - 1)).view(-1, 3, 1, 1, 1).unbind(1)
    x = (x + 1) * brightness - 1
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + (x - mean) * contrast
    grey = x.mean(1, keepdim=True)
    return (grey + (x - grey) * saturation).clamp(-1, 1)
