"""Shards as a stream, for sets on network storage: the webdataset library reads them from end to end.

Training shards are `data.train` as webdataset spells them (paths, URLs, "pipe:…", {0000..1023}); `data.train_size` must
say how many images they hold. Validation is small and read as ordinary shards. The order is a function of seed, step,
number of processes and number of workers: shards and a buffer are shuffled by seed, and resuming reads past what was
seen (a corrupt image among it shifts the rest by one).
"""

import dataclasses
import io
import random
import warnings
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..recipes.schema import Recipe
from .images import training_picture
from .labelled import label_of
from .loader import Feed
from .order import derive
from .place import Batch, Place
from .transforms import to_unit
from .workers import Workers

_BUFFER = 2000
_PICTURES = ("webp", "jpg", "jpeg", "png")

Picture = tuple[Tensor, int, int]
"""Image uint8, label, and how many corrupt images came before it in this worker since the last one."""


class _Shards(IterableDataset[Picture]):
    """This worker's part of the shards, for ever; what came before step `start` is read but not decoded."""

    def __init__(self, recipe: Recipe, place: Place, start: int):
        self.recipe, self.place, self.start = recipe, place, start

    def __iter__(self) -> Iterator[Picture]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        worker = (self.start + number) % workers  # workers take turns: whose turn it is at `start` must come first
        skip = len(range(worker, self.start, workers)) * self.place.share(self.recipe.loop.batch_size)
        part, parts = self.place.rank * workers + worker, self.place.world * workers
        corrupt = 0
        for place, sample in enumerate(raw_samples(self.recipe, part, parts)):
            if place < skip:
                continue
            dice = random.Random(derive(self.recipe.seed, "stream", part, place))
            picture = _decoded(sample, self.recipe, dice)
            if picture is None:
                corrupt += 1
                continue
            yield *picture, corrupt
            corrupt = 0


class Stream(Feed):
    """Training images from a webdataset stream, validation images through workers."""

    def __init__(self, recipe: Recipe):
        if recipe.data.train_size < 1:
            raise ValueError("data.source=stream cannot count images: say how many with data.train_size")
        self.recipe = recipe
        self._val = Workers(_as_shards(recipe))

    @property
    def examples(self) -> int:
        return self.recipe.data.train_size

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        share = place.share(self.recipe.loop.batch_size)
        loader: DataLoader[Picture] = DataLoader(
            _Shards(self.recipe, place, start),
            batch_size=share,
            num_workers=self.recipe.data.workers,
            pin_memory=place.device.type == "cuda",
        )
        for image, label, corrupt in loader:
            if bad := int(corrupt.sum()):
                self.corrupt += bad
                warnings.warn(f"{bad} images in the stream cannot be decoded and are skipped", RuntimeWarning, 2)
            yield {"image": to_unit(image.to(place.device, non_blocking=True)), "label": label.to(place.device)}

    def val(self, place: Place, batch: int) -> Iterator[Batch]:
        return self._val.val(place, batch)


def raw_samples(recipe: Recipe, part: int, parts: int) -> Iterator[dict[str, Any]]:
    """Raw samples of this part, epoch after epoch, shuffled by (seed, epoch)."""
    try:
        import webdataset as wds  # type: ignore[import-untyped]
    except ImportError:
        raise ValueError("data.source=stream needs the package webdataset: pip install 'stringpe[train]'") from None
    shards = list(wds.SimpleShardList(recipe.data.train).urls)
    if len(shards) < parts:
        raise ValueError(f"{len(shards)} shards do not go round {parts} workers over all processes: lower data.workers")
    epoch = 0
    while True:
        mixed = random.Random(derive(recipe.seed, "shards", epoch)).sample(shards, len(shards))
        dice = random.Random(derive(recipe.seed, "buffer", epoch, part))
        opened = wds.tarfile_to_samples(handler=wds.warn_and_continue)({"url": url} for url in mixed[part::parts])
        yield from wds.shuffle(_BUFFER, initial=_BUFFER, rng=dice)(opened)
        epoch += 1


def _decoded(sample: dict[str, Any], recipe: Recipe, dice: random.Random) -> tuple[Tensor, int] | None:
    from PIL import Image

    encoded = next((sample[kind] for kind in _PICTURES if kind in sample), None)
    if encoded is None:
        return None
    try:
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
    except (OSError, SyntaxError, ValueError, EOFError):
        return None
    label = label_of(sample.get("cls"), sample.get("json"), sample["__key__"])
    return training_picture(image, recipe.data.image_size, recipe.augment, dice), label


def _as_shards(recipe: Recipe) -> Recipe:
    data = dataclasses.replace(recipe.data, source="shards", train=recipe.data.val)
    return dataclasses.replace(recipe, data=data)
