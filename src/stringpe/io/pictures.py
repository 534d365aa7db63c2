"""The one place that decodes pictures from bytes that nobody vouches for.

Pillow's plugins raise nearly anything on damaged bytes, and a file of a few kilobytes can claim gigabytes of pixels.
Here every such case becomes `BadSample`, which names the picture, so that a reader can count it and go on.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".webp", ".jpg", ".jpeg", ".png", ".ppm", ".bmp")
"""Names of files that are taken for pictures."""

FORMATS = ("JPEG", "PNG", "WEBP", "PPM", "BMP", "GIF")
"""What a file may hold, whatever it is called. Formats that run programs or nest others are not among them."""

MAX_PIXELS = 64 * 1024 * 1024
"""Largest picture, width times height: 8192 × 8192. Decoded it takes 192 MiB."""


MAX_ASPECT = 256
"""Longest picture, in widths: brought to a common short side, a longer one would fill the memory."""


class BadSample(Exception):
    """A sample of a data set that cannot be used; the text says which one and why."""


def decode_picture(content: bytes, name: str, *, upright: bool = False) -> "Image":
    """The picture as RGB, or BadSample with `name`. upright: turn it as its camera says (EXIF)."""
    from PIL import ImageOps

    def convert(image: "Image") -> "Image":
        return (ImageOps.exif_transpose(image) if upright else image).convert("RGB")

    return _decode(content, name, convert)


def decode_deep(content: bytes, name: str, *, tiff: bool = False) -> Tensor:
    """The values (H, W) of a picture with one channel of 16 bits as int32, or BadSample with `name`.

    tiff: take TIFF files too, where they hold one channel of 16 bits, or of float32, which stays float32."""

    def convert(image: "Image") -> "Image":
        if image.mode == "F" and tiff:
            return image
        if not image.mode.startswith("I"):
            raise ValueError(f"it is an image of mode {image.mode}, not 16-bit")
        return image.convert("I")

    image = _decode(content, name, convert, (*FORMATS, "TIFF") if tiff else FORMATS)
    kind = torch.float32 if image.mode == "F" else torch.int32
    return torch.frombuffer(bytearray(image.tobytes()), dtype=kind).view(image.height, image.width)


def convert_picture(image: "Image", name: str) -> "Image":
    """An opened picture as RGB, or BadSample with `name`."""
    try:
        _check_size(image)
        return image.convert("RGB")
    except Exception as error:  # see _decode
        raise BadSample(f"{name}: {error}") from error


def _decode(
    content: bytes, name: str, convert: Callable[["Image"], "Image"], formats: tuple[str, ...] = FORMATS
) -> "Image":
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(content), formats=formats) as image:
            _check_size(image)
            image.load()
            return convert(image)
    except UnidentifiedImageError:
        raise BadSample(f"{name}: not a picture that can be read ({', '.join(formats)})") from None
    except Exception as error:
        # Plugins raise OSError, SyntaxError, ValueError, TypeError, EOFError, IndexError, struct.error, zlib.error and
        # Pillow's own DecompressionBombError, which have no common ancestor but this one.
        raise BadSample(f"{name}: {error or type(error).__name__}") from error


def _check_size(image: "Image") -> None:
    """Refuse pictures that would not fit into memory, before they are unpacked."""
    size = f"{image.width} × {image.height} pixels"
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{size} are more than the {MAX_PIXELS // 2**20} million that are decoded")
    if max(image.size) > MAX_ASPECT * min(image.size):
        raise ValueError(f"{size} are longer than {MAX_ASPECT} : 1, beyond which nothing is decoded")
