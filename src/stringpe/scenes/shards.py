"""Scenes on disk: WebDataset shards (tar files), each written once and as a whole, and a contact sheet to look at.

Each sample `000000042` holds
- rgb.png: 8-bit sRGB;
- depth.png: 16-bit, in steps of DEPTH_STEP metres, as the file itself says (rooms are closed: no pixel is a hole);
- instance.png: 8-bit, 0 the room, i + 1 the object with "slot": i;
- json: camera (K in pixels with pixel centres at + ½, pose as world from camera), the visible objects with names,
  attributes and boxes in the camera frame (x right, y down, z forward), the relations between them, captions.

With several views per scene, consecutive samples show the same room from different cameras: "scene" and "view" in the
json say which. Their poses are in one frame, the room's.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.cache import digest
from ..data.tars import write_samples
from ..geometry.box3d import project_edges
from ..io.files import claim_folder, hold_lock, remove_stale_drafts, write_bytes
from ..io.pictures import encode_png
from ..io.progress import progress
from .descriptions import RELATIONS, captions, in_view, relations, seen
from .layout import check_families, sample
from .renderer import check_size, render
from .scene import FAMILIES, Frames

DEPTH_STEP = 0.0002
"""Metres per step of a stored depth: 0.2 mm, up to 13.1 m."""

_SHEET, _SHEET_WIDTH = 12, 1600  # frames, and pixels
"""Frames on the contact sheet of a data set."""
_GREEN = (0.15, 1.0, 0.35)
_POLL, _PATIENCE = 0.2, 600.0
"""Seconds between two checks of the files of another process, and seconds without any change after which to give up."""


def describe(frames: Frames, views: int = 1) -> list[dict[str, Any]]:
    """The annotation of every frame as plain data. views: the number per scene, as in `sample`."""
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
                "scene": int(frames.scenes.index[b]) // views,
                "view": int(frames.scenes.index[b]) % views,
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


def _encode_samples(frames: Frames, views: int) -> Iterator[tuple[str, dict[str, bytes]]]:
    """The samples of a batch of frames: key, and files by kind."""
    rgb = (frames.rgb * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()
    depth = (frames.depth / DEPTH_STEP).round().clamp(0, 65535).to(torch.int32).cpu()
    instance = frames.instance.to(torch.uint8).cpu()
    for b, text in enumerate(describe(frames, views)):
        files = {"rgb.png": encode_png(rgb[b]), "depth.png": encode_png(depth[b], depth_step=DEPTH_STEP)}
        files |= {"instance.png": encode_png(instance[b]), "json": json.dumps(text).encode()}
        yield f"{text['index']:09d}", files


@dataclass(frozen=True)
class _DataSet:
    """The contents of a folder of shards: frames 0 .. count − 1 of the world `seed`."""

    out: Path
    count: int
    seed: int
    size: tuple[int, int]
    families: tuple[str, ...]
    views: int
    shard_size: int
    decorated: bool
    device: torch.device | str
    batch: int

    def settings(self) -> dict[str, Any]:
        """Everything that the content of the shards depends on."""
        names = ("count", "seed", "size", "families", "views", "shard_size", "decorated")
        # Another version of this package may draw other frames for the same seed.
        renderer = digest(*sorted(Path(__file__).parent.glob("*.py")))
        return {name: getattr(self, name) for name in names} | {"renderer": renderer}

    def shards(self) -> dict[Path, range]:
        """The frames of every shard."""
        spans = [range(i, min(i + self.shard_size, self.count)) for i in range(0, self.count, self.shard_size)]
        return {self.out / f"scenes-{number:06d}.tar": span for number, span in enumerate(spans)}

    def render(self, indices: Sequence[int]) -> Frames:
        options = {"families": self.families, "views": self.views, "decorated": self.decorated, "device": self.device}
        return render(sample(self.seed, indices, **options), self.size)  # type: ignore[arg-type]

    def samples(self, span: range, advance: Callable[[int], None]) -> Iterator[tuple[str, dict[str, bytes]]]:
        """The samples of a shard, rendered batch by batch."""
        for start in range(span.start, span.stop, self.batch):
            frames = self.render(range(start, min(start + self.batch, span.stop)))
            yield from _encode_samples(frames, self.views)
            advance(len(frames))


def write(
    out: str | Path,
    count: int,
    *,
    seed: int = 0,
    size: tuple[int, int] = (128, 128),
    families: Sequence[str] = FAMILIES,
    views: int = 1,
    shard_size: int = 1000,
    decorated: bool = False,
    device: torch.device | str = "cpu",
    batch: int = 64,
) -> list[Path]:
    """Write frames 0 .. count − 1 to `out` as shards, a contact sheet and dataset.json; returns the shards.

    seed, families, views, decorated: as in `sample`; all views of a scene go into the same shard. After an
    interruption, call it again: it keeps finished shards and starts an unfinished one over. Several processes may write
    to one folder: each shard is written by one of them, and all return when every shard is complete.
    """
    if count < 1 or shard_size < 1 or batch < 1:
        raise ValueError(
            f"count, shard_size and batch count frames, received {count}, {shard_size} and {batch}: "
            "pass at least 1 for each"
        )
    check_families(families)
    check_size(size)
    if views < 1 or count % views or shard_size % views:
        raise ValueError(
            f"every scene has {views} views, so count and shard_size must be multiples of it, "
            f"received {count} and {shard_size}"
        )
    shape = (size[0], size[1])
    data = _DataSet(Path(out), count, seed, shape, tuple(families), views, shard_size, decorated, device, batch)
    claim_folder(data.out, data.settings(), file="dataset.json", what="data set")
    shards = data.shards()
    missing = {path: span for path, span in shards.items() if not path.exists()}
    with progress("scenes", count, count - sum(map(len, missing.values()))) as advance:
        _write_missing(data, missing, advance)
    picture = data.out / "contact_sheet.png"
    if not picture.exists():
        contact_sheet(data.render(range(min(count, _SHEET))), picture)
    _clean_up(data.out)
    return list(shards)


def _write_missing(data: _DataSet, missing: dict[Path, range], advance: Callable[[int], None]) -> None:
    """Write the missing shards, except those that other processes are writing; wait for these, and take over the shard
    of a process that ends before completing it."""
    watch = _Watch(data.out)
    while missing:
        holder = ""
        for path, span in list(missing.items()):
            lock = path.with_name(f".{path.name}.lock")
            with ExitStack() as stack:
                try:
                    stack.enter_context(hold_lock(lock, str(path)))
                except ValueError as error:
                    holder = str(error)
                    continue
                if path.exists():
                    advance(len(span))
                else:
                    write_samples(path, data.samples(span, advance))
            del missing[path]
        if missing:
            watch.wait(missing, holder)


def _clean_up(out: Path) -> None:
    """Remove locks, and drafts that killed processes left. All shards are complete, so no process is still writing."""
    for file in out.glob(".scenes-*.tar.*"):
        file.unlink(missing_ok=True)
    for name in ("dataset.json", "contact_sheet.png"):
        remove_stale_drafts(out / name)


class _Watch:
    """Waits for other processes for as long as the files that they write change."""

    def __init__(self, out: Path):
        self.out = out
        self.files: list[tuple[str, int]] | None = None
        self.last_change = time.monotonic()

    def wait(self, missing: Collection[Path], holder: str) -> None:
        """Sleep for a moment; ValueError if nothing has changed for `_PATIENCE` seconds. holder: a message that
        names the writing process."""
        if self.files is None:
            message = f"scenes: {len(missing)} shards are being written by another process: {holder}"
            print(message, file=sys.stderr, flush=True)
        files = []
        for file in sorted(file for path in missing for file in self.out.glob(f".{path.name}.*")):
            with suppress(FileNotFoundError):  # renamed or removed since it was listed
                files.append((file.name, file.stat().st_size))
        if files != self.files:
            self.files, self.last_change = files, time.monotonic()
        elif time.monotonic() - self.last_change > _PATIENCE:
            raise ValueError(f"{holder} (nothing in {self.out} has changed for {_PATIENCE:g} s)")
        time.sleep(_POLL)


def draw_boxes(frames: Frames, min_pixels: int = 12, min_visibility: float = 0.15, *, scale: int = 1) -> Tensor:
    """(b, 3, scale · h, scale · w): the images with the boxes of sufficiently visible objects in green."""
    images = enlarge(frames.rgb, scale)
    h, w = images.shape[2:]
    chosen = in_view(frames, min_pixels, min_visibility)
    steps = torch.linspace(0, 1, 4 * max(h, w), device=images.device)[:, None, None]
    for b in range(len(frames)):
        lines = scale * project_edges(frames.box3d[b][chosen[b]], frames.intrinsics[b]).to(images)
        if len(lines) == 0:
            continue
        dots = (lines[:, 0] + steps * (lines[:, 1] - lines[:, 0])).reshape(-1, 2).floor().long()
        dots = dots[((dots >= 0) & (dots < torch.tensor([w, h], device=dots.device))).all(-1)]
        line = torch.zeros(h, w, device=images.device)
        line[dots[:, 1], dots[:, 0]] = 0.7  # thin enough to see the object through it
        images[b] = torch.lerp(images[b], torch.tensor(_GREEN, device=images.device)[:, None, None], line)
    return images


def enlarge(images: Tensor, scale: int) -> Tensor:
    """A copy of images (b, 3, h, w) with values in [0, 1], enlarged by a whole number."""
    if scale == 1:
        return images.clone()
    return nn.functional.interpolate(images, scale_factor=scale, mode="bicubic").clamp(0, 1)


def contact_sheet(frames: Frames, path: str | Path, *, columns: int = 4, boxes: bool = True) -> None:
    """Write a PNG: the frames in rows of `columns`, with boxes or without. Small frames are enlarged up to four times,
    to a picture of about 1,600 pixels, in which the objects within the boxes can be seen."""
    scale = min(max(_SHEET_WIDTH // (columns * frames.rgb.shape[3]), 1), 4)
    images = draw_boxes(frames, scale=scale) if boxes else enlarge(frames.rgb, scale)
    b, _, h, w = images.shape
    rows = -(-b // columns)
    grid = torch.ones(rows * columns, 3, h, w, device=images.device)
    grid[:b] = images
    grid = grid.view(rows, columns, 3, h, w).permute(0, 3, 1, 4, 2).reshape(rows * h, columns * w, 3)
    write_bytes(Path(path), encode_png((grid * 255).round().to(torch.uint8)))
