"""How captioned images reach the device: from memory, or as a stream; and captions as rows of tokens."""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..models.tokenizer import Tokenizer
from ..recipes.schema import Recipe
from .order import Order
from .pairs import Pairs, pairs
from .place import Batch, Place
from .transforms import augment_rgbd, flipped, to_unit, uniforms

_COLUMNS = 9  # those of the image, and which caption
_SIDES = {"left": "right", "right": "left"}


def mirrored(caption: str) -> str:
    """What a caption says of the image in a mirror: left and right change places."""
    return re.sub(r"\b(left|right)\b", lambda found: _SIDES[found[1].lower()], caption, flags=re.IGNORECASE)


@dataclass(frozen=True)
class Texts:
    """The captions of n images as tokens (m, context), and those of their mirror images; image i has `count[i]` of them
    from `first[i]` on."""

    tokens: Tensor
    mirror: Tensor
    first: Tensor
    count: Tensor

    def to(self, device: torch.device) -> "Texts":
        return Texts(*(t.to(device) for t in (self.tokens, self.mirror, self.first, self.count)))

    def draw(self, index: Tensor, u: Tensor, mirror: Tensor) -> Tensor:
        """One caption (b, context) for each image, by uniforms (b,); mirror (b,): which images are flipped."""
        chosen = self.first[index] + (u * self.count[index]).long().clamp(max=self.count[index] - 1)
        return torch.where(mirror[:, None], self.mirror[chosen], self.tokens[chosen])

    def of(self, index: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """All captions of images (b,): tokens (b · most, context) and the image each belongs to, −1 where an image has
        fewer than `most` and a row only fills up."""
        number = torch.arange(most)
        chosen = self.first[index, None] + torch.minimum(number, self.count[index, None] - 1)  # (b, most)
        owner = torch.where(number < self.count[index, None], index[:, None], -1)
        return self.tokens[chosen.flatten()], owner.flatten()


def texts(captions: Sequence[Sequence[str]], tokenizer: Tokenizer, context: int) -> Texts:
    """Captions as tokens, in no more columns than the longest of them needs."""
    flat = [text for row in captions for text in row]
    tokens = tokenizer.encode(flat, context)
    turned = [mirrored(text) for text in flat]
    changed = [i for i, (a, b) in enumerate(zip(flat, turned, strict=True)) if a != b]
    mirror = tokens.clone()
    before = tokenizer.truncated
    if changed:
        mirror[changed] = tokenizer.encode([turned[i] for i in changed], context)
    tokenizer.truncated = before  # they are the same captions
    used = max(int((t != tokenizer.padding).any(0).nonzero().max()) + 1 for t in (tokens, mirror))
    count = torch.tensor([len(row) for row in captions])
    return Texts(tokens[:, :used], mirror[:, :used], count.cumsum(0) - count, count)


class PairFeed(ABC):
    """Batches of images in [−1, 1], depth where the model takes it, and one caption each. Validation is in memory."""

    tokenizer: Tokenizer
    val: Pairs
    val_texts: Texts
    corrupt: int

    @property
    @abstractmethod
    def examples(self) -> int:
        """Size of the training set, in images."""

    @abstractmethod
    def train(self, start: int, place: Place) -> Iterator[Batch]:
        """image (b, 3, S, S), tokens (b, context) and depth (b, S, S), for this process, from step `start` on."""

    def val_images(self, index: Tensor, place: Place) -> Batch:
        """Validation images number `index` (b,)."""
        batch = {"image": to_unit(self.val.image[index].to(place.device))}
        if self.val.depth is not None:
            batch["depth"] = self.val.depth[index].to(place.device).float()
        return batch


class PairMemory(PairFeed):
    """Everything on the device as uint8 and tokens, augmented there."""

    def __init__(self, recipe: Recipe, depth: bool):
        self.recipe = recipe
        self.set, self.val = (pairs(recipe.data, split, depth) for split in ("train", "val"))
        group, batch = self.set.group, recipe.loop.batch_size
        if batch % group:
            raise ValueError(f"{group} images belong together and must share a batch: {batch} is no multiple of that")
        text = recipe.text
        flat = (caption for row in self.set.captions for caption in row)
        self.tokenizer = Tokenizer.load(text.tokenizer) if text.tokenizer else Tokenizer.train(flat, text.vocab)
        self.texts, self.val_texts = (texts(s.captions, self.tokenizer, text.context) for s in (self.set, self.val))
        self.corrupt = len(self.set.problems) + len(self.val.problems)

    @property
    def examples(self) -> int:
        return len(self.set)

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        seed, group, batch = self.recipe.seed, self.set.group, self.recipe.loop.batch_size
        place.share(batch // group)  # refuses what does not divide
        image, words = self.set.image.to(place.device), self.texts.to(place.device)
        depth = None if self.set.depth is None else self.set.depth.to(place.device)
        order = Order(len(image) // group, batch // group, seed)
        for step in itertools.count(start):
            groups = order(step, place.rank, place.world)
            index = (groups[:, None] * group + torch.arange(group)).flatten().to(place.device, non_blocking=True)
            u = uniforms(seed, step, batch, place, _COLUMNS)
            tokens = words.draw(index, u[:, 8], flipped(u, self.recipe.augment))
            yield batch_of(image[index], None if depth is None else depth[index], tokens, u, self.recipe)


def batch_of(image: Tensor, depth: Tensor | None, tokens: Tensor, u: Tensor, recipe: Recipe) -> Batch:
    """An augmented batch, from uint8 images and uniforms (b, 9)."""
    x, far = augment_rgbd(image, depth, u, recipe.augment)
    found = {"image": x, "tokens": tokens}
    return found if far is None else found | {"depth": far.float()}


def pair_feed(recipe: Recipe, depth: bool) -> PairFeed:
    """The way that the recipe's data asks for."""
    if recipe.data.source == "stream":
        from .pair_stream import PairStream

        return PairStream(recipe, depth)
    if not recipe.data.in_memory:
        raise ValueError("captioned images are kept in memory or come as a stream: use data.source=stream")
    return PairMemory(recipe, depth)
