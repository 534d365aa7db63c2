"""Images padded to squares, and boxes mapped back to the images.

An image keeps its aspect ratio: it lies at the top left of a grey square whose side is the image's long side, and the
square is resized. A box on the square is in units of that long side in x *and* y, not of width and height.
"""

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..io.pictures import to_pixels
from .boxes import clip, to_corners

if TYPE_CHECKING:
    from PIL.Image import Image

GREY = 128
"""The padding: half of 255, zero in [−1, 1]. Black or white would add an edge to the picture."""


def to_square(image: "Image", size: int) -> Tensor:
    """uint8 (3, size, size) of a Pillow image: padded first, then resized, so that pixels and boxes scale alike."""
    from PIL import Image

    image = image.convert("RGB")
    side = max(image.size)
    if image.size != (side, side):
        square = Image.new("RGB", (side, side), (GREY, GREY, GREY))
        square.paste(image)
        image = square
    if side != size:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return to_pixels(image).permute(2, 0, 1).contiguous()


def depth_to_square(depth: Tensor, size: int) -> Tensor:
    """Depth (h, w) on the square that `to_square` makes of its image: (size, size), 0 in the padding. Each value is
    that of the nearest pixel: a mean of two surfaces would be the depth of neither."""
    side = max(depth.shape)
    high, wide = (max(1, round(length * size / side)) for length in depth.shape)
    small = F.interpolate(depth[None, None], (high, wide), mode="nearest-exact")[0, 0]
    return F.pad(small, (0, size - wide, 0, size - high))


def from_square(box: Tensor, width: Tensor | float, height: Tensor | float) -> Tensor:
    """Corners in pixels of the image, from cxcywh in [0, 1] on its padded square, clipped to the image.

    box: (…, 4); width and height: numbers, or tensors of the leading shape."""
    width, height = (torch.as_tensor(side, dtype=box.dtype, device=box.device) for side in (width, height))
    side = torch.maximum(width, height)
    return clip(to_corners(box) * side[..., None], width, height)
