"""Pages for people who would rather look than read: one HTML file each, with everything in it.

    page = viewer.show_scene(rgb, depth, intrinsics, [viewer.Box(box, "mug", "true"), …])    # a point cloud with boxes
    page = viewer.show_attention(image, {"rope": maps, "cayley": maps}, grid=(14, 14))       # the map of a chosen token
    page = viewer.show_rollout({"front": frames, "wrist": frames}, "picked up after 71 steps")
    viewer.save(page, "scene.html")

A page needs no network and no library. Drag to turn a scene, scroll to come nearer, click a box in the list to see it
alone. Colours: true boxes are green and predicted ones blue, as in the paper.
"""

import base64
import html
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..geometry import box3d
from ..io.files import write_text
from ..io.png import png

KINDS = ("true", "predicted")


@dataclass(frozen=True)
class Box:
    """A box (12,) in the camera frame as `box3d` has it, what it is called, whether it is the truth or a prediction,
    and how sure a prediction is."""

    box: Tensor
    label: str
    kind: str = "true"
    score: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"the kind of a box is one of {', '.join(KINDS)}, got {self.kind!r}")


def show_scene(
    rgb: Tensor, depth: Tensor, intrinsics: Tensor, boxes: Sequence[Box] = (), *, title: str = "RGB-D frame"
) -> str:
    """A page with the frame as a cloud of coloured points, and the boxes in it.

    rgb (3, h, w) uint8; depth (h, w) in metres, where 0, NaN and infinity are holes; intrinsics (3, 3) in pixels, with
    pixel centres at + ½.
    """
    if rgb.ndim != 3 or rgb.shape[0] != 3 or rgb.dtype != torch.uint8:
        raise ValueError(f"rgb must be (3, h, w) uint8, got {tuple(rgb.shape)} {rgb.dtype}")
    if depth.shape != rgb.shape[1:] or not depth.is_floating_point():
        raise ValueError(f"depth must be {tuple(rgb.shape[1:])} in metres, got {tuple(depth.shape)} {depth.dtype}")
    points, colours = _cloud(rgb.cpu(), depth.cpu().double(), intrinsics.cpu().double())
    data = {
        "points": _base64(points),
        "colours": _base64(colours),
        "focal": float(intrinsics[0, 0]),
        "boxes": [_describe(box) for box in boxes],
        "edges": [[i, i | bit] for i in range(8) for bit in (1, 2, 4) if not i & bit],
    }
    return _page(title, "scene", data)


def show_attention(
    image: Tensor, maps: Mapping[str, Tensor], grid: tuple[int, int], *, title: str = "Attention"
) -> str:
    """A page that shows where a chosen patch looks, under each of several models or encodings.

    image (3, h, w) uint8; maps: by name, weights (n, n) with rows that sum to one, from patch to patch, of a grid of n
    patches (rows, columns).
    """
    rows, columns = grid
    for name, weights in maps.items():
        if weights.shape != (rows * columns, rows * columns):
            raise ValueError(
                f"the map of {name!r} must be ({rows * columns}, {rows * columns}) for {rows} × {columns} patches, "
                f"got {tuple(weights.shape)}"
            )
    data = {
        "image": "data:image/png;base64," + base64.b64encode(png(image.permute(1, 2, 0).contiguous())).decode(),
        "size": [image.shape[2], image.shape[1]],
        "grid": [rows, columns],
        "maps": {name: _base64(weights.detach().float().cpu()) for name, weights in maps.items()},
    }
    return _page(title, "attention", data)


def show_rollout(cameras: Mapping[str, Sequence[Tensor]], caption: str = "", *, title: str = "Rollout") -> str:
    """A page that plays the pictures (3, h, w) uint8 of several cameras side by side, equally many each."""
    lengths = {name: len(frames) for name, frames in cameras.items()}
    if not lengths or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise ValueError(f"every camera needs the same number of pictures, at least one; got {lengths}")
    data = {
        "caption": caption,
        "cameras": {
            name: [base64.b64encode(png(frame.permute(1, 2, 0).contiguous())).decode() for frame in frames]
            for name, frames in cameras.items()
        },
    }
    return _page(title, "rollout", data)


def save(page: str, path: str | Path) -> Path:
    """Write a page to a file."""
    write_text(Path(path), page)
    return Path(path)


def _cloud(rgb: Tensor, depth: Tensor, intrinsics: Tensor) -> tuple[Tensor, Tensor]:
    """Points (n, 3) float32 in the camera frame and their colours (n, 3) uint8, without holes."""
    height, width = depth.shape
    v, u = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) + 0.5, torch.arange(width, dtype=torch.float64) + 0.5, indexing="ij"
    )
    rays = torch.stack([u, v, torch.ones_like(u)], -1) @ torch.linalg.inv(intrinsics).T
    there = depth.isfinite() & (depth > 0)
    return (rays[there] * depth[there][:, None]).float(), rgb.permute(1, 2, 0)[there].contiguous()


def _describe(box: Box) -> dict[str, Any]:
    corners = box3d.corners(box.box.detach().cpu().double())
    return {"corners": corners.tolist(), "label": box.label, "kind": box.kind, "score": box.score}


def _base64(tensor: Tensor) -> str:
    """The bytes of a float32 or uint8 tensor, little-endian, as text."""
    flat = tensor.contiguous().flatten()
    if flat.dtype == torch.uint8:
        return base64.b64encode(bytes(flat.tolist())).decode()
    return base64.b64encode(struct.pack(f"<{flat.numel()}f", *flat.tolist())).decode()


def _page(title: str, kind: str, data: dict[str, Any]) -> str:
    folder = files(__package__)
    style = (folder / "style.css").read_text(encoding="utf-8")
    script = (folder / f"{kind}.js").read_text(encoding="utf-8")
    content = json.dumps(data).replace("<", "\\u003c")  # a label must not end the script
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{style}</style></head>\n<body><h1>{html.escape(title)}</h1>'
        f'<main id="main"></main>\n<script>const data = {content};\n{script}</script></body></html>\n'
    )
