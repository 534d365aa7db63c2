"""Frames of the procedural world as a fixed training set: rendered once, kept in a file, loaded whole."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from .. import __version__, scenes
from ..devices import find_device
from ..io.progress import progress
from ..recipes.schema import Data
from .cache import digest, load_or_make, remember
from .sources import split_limit

MIN_SHARE = 0.01
"""Share of the image's pixels: an object of which fewer are seen is not asked about."""

CHUNK = {"cpu": 64, "cuda": 512}
"""Frames that are rendered at a time, by the kind of device."""

FrameColumns = dict[str, Tensor]
"""rgb (n, 3, S, S) uint8; depth (n, S, S) float16 in metres; instance (n, S, S) uint8, 0 the room and i + 1 object i;
kind (n, o) int16, −1 where there is no object, or too little of it is seen."""


Sampler = Callable[[int, range, torch.device], scenes.Scenes]
"""From a world and numbers of rooms to these rooms, on a device."""


@remember
def load_frames(data: Data, split: str, cameras: str = "any") -> FrameColumns:
    """The split's frames, from the cache or rendered now: "train", "val", or "far", the rooms of "val" seen by cameras
    that stand far away. cameras: where those of the other splits stand, "any" or "near"."""
    what = "scenes" if cameras == "any" else f"scenes-{cameras}"
    distance = "far" if split == "far" else cameras
    return render_once(what, data, split, partial(_render, distance=distance))


def render_once(
    what: str, data: Data, split: str, make: Callable[[Data, str], FrameColumns], *files: str
) -> FrameColumns:
    """What `make` makes of a split, from its file in the cache, which is written if it is not there. `files`: the code
    of `make`. The name of the cache's file tells everything that the frames depend on, the code of the renderer, of
    this module and of `make` included."""
    code = digest(*sorted(Path(scenes.__file__).parent.glob("*.py")), Path(__file__), *map(Path, files))
    count = split_limit(data, split)
    name = f"{what}-{__version__}-{code}-{split}-{count}-{data.image_size}px-seed{data.seed}"
    return load_or_make(data.cache, name, lambda: make(data, split))


def render_split(data: Data, split: str, sample: Sampler | None = None) -> Iterator[scenes.Frames]:
    """The frames of a split in batches, rendered on a GPU if there is one. sample: the rooms; those of the procedural
    world by default."""
    count, device = split_limit(data, split), find_device()
    if count < 1:
        raise ValueError(
            f"data.source={data.source} needs data.train_size and data.val_size, the numbers of frames to make"
        )
    world, size = 2 * data.seed + (split != "train"), CHUNK[device.type]  # no room is in both splits
    with progress("frames", count) as advance:
        for first in range(0, count, size):
            numbers = range(first, min(first + size, count))
            yield scenes.render((sample or sample_rooms)(world, numbers, device), (data.image_size, data.image_size))
            advance(len(numbers))


def sample_rooms(world: int, numbers: range, device: torch.device, distance: str = "any") -> scenes.Scenes:
    """Rooms of the procedural world; distance: where cameras stand."""
    return scenes.sample(world, numbers, distance=distance, device=device)


def store_images(frames: scenes.Frames, which: Tensor) -> FrameColumns:
    """rgb and depth of some frames, as they are kept."""
    rgb = (frames.rgb[which] * 255).round().to(torch.uint8).cpu()
    return {"rgb": rgb, "depth": frames.depth[which].half().cpu()}  # 2 mm at 4 m


def join_columns(parts: Iterable[FrameColumns]) -> FrameColumns:
    """The frames of several batches in one."""
    kept = list(parts)
    return {name: torch.cat([part[name] for part in kept]) for name in kept[0]}


def draw_places(chosen: FrameColumns, u: Tensor) -> Tensor:
    """Pixels (b, q), numbered row by row, from uniforms (b, q): each seen object of a frame is equally likely, then
    each of its pixels."""
    instance, kind = chosen["instance"].flatten(1).long(), with_room(chosen["kind"])
    area = torch.zeros_like(kind, dtype=torch.float64).scatter_add_(1, instance, torch.ones_like(instance).double())
    share = torch.where(kind >= 0, 1 / area.clamp(min=1), 0)
    heap = share.gather(1, instance).cumsum(1)  # (b, pixels); in float64: float32 would round small objects away
    return torch.searchsorted(heap, u.double() * heap[:, -1:], right=True).clamp(max=instance.shape[1] - 1)


def with_room(kind: Tensor) -> Tensor:
    """Kinds by instance number (b, 1 + o), −1 for the room, which is instance 0."""
    return torch.nn.functional.pad(kind.long(), (1, 0), value=-1)


def _render(data: Data, split: str, distance: str) -> FrameColumns:
    batches = render_split(data, split, partial(sample_rooms, distance=distance))
    parts = [_columns(batch) for batch in batches]
    widest = max(part["kind"].shape[1] for part in parts)
    for part in parts:
        part["kind"] = torch.nn.functional.pad(part["kind"], (0, widest - part["kind"].shape[1]), value=-1)
    return join_columns(parts)


def _columns(batch: scenes.Frames) -> FrameColumns:
    """The columns of a batch, without the frames in which no object is seen."""
    seen = batch.pixels >= MIN_SHARE * batch.depth[0].numel()
    some = seen.any(1)
    return store_images(batch, some) | {
        "instance": batch.instance[some].to(torch.uint8).cpu(),
        "kind": batch.kind.masked_fill(~seen, -1)[some].to(torch.int16).cpu(),
    }
