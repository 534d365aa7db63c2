"""One Pillow image at a time: crops, flips and tensors, for training sets that do not fit in memory."""

import math
import random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..recipes.schema import Augment
from .randaugment import randaugment

if TYPE_CHECKING:
    from PIL.Image import Image

_CROP_TRIES = 10


def to_tensor(image: "Image") -> Tensor:
    """uint8 (3, H, W)."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3).permute(2, 0, 1).contiguous()


def central(image: "Image", size: int, margin: float = 1.0) -> "Image":
    """The middle square of `size` pixels, after the short side was made `size · margin`."""
    from PIL import Image

    short = min(image.size)
    target = round(size * margin)
    if short != target:
        wide, high = (max(size, round(s * target / short)) for s in image.size)
        image = image.resize((wide, high), Image.Resampling.BICUBIC)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    return image if image.size == (size, size) else image.crop((left, top, left + size, top + size))


def inception_crop(image: "Image", size: int, smallest: float, dice: random.Random) -> "Image":
    """A random part, between `smallest` and all of the area and 3:4 to 4:3 in aspect, resized to a square."""
    from PIL import Image

    box = (0, 0, *image.size)
    for _ in range(_CROP_TRIES):
        area = image.width * image.height * dice.uniform(smallest, 1)
        aspect = math.exp(dice.uniform(-math.log(4 / 3), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= image.width and 0 < high <= image.height:
            left, top = dice.randint(0, image.width - wide), dice.randint(0, image.height - high)
            box = (left, top, left + wide, top + high)
            break
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)


def training_picture(image: "Image", size: int, how: Augment, dice: random.Random) -> Tensor:
    """Crop, flip and RandAugment, as uint8 (3, size, size)."""
    from PIL import Image

    image = inception_crop(image, size, how.crop, dice) if how.crop < 1 else central(image, size)
    if how.flip and dice.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if how.randaugment:
        image = randaugment(image, how.randaugment, how.magnitude, dice)
    return to_tensor(image)
