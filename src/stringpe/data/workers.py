"""Images through worker processes: sets that do not fit in memory, decoded and augmented on the CPU."""

import itertools
import random
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..recipes.schema import Recipe
from .images import central, to_tensor, training_picture
from .labelled import CorruptImage, ImageSet, image_set
from .loader import Feed, shares
from .order import Order, derive
from .place import Batch, Place
from .transforms import to_unit

_MARGIN = 256 / 224  # of the image around the validation crop
_TRIES = 100

Item = tuple[Tensor, int, float, list[str]]
"""Image uint8, label, weight, and the corrupt images in whose place it stands."""


class _Pictures(Dataset[Item]):
    """Items by request: (index, number) for training, where `number` counts all examples of the run and seeds the
    augmentation; (index, weight) for validation."""

    def __init__(self, found: ImageSet, recipe: Recipe, training: bool):
        self.found, self.recipe, self.training = found, recipe, training

    def __getitem__(self, request: tuple[int, float]) -> Item:
        index, extra = request
        size = self.recipe.data.image_size
        problems: list[str] = []
        for attempt in range(_TRIES):  # a corrupt image is replaced by its neighbour
            i = (index + attempt) % len(self.found)
            try:
                image = self.found.decode(i)
            except CorruptImage as error:
                problems.append(str(error))
                continue
            if self.training:
                dice = random.Random(derive(self.recipe.seed, "picture", int(extra)))
                pixels = training_picture(image, size, self.recipe.augment, dice)
                return pixels, self.found.label(i), 1.0, problems
            # A neighbour must not count twice in a validation score.
            weight = extra if not problems else 0.0
            return to_tensor(central(image, size, _MARGIN)), self.found.label(i), weight, problems
        first = self.found.name(index)
        raise ValueError(f"{_TRIES} images in a row cannot be decoded, from {first} on: check data.train and data.val")


def _collate(items: list[Item]) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    images, labels, weights, problems = zip(*items, strict=True)
    weight = torch.tensor(weights, dtype=torch.float64)
    return torch.stack(images), torch.tensor(labels), weight, [text for texts in problems for text in texts]


class Workers(Feed):
    """`data.workers` processes read, decode and augment; the device gets uint8."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe
        self.sets = {s: image_set(recipe.data.source, getattr(recipe.data, s)) for s in ("train", "val")}
        self._bad: set[str] = set()

    @property
    def examples(self) -> int:
        return len(self.sets["train"])

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        batch = self.recipe.loop.batch_size
        order = Order(self.examples, batch, self.recipe.seed)
        share = place.share(batch)

        def requests() -> Iterator[list[tuple[int, int]]]:
            for step in itertools.count(start):
                first = step * batch + place.rank * share
                yield list(zip(order(step, place.rank, place.world).tolist(), itertools.count(first), strict=False))

        for image, label, _ in self._loaded("train", requests(), place):
            yield {"image": image, "label": label}

    def val(self, place: Place, batch: int) -> Iterator[Batch]:
        requests = (
            list(zip(index.tolist(), weight.tolist(), strict=True))
            for index, weight in shares(len(self.sets["val"]), batch, place)
        )
        for image, label, weight in self._loaded("val", requests, place):
            yield {"image": image, "label": label, "weight": weight}

    def _loaded(
        self, split: str, requests: Iterator[list[tuple[int, float]]] | Iterator[list[tuple[int, int]]], place: Place
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        loader: DataLoader[Item] = DataLoader(
            _Pictures(self.sets[split], self.recipe, split == "train"),
            batch_sampler=requests,
            num_workers=self.recipe.data.workers,
            collate_fn=_collate,
            pin_memory=place.device.type == "cuda",
        )
        for image, label, weight, problems in loader:
            self._tell(problems)
            image = to_unit(image.to(place.device, non_blocking=True))
            yield image, label.to(place.device, non_blocking=True), weight.to(place.device, non_blocking=True)

    def _tell(self, problems: list[str]) -> None:
        for problem in problems:
            if problem not in self._bad:  # once, not once an epoch
                warnings.warn(f"an image cannot be decoded and is skipped: {problem}", RuntimeWarning, 2)
        self._bad |= set(problems)
        self.corrupt = len(self._bad)
