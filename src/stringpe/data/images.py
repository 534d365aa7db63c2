"""Pillow images as tensors: the working size of labelled images, squares, and sets of images of different sizes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

MARGIN = 256 / 224
"""Short side of an image that is kept for crops, in sides of a crop; larger images are reduced to it."""


class Ragged(NamedTuple):
    """n images of different sizes as one tensor. pixels: (all pixels, 3) uint8, row by row and image by image; first:
    (n,), where an image begins; size: (n, 2), its height and width."""

    pixels: Tensor
    first: Tensor
    size: Tensor

    def select(self, index: Tensor) -> "Ragged":
        """The images at `index`; their pixels are not copied."""
        return Ragged(self.pixels, self.first[index], self.size[index])

    def to(self, device: torch.device) -> "Ragged":
        """The images on a device."""
        return Ragged(*(t.to(device, non_blocking=True) for t in self))


def stack_ragged(images: Sequence[Tensor]) -> Ragged:
    """Images (h, w, 3) uint8, of any sizes, in one tensor."""
    size = torch.tensor([image.shape[:2] for image in images])
    area = size.prod(1)
    return Ragged(torch.cat([image.reshape(-1, 3) for image in images]), area.cumsum(0) - area, size)


def to_pixels(image: "Image") -> Tensor:
    """uint8 (H, W, 3) of an RGB image."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3)


def to_tensor(image: "Image") -> Tensor:
    """uint8 (3, H, W) of an RGB image."""
    return to_pixels(image).permute(2, 0, 1).contiguous()


def to_image(pixels: Tensor) -> "Image":
    """The RGB image of uint8 (3, H, W)."""
    from PIL import Image

    height, width = pixels.shape[1:]
    return Image.frombytes("RGB", (width, height), pixels.permute(1, 2, 0).contiguous().numpy().tobytes())


def reduce_image(image: "Image", size: int) -> "Image":
    """The whole image at its working size: a short side between `size` and MARGIN · `size`, so that a crop of `size`
    pixels always fits. An image in between stays as it is."""
    from PIL import Image

    short = min(image.size)
    target = min(max(short, size), round(size * MARGIN))
    if short == target:
        return image
    wide, high = (max(target, round(side * target / short)) for side in image.size)
    return image.resize((wide, high), Image.Resampling.BICUBIC, reducing_gap=3)  # large photographs in two steps


def stretch_image(picture: "Image", size: int) -> Tensor:
    """uint8 (3, size, size): the whole image, whatever its aspect, as SigLIP does it."""
    from PIL import Image

    return to_tensor(picture.resize((size, size), Image.Resampling.BICUBIC))


def stretch_depth(depth: Tensor, size: int) -> Tensor:
    """Depth (H, W) as float16 (size, size), each value that of the nearest pixel: a mean over an edge is the distance
    of nothing."""
    return F.interpolate(depth[None, None], (size, size), mode="nearest-exact")[0, 0].half()
