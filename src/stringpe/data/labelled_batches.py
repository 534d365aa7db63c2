"""Images with class numbers as batches for classification.

An image is first reduced to its working size, a short side of at most 256/224 of the crops. Training shows a part of
the whole image, mirrored, shifted, and changed by RandAugment and in colour, as `augment` says; validation shows the
middle.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..io.pictures import decode_picture, to_pixels
from ..io.problems import Problems
from ..recipes.schema import Data, Recipe
from .addresses import find_shards
from .cache import digest, file_marks, load_or_make, remember
from .images import Ragged, reduce_image, stack_ragged
from .labelled_images import ImageSet, ShardSet, open_image_set, read_label
from .loader import Columns, Examples, Memory, Request, Row, Workers, read_all, shares, training_batches
from .order import Batch, Order, Place
from .randaugment import augment_pixels
from .sources import check_source, split_limit, split_place
from .stream import Stream, is_large_stream
from .tars import picture_kind
from .transforms import CROP_COLUMNS, change_colours, draw_windows, middle_windows, read_windows, to_unit, uniforms


class LabelledExamples(Examples):
    """The examples of an image set: image (h, w, 3) uint8 at its working size, and label."""

    def __init__(self, found: ImageSet, size: int, classes: int, limit: int = 0):
        self.found, self.size = found, size
        self.count = min(limit or len(found), len(found))
        wrong = next((i for i in range(self.count) if found.label(i) >= classes), None)
        if wrong is not None:
            raise ValueError(
                f"{found.name(wrong)} is of class {found.label(wrong)}, but data.num_classes={classes} (classes count "
                f"from 0): set data.num_classes"
            )
        if found.classes and len(found.classes) != classes:
            raise ValueError(
                f"there are {len(found.classes)} class folders ({', '.join(found.classes[:3])}"
                f"{', …' if len(found.classes) > 3 else ''}), but data.num_classes={classes}: set "
                f"data.num_classes={len(found.classes)}, or check the paths"
            )

    def __len__(self) -> int:
        return self.count

    def read(self, i: int) -> Row:
        image = reduce_image(self.found.decode(i), self.size)
        return {"image": to_pixels(image), "label": torch.tensor(self.found.label(i))}

    def stack(self, rows: Sequence[Row]) -> Columns:
        return stack_labelled(rows)


def stack_labelled(rows: Sequence[Row]) -> Columns:
    """Images of any sizes with their labels."""
    return {"image": stack_ragged([row["image"] for row in rows]), "label": torch.stack([row["label"] for row in rows])}


@dataclass(frozen=True)
class TrainingPixels:
    """Crops, mirror images, shifts and RandAugment for one process's share of a step: image uint8 (b, 3, S, S), label.
    RandAugment works on Pillow images, on the CPU wherever the images are."""

    recipe: Recipe
    rank: int
    world: int

    def __call__(self, columns: Columns, step: int) -> Batch:
        images, label = _split_columns(columns)
        recipe, side = self.recipe, self.recipe.data.image_size
        place = Place(self.rank, self.world, images.first.device)
        u = uniforms(recipe.seed, step, recipe.loop.batch_size, place, CROP_COLUMNS)
        pixels = read_windows(images, draw_windows(images.size, u, recipe.augment, side), side)
        if recipe.augment.randaugment:
            first = step * recipe.loop.batch_size + self.rank * len(pixels)
            pixels = augment_pixels(pixels, recipe.augment, recipe.seed, first)
        return {"image": pixels, "label": label}


@dataclass(frozen=True)
class ValidationPixels:
    """The middle squares: image uint8 (b, 3, S, S), and label."""

    side: int

    def __call__(self, columns: Columns, step: int) -> Batch:
        images, label = _split_columns(columns)
        return {"image": read_windows(images, middle_windows(images.size, self.side), self.side), "label": label}


class LabelledBatches:
    """A recipe's images for classification. `corrupt` counts those that could not be decoded."""

    def __init__(self, recipe: Recipe):
        check_source("classification", recipe.data)
        self.recipe, data = recipe, recipe.data
        self.problems = {split: Problems("images", split_place(data, split)) for split in ("train", "val")}
        self.train_loader: Memory | Workers | Stream
        if is_large_stream(data):
            parse = _Parse(data.image_size, data.num_classes)
            self.train_loader = Stream(recipe, parse, stack_labelled, self.problems["train"])
        else:
            self.train_loader = self._loader("train")
        self.val_loader = self._loader("val")

    @property
    def examples(self) -> int:
        """Size of the training set."""
        return len(self.train_loader)

    @property
    def corrupt(self) -> int:
        """Images that could not be used so far."""
        return sum(len(problems) for problems in self.problems.values())

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        """image (b, 3, S, S) in [−1, 1], augmented, and label (b,), for this process, from step `start` on."""
        recipe = self.recipe
        prepare = TrainingPixels(recipe, place.rank, place.world)
        batches: Iterator[Batch]
        if isinstance(self.train_loader, Stream):
            batches = self.train_loader.batches(start, place, prepare)
        else:
            order = Order(self.examples, recipe.loop.batch_size, recipe.seed)
            batches = training_batches(self.train_loader, order, start, place, prepare)
        for step, batch in enumerate(batches, start):
            image = to_unit(batch["image"])
            if recipe.augment.colour:
                u = uniforms(recipe.seed, step, recipe.loop.batch_size, place, CROP_COLUMNS)
                image = change_colours(image, u[:, 5:8], recipe.augment.colour)
            yield {"image": image, "label": batch["label"]}

    def val(self, place: Place, batch: int) -> Iterator[Batch]:
        """image, label and weight (b,), equally many batches in every process; padding has weight 0, and so has an
        image that stands in for one that cannot be decoded."""
        parts = list(shares(len(self.val_loader), batch, place))
        requests = (Request(index, number) for number, (index, _) in enumerate(parts))
        loaded = self.val_loader.batches(requests, place, ValidationPixels(self.recipe.data.image_size))
        for (found, _, wanted), (_, weight) in zip(loaded, parts, strict=True):
            weight = torch.where(wanted, weight, 0).to(place.device)
            yield {"image": to_unit(found["image"]), "label": found["label"], "weight": weight}

    def _loader(self, split: str) -> Memory | Workers:
        data = self.recipe.data
        if data.source == "synthetic" or (data.in_memory and data.source != "stream"):
            columns, bad = load_labelled(data, split)
            self.problems[split].extend(bad)
            return Memory(columns)
        return Workers(_examples(data, split), data.workers, self.problems[split])


