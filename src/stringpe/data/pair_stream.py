"""Captioned shards as a stream, for sets that do not fit in memory; they are read as `stream` reads images."""

import random
import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..models.tokenizer import Tokenizer
from ..recipes.schema import Recipe
from .captions import captions_of, depth_of, fits, picture_of
from .labelled import CorruptImage
from .order import derive
from .pair_loader import PairFeed, batch_of, mirrored, texts
from .pairs import pairs, stretched, stretched_depth
from .place import Batch, Place
from .stream import raw_samples
from .transforms import flipped, uniforms

Item = tuple[Tensor, Tensor, Tensor, Tensor, str]
"""Image uint8, depth (empty without), tokens, tokens of its mirror image, and what was wrong with the samples that were
passed over before it in this worker, a line each."""


class _Captioned(IterableDataset[Item]):
    """This worker's part of the shards, for ever; what came before step `start` is read but not decoded."""

    def __init__(self, recipe: Recipe, depth: bool, tokenizer: str, place: Place, start: int):
        self.recipe, self.depth, self.place, self.start = recipe, depth, place, start
        self.tokenizer = tokenizer  # as JSON: it must reach worker processes

    def __iter__(self) -> Iterator[Item]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        worker = (self.start + number) % workers  # workers take turns: whose turn it is at `start` must come first
        skip = len(range(worker, self.start, workers)) * self.place.share(self.recipe.loop.batch_size)
        part, parts = self.place.rank * workers + worker, self.place.world * workers
        tokenizer, problems = Tokenizer.from_json(self.tokenizer), list[str]()
        for count, sample in enumerate(raw_samples(self.recipe, part, parts)):
            if count < skip:
                continue
            dice = random.Random(derive(self.recipe.seed, "captions", part, count))
            try:
                item = self._item(sample, tokenizer, dice)
            except CorruptImage as error:
                problems.append(str(error))
                continue
            yield *item, "\n".join(problems)
            problems.clear()

    def _item(
        self, sample: dict[str, bytes], tokenizer: Tokenizer, dice: random.Random
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        data, name = self.recipe.data, str(sample["__key__"])
        picture, caption = picture_of(sample, name), dice.choice(captions_of(sample, name))
        depth = torch.zeros(0)
        if self.depth:
            found = fits(depth_of(sample, name, data.depth_step), picture, name)
            depth = stretched_depth(found, data.image_size)
        plain, mirror = tokenizer.encode([caption, mirrored(caption)], self.recipe.text.context)
        return stretched(picture, data.image_size), depth, plain, mirror


class PairStream(PairFeed):
    """Training samples from a stream, validation in memory from shards."""

    def __init__(self, recipe: Recipe, depth: bool):
        if recipe.data.train_size < 1:
            raise ValueError("data.source=stream cannot count images: say how many with data.train_size")
        if not recipe.text.tokenizer:
            raise ValueError("a stream cannot train a tokeniser before it is read: give text.tokenizer=tokenizer.json")
        self.recipe, self.depth = recipe, depth
        self.tokenizer = Tokenizer.load(recipe.text.tokenizer)
        self.val = pairs(replace(recipe.data, source="shards"), "val", depth)
        self.val_texts = texts(self.val.captions, self.tokenizer, recipe.text.context)
        self.corrupt = len(self.val.problems)

    @property
    def examples(self) -> int:
        return self.recipe.data.train_size

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        recipe, batch = self.recipe, self.recipe.loop.batch_size
        loader: DataLoader[Item] = DataLoader(
            _Captioned(recipe, self.depth, self.tokenizer.to_json(), place, start),
            batch_size=place.share(batch),
            num_workers=recipe.data.workers,
            pin_memory=place.device.type == "cuda",
        )
        for step, (image, depth, plain, mirror, told) in enumerate(loader, start):
            if problems := [line for lines in told for line in lines.splitlines()]:
                self.corrupt += len(problems)
                text = f"{len(problems)} samples in the stream cannot be read and are skipped: {'; '.join(problems)}"
                warnings.warn(text, RuntimeWarning, 2)
            image, depth, plain, mirror = (t.to(place.device, non_blocking=True) for t in (image, depth, plain, mirror))
            u = uniforms(recipe.seed, step, batch, place)
            tokens = torch.where(flipped(u, recipe.augment)[:, None], mirror, plain)
            yield batch_of(image, depth if self.depth else None, tokens, u, recipe)
