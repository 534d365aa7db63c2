"""Frames of the procedural world as a fixed training set: rendered once, kept in a file, loaded whole."""

import hashlib
import inspect
import os
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from .. import __version__, scenes
from ..training.recipe import Data

MIN_SHARE = 0.01
"""Of the image's pixels: an object that shows fewer is not asked about."""

_CHUNK = 64
_LINE_EVERY = 10.0

Frames = dict[str, Tensor]
"""rgb (n, 3, S, S) uint8; depth (n, S, S) float16 in metres; instance (n, S, S) uint8, 0 the room and i + 1 object i;
kind (n, o) int16, −1 where there is no object or too little of it is seen."""


def named(rendered: scenes.Frames) -> Frames:
    """What naming objects needs of a batch, without the frames in which no object is seen."""
    seen = rendered.pixels >= MIN_SHARE * rendered.depth[0].numel()
    some = seen.any(1)
    return {
        "rgb": (rendered.rgb[some] * 255).round().to(torch.uint8).cpu(),
        "depth": rendered.depth[some].half().cpu(),  # 2 mm at 4 m
        "instance": rendered.instance[some].to(torch.uint8).cpu(),
        "kind": rendered.kind.masked_fill(~seen, -1)[some].to(torch.int16).cpu(),
    }


@lru_cache(maxsize=4)
def frames(data: Data, split: str, keep: Callable[[scenes.Frames], Frames] = named) -> Frames:
    """The split's frames, from the cache or made now; kept for the next run in this process. keep: what to keep of a
    batch, a module's function; its tensors are as long as frames are kept, and objects are in slots of equal number."""
    from safetensors.torch import load_file

    path = _path(data, split, keep)
    if not path.exists():
        _write(path, _make(data, split, keep))
    return load_file(path)


def places(chosen: Frames, u: Tensor) -> Tensor:
    """Pixels (b, q), numbered row by row, from uniforms (b, q): each seen object of a frame is equally likely, then
    each of its pixels."""
    instance, kind = chosen["instance"].flatten(1).long(), with_room(chosen["kind"])
    area = torch.zeros_like(kind, dtype=torch.float64).scatter_add_(1, instance, torch.ones_like(instance).double())
    share = torch.where(kind >= 0, 1 / area.clamp(min=1), 0)
    heap = share.gather(1, instance).cumsum(1)  # (b, pixels); float64, or small objects would drown in rounding
    return torch.searchsorted(heap, u.double() * heap[:, -1:], right=True).clamp(max=instance.shape[1] - 1)


def with_room(kind: Tensor) -> Tensor:
    """Kinds by instance number (b, 1 + o), −1 for the room, which is instance 0."""
    return torch.nn.functional.pad(kind.long(), (1, 0), value=-1)


def _path(data: Data, split: str, keep: Callable[[scenes.Frames], Frames]) -> Path:
    """Named after everything that the frames depend on, the source of the renderer and of this file included."""
    source = hashlib.blake2b(digest_size=8)
    kept_by = Path(inspect.getfile(keep))
    for file in [*sorted(Path(scenes.__file__).parent.glob("*.py")), Path(__file__), kept_by]:
        source.update(file.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(data.cache) if data.cache else Path(base).expanduser() / "stringpe"
    count = data.train_size if split == "train" else data.val_size
    name = f"scenes-{keep.__name__}-{__version__}-{source.hexdigest()}-{split}-{count}-{data.image_size}px"
    return folder / f"{name}-seed{data.seed}.safetensors"


def _make(data: Data, split: str, keep: Callable[[scenes.Frames], Frames]) -> Frames:
    count = data.train_size if split == "train" else data.val_size
    if count < 1:
        raise ValueError("data.source=scenes needs data.train_size and data.val_size, the numbers of frames to make")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = 2 * data.seed + (split == "val")  # no room is in both splits
    size = (data.image_size, data.image_size)
    parts: list[Frames] = []
    began = told = time.monotonic()
    for first in range(0, count, _CHUNK):
        numbers = range(first, min(first + _CHUNK, count))
        parts.append(keep(scenes.render(scenes.sample(world, numbers, device=device), size)))
        if time.monotonic() - told > _LINE_EVERY:
            told = time.monotonic()
            rate = numbers.stop / (told - began)
            print(f"scenes: {numbers.stop} / {count} frames ({rate:.0f}/s)", file=sys.stderr, flush=True)
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _write(path: Path, made: Frames) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    save_file(made, draft)
    os.replace(draft, path)  # several processes may make the same frames; the last one wins