@dataclass(frozen=True)
class _Parse:
    """A sample of a stream as an example."""

    size: int
    classes: int

    def __call__(self, key: str, files: Mapping[str, bytes]) -> Row:
        label = read_label(files, key)
        if label >= self.classes:
            raise ValueError(f"{key} is of class {label}, but data.num_classes={self.classes}: set data.num_classes")
        image = reduce_image(decode_picture(files[picture_kind(files, key)], key), self.size)
        return {"image": to_pixels(image), "label": torch.tensor(label)}


def _split_columns(columns: Columns) -> tuple[Ragged, Tensor]:
    """Images and labels."""
    images, label = columns["image"], columns["label"]
    assert isinstance(images, Ragged)
    assert isinstance(label, Tensor)
    return images, label


def _examples(data: Data, split: str) -> LabelledExamples:
    source, limit = "shards" if data.source == "stream" else data.source, split_limit(data, split)
    if split == "train" and data.source == "stream":
        found: ImageSet = ShardSet(data.train, limit, stream=True)
    else:
        found = open_image_set(source, split_place(data, split))
    if split == "val" and found.classes and found.classes != (other := open_image_set(source, data.train).classes):
        extra = sorted(set(found.classes) ^ set(other))
        raise ValueError(
            f"the class folders of data.train and data.val differ ({', '.join(extra[:3])}), and so would the classes' "
            f"numbers: give both the same folders, empty ones if need be"
        )
    return LabelledExamples(found, data.image_size, data.num_classes, limit)


@remember
def load_labelled(data: Data, split: str) -> tuple[Columns, tuple[str, ...]]:
    """All images of a split at their working size, with labels; and what was left out."""
    if data.source == "synthetic":
        from .synthetic import draw_spots

        images, labels = draw_spots(data, split)
        return {"image": stack_ragged(list(images.permute(0, 2, 3, 1))), "label": labels}, ()
    bad: list[str] = []

    def make() -> dict[str, Tensor]:
        examples, problems = _examples(data, split), Problems("images", split_place(data, split))
        columns = examples.stack(list(read_all(len(examples), examples.read, problems).values()))
        bad.extend(problems)
        images, label = _split_columns(columns)
        reasons = torch.frombuffer(bytearray(json.dumps(bad).encode()), dtype=torch.uint8)
        return {**images._asdict(), "label": label, "reasons": reasons}

    if not data.cache or data.source != "shards":  # one size and date do not identify the content of a folder or hub
        made = make()
    else:
        files = file_marks(find_shards(split_place(data, split)))
        name = digest("labelled 2", data.image_size, data.num_classes, split_limit(data, split), files)
        made = load_or_make(data.cache, f"images-{name}", make)
    reasons = tuple(json.loads(made["reasons"].numpy().tobytes()))
    return {"image": Ragged(made["pixels"], made["first"], made["size"]), "label": made["label"]}, reasons
