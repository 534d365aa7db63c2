"""Rooms seen from two sides: a retrieval set in which two images differ only in what is nearer to the camera.

Two cameras look at every room. Every caption is about pairs of objects of which one is nearer to the first camera and
farther from the second: "a red mug is nearer than a blue bowl" is true of one view and false of the other, whose own
caption says the opposite in the same words. Knowing which objects are there is enough to find the room; finding the
view takes the relation. Objects that stand lower in the image are mostly nearer, which alone would find four views in
five. So captions only mention pairs of which the same object stands lower in both views: height then gives no hint.
"""

import itertools
import json
import random
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import scenes
from ..devices import find_device
from ..io.progress import progress
from ..recipes.schema import Data
from ..scenes.descriptions import noun
from ..scenes.templates import ALL_KINDS
from ..seeds import derive
from .cache import remember
from .captioned_batches import CaptionedImages
from .scene_frames import CHUNK, FrameColumns, join_columns, render_once, store_images
from .sources import split_limit

NEARER = scenes.RELATIONS.index("nearer than")
MIN_SHARE, MIN_VISIBILITY = 0.008, 0.4
"""Shares of the image's pixels, and of the object: one of which less is seen in either view is not mentioned."""

FACTS, CAPTIONS = 2, 6
"""The largest numbers of facts per caption, and of captions per image."""

Fact = tuple[int, int]
"""Slots (i, j): i is nearer than j in the first view and farther in the second."""


@remember
def _load(data: Data, split: str) -> tuple[FrameColumns, list[list[str]]]:
    found = render_once("views", data, split, _render, __file__)
    return found, json.loads(found["captions"].numpy().tobytes())


def load_views(data: Data, split: str, depth: bool) -> CaptionedImages:
    """`train_size` or `val_size` frames, two of every room; no room is in both splits."""
    found, captions = _load(data, split)
    return CaptionedImages(found["rgb"], found["depth"] if depth else None, captions, group=2)


def find_facts(frames: scenes.Frames) -> list[list[Fact]]:
    """For every room of a batch (two frames each): what is nearer in its first view and farther in its second, among
    objects that are seen well and named uniquely in both, and of which the same one stands lower in both images."""
    name = number_names(frames)
    alike = (name[:, :, None] == name[:, None, :]) & frames.visible[:, None, :]  # (b, o, o)
    enough = scenes.in_view(frames, max(1, round(MIN_SHARE * frames.depth[0].numel())), MIN_VISIBILITY)
    good = _by_room(enough & (alike.sum(2) == 1)).all(1)  # (rooms, o)
    nearer = _by_room(scenes.relations(frames)[..., NEARER])  # (rooms, 2, o, o)
    low = _by_room(frames.box2d[..., 3])
    lower = low[:, :, :, None] > low[:, :, None, :]  # (rooms, 2, o, o): object i stands lower in the image than j
    found = nearer[:, 0] & nearer[:, 1].mT & good[:, :, None] & good[:, None, :] & (lower[:, 0] == lower[:, 1])
    result: list[list[Fact]] = [[] for _ in range(len(good))]
    for room, i, j in found.nonzero().tolist():
        result[room].append((i, j))
    return result


def number_names(frames: scenes.Frames) -> Tensor:
    """(b, o): a number for what each object would be called; objects of one name have one number."""
    coloured = torch.tensor([kind.coloured for kind in ALL_KINDS], device=frames.kind.device)[frames.kind.clamp(min=0)]
    return frames.kind * len(scenes.COLOURS) + torch.where(coloured, frames.colour, 0)


def _by_room(frames: Tensor) -> Tensor:
    """(b, …) to (rooms, 2, …)."""
    return frames.unflatten(0, (-1, 2))


def write_sentences(found: list[Fact], nouns: Sequence[str], dice: random.Random) -> tuple[list[str], list[str]]:
    """Captions of the first view and of the second, which say the opposite of each other in the same words; `nouns` by
    slot."""
    first, second = [], []
    combinations = list(itertools.combinations(found, min(FACTS, len(found))))
    for facts in combinations[:CAPTIONS]:
        shuffled = dice.sample(facts, len(facts))
        first.append(" and ".join(f"{nouns[i]} is nearer than {nouns[j]}" for i, j in shuffled) + ".")
        second.append(" and ".join(f"{nouns[j]} is nearer than {nouns[i]}" for i, j in shuffled) + ".")
    return first, second


def _render(data: Data, split: str) -> FrameColumns:
    count, device = split_limit(data, split), find_device()
    if count < 2 or count % 2:
        raise ValueError(
            f"every room has two views: data.train_size and data.val_size must be even and positive, got {count}"
        )
    world = derive(data.seed, "views", split) % 2**31  # no room is in both splits
    size, chunk = (data.image_size, data.image_size), CHUNK[device.type]
    parts: list[FrameColumns] = []
    captions: list[list[str]] = []
    with progress("frames", count) as advance:
        for first in itertools.count(0, chunk):
            frames = scenes.render(scenes.sample(world, range(first, first + chunk), views=2, device=device), size)
            rows, sentences = _describe(frames, world, first, count - len(captions))
            captions += sentences
            parts.append(store_images(frames, torch.tensor(rows, dtype=torch.long, device=device)))
            advance(len(sentences))
            if len(captions) >= count:
                break
    text = torch.frombuffer(bytearray(json.dumps(captions).encode()), dtype=torch.uint8)
    return join_columns(parts) | {"captions": text}


def _describe(frames: scenes.Frames, world: int, first: int, most: int) -> tuple[list[int], list[list[str]]]:
    """The frames of rooms that have facts, at most `most` of them, and the captions of each."""
    rows: list[int] = []
    captions: list[list[str]] = []
    kinds, colours = frames.kind[::2].tolist(), frames.colour[::2].tolist()
    for room, found in enumerate(find_facts(frames)):
        if found and len(captions) < most:
            nouns = [noun(k, c) if k >= 0 else "" for k, c in zip(kinds[room], colours[room], strict=True)]
            captions += write_sentences(found, nouns, random.Random(derive(world, first + 2 * room)))
            rows += [2 * room, 2 * room + 1]
    return rows, captions
