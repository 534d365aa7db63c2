"""Tensors as PNG files, with nothing but the standard library: shards can be written wherever torch runs.

A 16-bit depth map carries the metres per step in a text chunk "depth_step", so that no reader has to guess them.
"""

from __future__ import annotations

import ctypes
import math
import struct
import zlib

import torch
from torch import Tensor

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_DEPTH_STEP = b"depth_step"


def png(image: Tensor, *, depth_step: float | None = None) -> bytes:
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
