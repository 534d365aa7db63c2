"""Images with captions as batches for retrieval: images stretched to a square, one caption each, depth if wanted."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..io.problems import Problems
from ..models.tokenizer import Tokenizer
from ..recipes.schema import Data, Recipe
from .cache import remember
from .captioned_images import CaptionSet, ShardCaptions, open_caption_set, read_captions, read_picture_and_depth
from .images import Ragged, stretch_depth, stretch_image
from .loader import Columns, Examples, Memory, Request, Row, Workers, read_all, tensors, training_requests
from .order import Batch, Order, Place
from .sources import check_source, split_limit, split_place
from .stream import Stream, is_large_stream
from .transforms import augment_rgbd, draw_flips, to_unit, uniforms

if TYPE_CHECKING:
    from PIL.Image import Image

_COLUMNS = 9  # those of the image, and which caption
_SIDES = {"left": "right", "right": "left"}


@dataclass(frozen=True)
class CaptionedImages:
    """Images (n, 3, S, S) uint8, depth (n, S, S) float16 in metres or None, and captions, at least one per image.

    group: how many consecutive images belong together (views of one room) and always share a batch.
    problems: the samples that were left out, and why.
    """

    image: Tensor
    depth: Tensor | None
    captions: list[list[str]]
    group: int = 1
    problems: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.image)

    def columns(self) -> Columns:
        """Image and depth, for a loader."""
        return {"image": self.image} | ({} if self.depth is None else {"depth": self.depth})


@remember
def load_captioned(data: Data, split: str, depth: bool) -> CaptionedImages:
    """A split of captioned images in memory, with depth if asked for."""
    if data.source == "scenes":
        from .scene_views import load_views

        return load_views(data, split, depth)
    return read_captioned(_find(data, split), data.image_size, split_limit(data, split), depth)


def read_captioned(found: CaptionSet, size: int, limit: int, depth: bool) -> CaptionedImages:
    """A whole set (or its first `limit`), without what cannot be used, which one warning counts and names."""
    count = min(limit or len(found), len(found))

    def read(i: int) -> tuple[Row, list[str]]:
        return _stretch(*found.read(i, depth), size), found.captions(i)

    good = list(read_all(count, read, found.problems).values())
    return CaptionedImages(
        image=torch.stack([row["image"] for row, _ in good]),
        depth=torch.stack([row["depth"] for row, _ in good]) if depth else None,
        captions=[captions for _, captions in good],
        problems=found.problems.reasons,
    )


def mirror_caption(caption: str) -> str:
    """What a caption says of the mirror image: left and right change places."""
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
        """The same on a device."""
        return Texts(*(t.to(device) for t in (self.tokens, self.mirror, self.first, self.count)))

    def draw(self, index: Tensor, u: Tensor, mirror: Tensor) -> Tensor:
        """One caption (b, context) per image, by uniforms (b,); mirror (b,): which images are mirrored."""
        chosen = self.first[index] + (u * self.count[index]).long().clamp(max=self.count[index] - 1)
        return torch.where(mirror[:, None], self.mirror[chosen], self.tokens[chosen])

    def of(self, index: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """All captions of images (b,): tokens (b · most, context), and the image that each belongs to, −1 where an
        image has fewer than `most`."""
        number = torch.arange(most)
        chosen = self.first[index, None] + torch.minimum(number, self.count[index, None] - 1)  # (b, most)
        owner = torch.where(number < self.count[index, None], index[:, None], -1)
        return self.tokens[chosen.flatten()], owner.flatten()


def encode_captions(captions: Sequence[Sequence[str]], tokenizer: Tokenizer, context: int) -> Texts:
    """Captions as tokens, in no more columns than the longest of them needs."""
    flat = [text for row in captions for text in row]
    tokens = tokenizer.encode(flat, context)
    turned = [mirror_caption(text) for text in flat]
    changed = [i for i, (a, b) in enumerate(zip(flat, turned, strict=True)) if a != b]
    mirror = tokens.clone()
    before = tokenizer.truncated
    if changed:
        mirror[changed] = tokenizer.encode([turned[i] for i in changed], context)
    tokenizer.truncated = before  # they are the same captions
    used = max(int((t != tokenizer.padding).any(0).nonzero().max()) + 1 for t in (tokens, mirror))
    count = torch.tensor([len(row) for row in captions])
    return Texts(tokens[:, :used], mirror[:, :used], count.cumsum(0) - count, count)


class CaptionedBatches:
    """A recipe's captioned images: batches for training, and the validation set `val`, which is in memory.

    group: how many consecutive images belong together. texts: the training captions, or None for a large stream, whose
    captions come with its images."""

    tokenizer: Tokenizer
    texts: Texts | None
    group: int

    def __init__(self, recipe: Recipe, depth: bool):
        check_source("retrieval", recipe.data)
        self.recipe, self.depth, data = recipe, depth, recipe.data
        self.problems = Problems("samples", data.train)
        self.val = load_captioned(data, "val", depth)
        self.loader = self._loader()
        self.val_texts = encode_captions(self.val.captions, self.tokenizer, recipe.text.context)

    @property
    def examples(self) -> int:
        """Size of the training set, in images."""
        return len(self.loader)

    @property
    def corrupt(self) -> int:
        """Samples that could not be used so far."""
        return len(self.problems) + len(self.val.problems)

    def train(self, start: int, place: Place) -> Iterator[Batch]:
        """image (b, 3, S, S) in [−1, 1], tokens (b, context) and depth (b, S, S), for this process, from step `start`
        on."""
        recipe, batch, how = self.recipe, self.recipe.loop.batch_size, self.recipe.augment
        place.share(batch // self.group)  # refuses what does not divide
        if isinstance(self.loader, Stream):
            prepare = _StreamTokens(recipe, place.rank, place.world)
            for step, found in enumerate(self.loader.batches(start, place, prepare), start):
                u = uniforms(recipe.seed, step, batch, place, _COLUMNS)
                tokens = torch.where(draw_flips(u, how)[:, None], found["mirror"], found["tokens"])
                yield _augment(found, tokens, u, recipe)
            return
        assert self.texts is not None
        words = self.texts.to(place.device)
        requests = _request_groups(
            Order(self.examples // self.group, batch // self.group, recipe.seed), self.group, start, place
        )
        for step, (found, index, _) in enumerate(self.loader.batches(requests, place, tensors), start):
            u = uniforms(recipe.seed, step, batch, place, _COLUMNS)
            tokens = words.draw(index.to(place.device, non_blocking=True), u[:, 8], draw_flips(u, how))
            yield _augment(found, tokens, u, recipe)

    def val_images(self, index: Tensor, place: Place) -> Batch:
        """Validation images number `index` (b,)."""
        batch = {"image": to_unit(self.val.image[index].to(place.device))}
        if self.val.depth is not None:
            batch["depth"] = self.val.depth[index].to(place.device).float()
        return batch

    def _loader(self) -> Memory | Workers | Stream:
        recipe, data = self.recipe, self.recipe.data
        self.group, self.texts = 1, None
        loader: Memory | Workers
        if is_large_stream(data):
            return self._stream()
        if data.source == "scenes" or (data.source != "stream" and data.in_memory):
            kept = load_captioned(data, "train", self.depth)
            self.group, captions, loader = kept.group, kept.captions, Memory(kept.columns())
            self.problems.extend(kept.problems)
        else:
            found = _find(data, "train")
            examples = CaptionedExamples(found, data.image_size, split_limit(data, "train"), self.depth)
            captions, loader = examples.texts, Workers(examples, data.workers, self.problems)
            self.problems.extend(found.problems)
        if recipe.loop.batch_size % self.group:
            raise ValueError(
                f"{self.group} images belong together and must share a batch: loop.batch_size="
                f"{recipe.loop.batch_size} is not a multiple of {self.group}"
            )
        text = recipe.text
        flat = (caption for row in captions for caption in row)
        self.tokenizer = Tokenizer.load(text.tokenizer) if text.tokenizer else Tokenizer.train(flat, text.vocab)
        self.texts = encode_captions(captions, self.tokenizer, text.context)
        return loader

    def _stream(self) -> Stream:
        recipe = self.recipe
        if not recipe.text.tokenizer:
            raise ValueError(
                "a large stream cannot train a tokeniser before it is read: give text.tokenizer=tokenizer.json"
            )
        self.tokenizer = Tokenizer.load(recipe.text.tokenizer)
        return Stream(recipe, _Parse(recipe.data, self.depth), _stack_stream, self.problems)


class CaptionedExamples(Examples):
    """Captioned images that are read when they are wanted; their captions, which are small, are read at once."""

    def __init__(self, found: CaptionSet, size: int, limit: int, depth: bool):
        self.found, self.size, self.depth = found, size, depth
        count = min(limit or len(found), len(found))
        good = read_all(count, found.captions, found.problems)
        self.numbers, self.texts = list(good), list(good.values())

    def __len__(self) -> int:
        return len(self.numbers)

    def read(self, i: int) -> Row:
        return _stretch(*self.found.read(self.numbers[i], self.depth), self.size)


@dataclass(frozen=True)
class _Parse:
    """A sample of a stream: image, depth, and the bytes of all its captions, as a JSON list."""

    data: Data
    depth: bool

    def __call__(self, key: str, files: Mapping[str, bytes]) -> Row:
        texts = json.dumps(read_captions(files, key))
        sample = read_picture_and_depth(files, key, self.data.depth_step if self.depth else None)
        return _stretch(*sample, self.data.image_size) | {
            "captions": torch.frombuffer(bytearray(texts.encode()), dtype=torch.uint8)
        }


def _stack_stream(rows: Sequence[Row]) -> Columns:
    """Image and depth side by side; captions, of different lengths, one after the other."""
    columns: dict[str, Tensor | Ragged] = {
        name: torch.stack([row[name] for row in rows]) for name in rows[0] if name != "captions"
    }
    length = torch.tensor([len(row["captions"]) for row in rows])
    return columns | {"captions": torch.cat([row["captions"] for row in rows]), "length": length}


class _StreamTokens:
    """Tokens of the caption that an example's uniform chooses, and of its mirror image."""

    def __init__(self, recipe: Recipe, rank: int, world: int):
        self.recipe, self.rank, self.world = recipe, rank, world

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded in the worker: it does not travel between processes."""
        return Tokenizer.load(self.recipe.text.tokenizer)

    def __call__(self, columns: Columns, step: int) -> Batch:
        recipe = self.recipe
        u = uniforms(recipe.seed, step, recipe.loop.batch_size, Place(self.rank, self.world), _COLUMNS)
        captions, length = (tensors(columns)[name] for name in ("captions", "length"))
        chosen = []
        for part, share in zip(captions.split(length.tolist()), u[:, 8], strict=True):
            texts = json.loads(bytes(part.tolist()))
            chosen.append(texts[min(int(share * len(texts)), len(texts) - 1)])
        batch = {name: t for name, t in tensors(columns).items() if name in ("image", "depth")}
        turned = [mirror_caption(text) for text in chosen]
        plain, mirror = (self.tokenizer.encode(texts, recipe.text.context) for texts in (chosen, turned))
        return batch | {"tokens": plain, "mirror": mirror}


def _stretch(picture: "Image", depth: Tensor | None, size: int) -> Row:
    """Image, and depth if there is some, on the square."""
    row = {"image": stretch_image(picture, size)}
    return row if depth is None else row | {"depth": stretch_depth(depth, size)}


def _augment(found: Batch, tokens: Tensor, u: Tensor, recipe: Recipe) -> Batch:
    """An augmented batch, from uint8 images and uniforms (b, 9)."""
    image, depth = augment_rgbd(found["image"], found.get("depth"), u, recipe.augment)
    batch = {"image": image, "tokens": tokens}
    return batch if depth is None else batch | {"depth": depth.float()}


def _request_groups(order: Order, group: int, start: int, place: Place) -> Iterator[Request]:
    """Requests for whole groups of images, whose numbers the order gives."""
    for groups, step in training_requests(order, start, place):
        yield Request((groups[:, None] * group + torch.arange(group)).flatten(), step)


def _find(data: Data, split: str) -> CaptionSet:
    """The captioned images of a split. A stream's validation set is tars like any other."""
    if split == "train" and data.source == "stream":
        return ShardCaptions(data.train, data.depth_step, data.train_size, stream=True)
    source = "shards" if data.source == "stream" else data.source
    return open_caption_set(source, split_place(data, split), data.depth_step)
