"""Frames as a picture to look at: a grid of images with the 3D boxes of the visible objects drawn in."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ..io.png import png
from .frames import Frames
from .relations import in_view

_EDGES = tuple((a, a | bit) for bit in (1, 2, 4) for a in range(8) if not a & bit)
_NEAR = 0.05
_GREEN = (0.15, 1.0, 0.35)


def _segments(frames: Frames, b: int, shown: Tensor) -> Tensor:
    """(n, 2, 2) pixel coordinates of the box edges of the objects shown (o,) in frame b, cut at the near plane."""
    corners = frames.corners()[b][shown]  # (k, 8, 3)
    edges = torch.tensor(_EDGES, device=corners.device)
    ends = corners[:, edges].reshape(-1, 2, 3)
    z = ends[..., 2]
    ends = ends[(z > _NEAR).any(-1)]
    z = ends[..., 2]
    share = (
        ((_NEAR - z) / (z.flip(-1) - z)).clamp(min=0).masked_fill(z > _NEAR, 0)
    )  # how far to move towards the other end
    ends = ends + share[..., None] * (ends.flip(-2) - ends)
    k = frames.intrinsics[b]
    return ends[..., :2] / ends[..., 2:] * k.diagonal()[:2] + k[:2, 2]


def draw_boxes(frames: Frames, min_pixels: int = 12, min_visibility: float = 0.15) -> Tensor:
    """(b, 3, h, w): the images with the boxes of sufficiently visible objects in green."""
    images = frames.rgb.clone()
    h, w = frames.depth.shape[1:]
    chosen = in_view(frames, min_pixels, min_visibility)
    steps = torch.linspace(0, 1, 4 * max(h, w), device=images.device)[:, None, None]
    for b in range(len(frames)):
        lines = _segments(frames, b, chosen[b])
        if len(lines) == 0:
            continue
        dots = (lines[:, 0] + steps * (lines[:, 1] - lines[:, 0])).reshape(-1, 2).floor().long()
        dots = dots[((dots >= 0) & (dots < torch.tensor([w, h], device=dots.device))).all(-1)]
        line = torch.zeros(h, w, device=images.device)
        line[dots[:, 1], dots[:, 0]] = 0.7  # thin enough to see the object through it
        images[b] = torch.lerp(images[b], torch.tensor(_GREEN, device=images.device)[:, None, None], line)
    return images


def contact_sheet(frames: Frames, path: str | Path, *, columns: int = 6, boxes: bool = True) -> None:
    """Write a PNG: the frames in rows of `columns`, with boxes or without."""
    images = draw_boxes(frames) if boxes else frames.rgb
    b, _, h, w = images.shape
    rows = -(-b // columns)
    grid = torch.ones(rows * columns, 3, h, w, device=images.device)
    grid[:b] = images
    grid = grid.view(rows, columns, 3, h, w).permute(0, 3, 1, 4, 2).reshape(rows * h, columns * w, 3)
    Path(path).write_bytes(png((grid * 255).round().to(torch.uint8)))
