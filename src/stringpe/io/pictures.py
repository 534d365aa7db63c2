"""Pictures and bytes: decoding files from untrusted sources, and writing tensors as PNG files.

Pillow's plugins raise nearly anything on damaged bytes, and a file of a few kilobytes can claim gigabytes of pixels.
Here every such case becomes `BadSample`, which names the picture, so that the reader can count it and go on.

PNG files are written with nothing but the standard library, so that shards can be written wherever torch runs. A
16-bit depth map carries the metres per step in a text chunk "depth_step", so that no reader has to guess them.
"""

import ctypes
import io
import math
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


SUFFIXES = (".webp", ".jpg", ".jpeg", ".png", ".ppm", ".bmp")
"""Suffixes of the files that are taken for pictures."""

FORMATS = ("JPEG", "PNG", "WEBP", "PPM", "BMP", "GIF")
"""What a file may hold, whatever it is called. Formats that run programs or nest others are not among them."""

MAX_PIXELS = 64 * 1024 * 1024
"""Largest picture, width times height: 8192 × 8192. Decoded it takes 192 MiB."""

MAX_ASPECT = 256
"""Largest ratio of the sides: a longer picture, resized to a common short side, would fill the memory."""

MILLIMETRE = 0.001
"""The usual step of a depth map of 16 bits, in metres."""

HOLE = 65535
"""Another value that is a hole in a depth map of 16 bits, beside 0."""

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DEPTH_STEP = b"depth_step"


class BadSample(Exception):
    """A sample of a data set that cannot be used; the text says which one and why."""


def decode_picture(content: bytes, name: str, *, upright: bool = False) -> "Image":
    """The picture as RGB, or BadSample with `name`. upright: turn it as its camera says (EXIF)."""
    from PIL import ImageOps

    def convert(image: "Image") -> "Image":
        return _to_rgb(ImageOps.exif_transpose(image) if upright else image)

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
        return _to_rgb(image)
    except Exception as error:  # see _decode
        raise BadSample(f"{name}: {error}") from error


def to_pixels(image: "Image") -> Tensor:
    """uint8 (H, W, 3) of an RGB image."""
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width, 3)


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


def _to_rgb(image: "Image") -> "Image":
    """The picture as RGB of 8 bits. Grey of 16 bits is scaled to them: Pillow cuts it off at 255."""
    if image.mode == "F":
        raise ValueError("it has real numbers in place of colours")
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
    return image.convert("RGB")


def _check_size(image: "Image") -> None:
    """Refuse pictures that would not fit into memory, before they are unpacked."""
    size = f"{image.width} × {image.height} pixels"
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"{size} are more than the {MAX_PIXELS // 2**20} million that are decoded")
    if max(image.size) > MAX_ASPECT * min(image.size):
        raise ValueError(f"{size} are longer than {MAX_ASPECT} : 1, beyond which nothing is decoded")


def to_millimetres(depth: Tensor) -> Tensor:
    """Depth in metres as int32 steps of `MILLIMETRE`, for 16-bit files; 0 where there is a hole, or something farther
    away than 65.534 m."""
    steps = (depth.nan_to_num(0, 0, 0) / MILLIMETRE).round()
    return torch.where((steps > 0) & (steps < HOLE), steps, 0).to(torch.int32)


def encode_png(image: Tensor, *, depth_step: float | None = None) -> bytes:
    """A PNG file of a uint8 image (h, w) or (h, w, 3), or of an int32 image (h, w) of 0 .. 65535 as 16-bit grey.

    depth_step: for depth maps, the metres per step, stored in the file.
    """
    image = image.cpu()
    height, width = image.shape[:2]
    deep = image.dtype == torch.int32
    if deep:  # PNG is big-endian
        image = torch.stack([image >> 8, image & 255], -1).to(torch.uint8)
    lines = image.reshape(height, -1)
    lines = torch.cat([lines.new_zeros(height, 1), lines], 1)  # each line starts with its filter: none
    colour = 2 if not deep and image.dim() == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 16 if deep else 8, colour, 0, 0, 0)
    text = b"" if depth_step is None else _chunk(b"tEXt", _DEPTH_STEP + b"\0" + repr(float(depth_step)).encode())
    body = zlib.compress(_bytes(lines), 6)
    return _SIGNATURE + _chunk(b"IHDR", header) + text + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def read_depth_step(content: bytes) -> float | None:
    """The metres per step that a PNG file says of itself, or None if it says nothing (or is not a PNG file).

    ValueError if what it says is not a positive number. Only the chunks before the pixels are read."""
    if not content.startswith(_SIGNATURE):
        return None
    place = len(_SIGNATURE)
    while place + 8 <= len(content):
        length, name = struct.unpack(">I4s", content[place : place + 8])
        data = content[place + 8 : place + 8 + length]
        if name == b"IDAT":
            break
        if name == b"tEXt" and data.startswith(_DEPTH_STEP + b"\0"):
            return _positive(data[len(_DEPTH_STEP) + 1 :])
        place += 12 + length
    return None


def _positive(text: bytes) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"its depth_step is {text[:40]!r}, not a positive number of metres")
    return value


def _bytes(tensor: Tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
