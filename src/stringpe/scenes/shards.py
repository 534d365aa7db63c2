"""Scenes on disk: WebDataset shards (tar files) that are written once, whole, and a contact sheet to look at.

Each sample `000000042` holds
- rgb.png: 8-bit sRGB;
- depth.png: 16-bit, in steps of DEPTH_STEP metres (rooms are closed, so 0 is free to mark holes);
- instance.png: 8-bit, 0 the room, i + 1 the object with "slot": i;
- json: camera (K in pixels with pixel centres at + ½, pose as world from camera), the visible objects with names,
  attributes and boxes in the camera frame (x right, y down, z forward), the relations between them, captions.
"""

from __future__ import annotations

import functools
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..geometry.box3d import project_edges
from ..io.png import png
from ..io.progress import progress
from .descriptions import RELATIONS, captions, in_view, relations, seen
from .layout import sample
from .renderer import render
from .scene import FAMILIES, Frames

DEPTH_STEP = 0.0002
"""Metres per step of a stored depth: 0.2 mm, up to 13.1 m."""

_SHEET = 24


def describe(frames: Frames) -> list[dict[str, Any]]:
    """The annotation of every frame as plain data."""
    table = relations(frames).cpu()
    texts = captions(frames)
    result = []
    for b, things in enumerate(seen(frames)):
        slots = {t.slot for t in things}
        facts = [(i, RELATIONS[r], j) for i, j, r in table[b].nonzero().tolist() if i in slots and j in slots]
        result.append(
            {
                "seed": frames.scenes.seed,
                "index": int(frames.scenes.index[b]),
                "family": FAMILIES[int(frames.scenes.family[b])],
                "size": list(frames.depth.shape[1:]),
                "intrinsics": frames.intrinsics[b].tolist(),
                "pose": frames.pose[b].tolist(),
                "depth_step": DEPTH_STEP,
                "objects": [asdict(t) for t in things],
                "relations": facts,
                "captions": texts[b],
            }
        )
    return result


def _files(frames: Frames) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files of a batch, sample after sample."""
    rgb = (frames.rgb * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
    depth = (frames.depth / DEPTH_STEP).round().clamp(0, 65535).to(torch.int32).cpu()
    instance = frames.instance.to(torch.uint8).cpu()
    for b, text in enumerate(describe(frames)):
        key = f"{text['index']:09d}"
        yield f"{key}.rgb.png", png(rgb[b])
        yield f"{key}.depth.png", png(depth[b])
        yield f"{key}.instance.png", png(instance[b])
        yield f"{key}.json", json.dumps(text).encode()


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that it is either there whole or not there at all."""
    temporary = path.with_name(path.name + ".tmp")
    write(temporary)
    os.replace(temporary, path)


def _settings(out: Path, wanted: dict[str, Any]) -> None:
    """Write down what the folder holds, or refuse to mix two datasets in one folder."""
    path = out / "dataset.json"
    if path.exists():
        found = json.loads(path.read_text())
        differing = [name for name in wanted if found.get(name) != wanted[name]]
        if differing:
            listed = ", ".join(f"{n}={found.get(n)!r} there, {wanted[n]!r} asked for" for n in differing)
            raise ValueError(f"{out} holds another dataset ({listed}): choose an empty folder or repeat its settings")
        return
    _replace(path, lambda p: p.write_text(json.dumps(wanted, indent=1)))


def write(
    out: str | Path,
    count: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (128, 128),
    families: Sequence[str] = FAMILIES,
    shard_size: int = 1000,
    device: torch.device | str = "cpu",
    batch: int = 64,
) -> list[Path]:
    """Write frames 0 .. count − 1 to `out` as shards, a contact sheet and dataset.json; returns the shards.

    Stop it whenever you like and call it again: finished shards stay as they are, an unfinished one starts over.
    """
    if count < 1 or shard_size < 1 or batch < 1:
        raise ValueError(
            f"count, shard_size and batch count frames, received {count}, {shard_size} and {batch}: "
            "pass at least 1 for each"
        )
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    _settings(
        out, {"count": count, "seed": seed, "size": list(size), "families": list(families), "shard_size": shard_size}
    )
    spans = [range(first, min(first + shard_size, count)) for first in range(0, count, shard_size)]
    paths = [out / f"scenes-{number:06d}.tar" for number in range(len(spans))]

    def make(indices: Sequence[int]) -> Frames:
        return render(sample(seed, indices, families=families, device=device), size)

    def write_shard(path: Path, span: range, advance: Callable[[int], None]) -> None:
        with tarfile.open(path, "w") as tar:
            for start in range(span.start, span.stop, batch):
                frames = make(range(start, min(start + batch, span.stop)))
                for name, content in _files(frames):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)  # times stay 0: the same seed gives the same bytes
                    tar.addfile(entry, io.BytesIO(content))
                advance(len(frames))

    done = sum(len(span) for span, path in zip(spans, paths, strict=True) if path.exists())
    with progress("scenes", count, done) as advance:
        for span, path in zip(spans, paths, strict=True):
            if not path.exists():
                _replace(path, functools.partial(write_shard, span=span, advance=advance))
    picture = out / "contact_sheet.png"
    if not picture.exists():
        contact_sheet(make(range(min(count, _SHEET))), picture)
    return paths


_GREEN = (0.15, 1.0, 0.35)


def draw_boxes(frames: Frames, min_pixels: int = 12, min_visibility: float = 0.15) -> Tensor:
    """(b, 3, h, w): the images with the boxes of sufficiently visible objects in green."""
    images = frames.rgb.clone()
    h, w = frames.depth.shape[1:]
    chosen = in_view(frames, min_pixels, min_visibility)
    steps = torch.linspace(0, 1, 4 * max(h, w), device=images.device)[:, None, None]
    for b in range(len(frames)):
        lines = project_edges(frames.box3d[b][chosen[b]], frames.intrinsics[b]).to(images)
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
