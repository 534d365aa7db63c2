"""Three ways for labelled images to reach the device: from memory, through worker processes, or as a stream."""

import hashlib
import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ..io.files import write_tensors
from ..recipes.schema import Data, Recipe
from .images import central, to_tensor
from .labelled import CorruptImage, ImageSet, image_set
from .order import Order
from .place import Batch, Place
from .shards import expand
from .transforms import augment, to_unit, uniforms

_NAMED = 3  # corrupt images that a warning names


class Feed(ABC):
    """Batches of images in [−1, 1] with labels. `corrupt` counts images that could not be decoded."""

    corrupt = 0

    @property
    @abstractmethod
    def examples(self) -> int:
        """Size of the training set."""

    @abstractmethod
    def train(self, start: int, place: Place) -> Iterator[Batch]:
        """image (b, 3, S, S), augmented, and label (b,), for this process, from step `start` on."""

    @abstractmethod
    def val(self, place: Place, batch: int) -> Iterator[Batch]:
        """image, label and weight (b,), equally many batches in every process; padding has weight 0."""


class Memory(Feed):
    """Everything decoded once into uint8 tensors on the device, augmented there a batch at a time."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.images, self.labels, bad = loaded(recipe.data, "train")
        self.val_images, self.val_labels, bad_val = loaded(recipe.data, "val")
        self.corrupt = bad + bad_val

    @property
    def examples(self) -> int:
        return len(self.images)

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        batch, seed = self.recipe.loop.batch_size, self.recipe.seed
        images, labels = self.images.to(place.device), self.labels.to(place.device)
        order = Order(len(images), batch, seed)
        for step in itertools.count(start):
            index = order(step, place.rank, place.world).to(place.device, non_blocking=True)
            u = uniforms(seed, step, batch, place)
            yield {"image": augment(images[index], u, self.recipe.augment), "label": labels[index]}

    def val(self, place: Place, batch: int) -> Iterator[Batch]:
        for index, weight in shares(len(self.val_images), batch, place):
            image = self.val_images[index].to(place.device)
            yield {
                "image": to_unit(image),
                "label": self.val_labels[index].to(place.device),
                "weight": weight.to(place.device),
            }


def shares(size: int, batch: int, place: Place) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices (batch,) and weights of this process's share of 0 … size − 1; the last batch is padded with weight 0."""
    batch = min(batch, -(-size // place.world))
    for first in range(0, size, batch * place.world):
        numbers = torch.arange(batch) + first + place.rank * batch
        yield numbers.clamp(max=size - 1), (numbers < size).double()


@lru_cache(maxsize=4)
def loaded(data: Data, split: str) -> tuple[Tensor, Tensor, int]:
    """Images (n, 3, S, S) uint8, labels (n,), and how many were corrupt; kept for the next run in this process."""
    if data.source == "synthetic":
        from .synthetic import spots

        return *spots(data, split), 0
    where = data.train if split == "train" else data.val
    limit = data.train_size if split == "train" else data.val_size
    path = _kept(data, where, limit)
    if path is not None and path.exists():
        from safetensors.torch import load_file

        kept = load_file(path)
        return kept["images"], kept["labels"], int(kept["corrupt"])
    images, labels, corrupt = decode_all(image_set(data.source, where), data.image_size, limit)
    if path is not None:
        write_tensors(path, {"images": images, "labels": labels, "corrupt": torch.tensor(corrupt)})
    return images, labels, corrupt


def _kept(data: Data, where: str, limit: int) -> Path | None:
    """The file of decoded images in data.cache, named after everything that they depend on; None without a cache, and
    for folders and hubs, whose content is not told by one size and date."""
    if not data.cache or data.source != "shards":
        return None
    digest = hashlib.blake2b(f"{data.image_size}/{limit}".encode(), digest_size=8)
    for shard in expand(where):
        digest.update(f"{shard.resolve()}/{shard.stat().st_size}/{shard.stat().st_mtime_ns}".encode())
    return Path(data.cache) / f"images-{digest.hexdigest()}.safetensors"


def decode_all(found: ImageSet, size: int, limit: int = 0) -> tuple[Tensor, Tensor, int]:
    """Decode a whole set (or its first `limit`), leaving out what cannot be decoded, with one warning."""
    count = min(limit or len(found), len(found))

    def one(i: int) -> Tensor | CorruptImage:
        try:
            return to_tensor(central(found.decode(i), size))
        except CorruptImage as error:
            return error

    with ThreadPoolExecutor() as pool:  # Pillow lets go of the interpreter while it decodes
        decoded = list(pool.map(one, range(count)))
    bad = [d for d in decoded if isinstance(d, CorruptImage)]
    if bad:
        listed = "; ".join(map(str, bad[:_NAMED])) + ("; …" if len(bad) > _NAMED else "")
        warnings.warn(f"{len(bad)} of {count} images cannot be decoded and are left out: {listed}", RuntimeWarning, 2)
    good = [(i, d) for i, d in enumerate(decoded) if isinstance(d, Tensor)]
    if not good:
        raise ValueError("none of the images can be decoded: check data.train and data.val")
    return torch.stack([d for _, d in good]), torch.tensor([found.label(i) for i, _ in good]), len(bad)


def feed(recipe: Recipe) -> Feed:
    """The way that the recipe's data asks for."""
    data = recipe.data
    if data.source not in ("synthetic", "shards", "folder", "huggingface", "stream"):
        raise ValueError(
            f"data.source for images is synthetic, shards, folder, huggingface or stream, got {data.source!r}"
        )
    if data.source == "stream":
        from .stream import Stream

        return Stream(recipe)
    if data.in_memory or data.source == "synthetic":
        return Memory(recipe)
    from .workers import Workers

    return Workers(recipe)
