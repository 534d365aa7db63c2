"""Tensors as PNG files, with nothing but the standard library: shards can be written wherever torch runs."""

from __future__ import annotations

import ctypes
import struct
import zlib

import torch
from torch import Tensor


def _bytes(tensor: Tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(image: Tensor) -> bytes:
    """A uint8 image (h, w) or (h, w, 3), or an int32 image (h, w) with values 0 .. 65535 as 16-bit grey."""
    image = image.cpu()
    height, width = image.shape[:2]
    deep = image.dtype == torch.int32
    if deep:  # PNG is big-endian
        image = torch.stack([image >> 8, image & 255], -1).to(torch.uint8)
    lines = image.reshape(height, -1)
    lines = torch.cat([lines.new_zeros(height, 1), lines], 1)  # each line starts with its filter: none
    colour = 2 if not deep and image.dim() == 3 else 0
    header = struct.pack(">IIBBBBB", width, height, 16 if deep else 8, colour, 0, 0, 0)
    body = zlib.compress(_bytes(lines), 6)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")
