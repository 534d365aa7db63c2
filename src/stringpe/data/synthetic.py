"""A training set that needs no files: the class is the direction from a red spot to a green one.

Each spot is equally often in every place, so a model without positions cannot do better than chance.
"""

import math

import torch
from torch import Tensor

from ..recipes.schema import Data
from ..seeds import generator


def draw_spots(data: Data, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, S, S) uint8 and labels (n,): num_classes directions; the spots are a third of the image apart."""
    count = (data.train_size or 512) if split == "train" else (data.val_size or 128)
    dice = generator(data.seed, "spots", split)
    size = data.image_size
    label = torch.randint(data.num_classes, (count,), generator=dice)
    angle = 2 * math.pi * label / data.num_classes
    away = torch.stack([angle.sin(), angle.cos()], -1) * size / 3
    low, high = (-away).clamp(min=0) + size / 8, (size - away).clamp(max=size) - size / 8  # both spots inside
    red = low + (high - low) * torch.rand(count, 2, generator=dice)
    image = 0.2 * torch.rand(count, 3, size, size, generator=dice)
    image[:, 0] += 0.8 * _spot(red, size)
    image[:, 1] += 0.8 * _spot(red + away, size)
    return (image.clamp(0, 1) * 255).to(torch.uint8), label


def _spot(centre: Tensor, size: int) -> Tensor:
    """Gaussian spots (n, S, S) at centres (n, 2), row and column."""
    axis = torch.arange(size) + 0.5
    rows, columns = (axis - centre[:, :1]).square(), (axis - centre[:, 1:]).square()  # (n, S) each
    return torch.exp(-(rows[:, :, None] + columns[:, None, :]) / (2 * (size / 16) ** 2))
