"""Rooms seen twice: a retrieval set in which only depth relations tell an image from its neighbour.

Two cameras look at every room, and every caption is about pairs of objects of which one is nearer to the first camera
and farther from the second: "a red mug is nearer than a blue bowl" is true of one view and false of the other, whose
own caption says the opposite in the same words. Knowing which objects are there finds the room; finding the view takes
the relation. Objects that stand higher in the image are mostly farther away; pairs for which that rule is wrong are
taken first, so that the picture alone is a poor guide.
"""

import itertools
import json
import random
from collections import Counter
from functools import lru_cache

import torch
from torch import Tensor

from .. import scenes
from ..scenes.captions import phrase
from ..training.order import derive
from ..training.recipe import Data
from .frames import Frames, kept, teller
from .pairs import Pairs

NEARER = scenes.RELATIONS.index("nearer than")
MIN_SHARE, MIN_VISIBILITY = 0.003, 0.4
"""Of the image's pixels, and of the object: one that shows less in either view is not spoken of."""

FACTS, CAPTIONS = 2, 6
"""Facts a caption, and captions an image, at most."""

_CHUNK = 64
Fact = tuple[int, int]
"""Slots (i, j): i is nearer than j in the first view and farther in the second."""


@lru_cache(maxsize=4)
def _made(data: Data, split: str) -> tuple[Frames, list[list[str]]]:
    found = kept("views", data, split, _make, __file__)
    return found, json.loads(bytes(found["captions"].tolist()))


def views(data: Data, split: str, depth: bool) -> Pairs:
    """`train_size` or `val_size` frames, two of every room; no room is in both splits."""
    found, captions = _made(data, split)
    return Pairs(found["rgb"], found["depth"] if depth else None, captions, group=2)


def facts(frames: scenes.Frames) -> list[list[Fact]]:
    """For every room of a batch (two frames each), what is nearer in its first view and farther in its second, of
    objects that are seen well and named uniquely in both; those that break the rule of height first."""
    enough = scenes.in_view(frames, max(1, round(MIN_SHARE * frames.depth[0].numel())), MIN_VISIBILITY).cpu()
    things = scenes.seen(frames)
    counts = [Counter(phrase(thing) for thing in row) for row in things]
    nearer = scenes.relations(frames)[..., NEARER].cpu()
    low = frames.box2d[..., 3].cpu()
    result = []
    for a in range(0, len(frames), 2):
        b = a + 1
        good = [
            thing.slot
            for thing in things[a]
            if all(enough[v, thing.slot] and counts[v][phrase(thing)] == 1 for v in (a, b))
        ]
        found = [(i, j) for i in good for j in good if nearer[a, i, j] and nearer[b, j, i]]
        # In how many of the two views the nearer object is not the lower one in the image.
        odd = {(i, j): int(low[a, i] <= low[a, j]) + int(low[b, j] <= low[b, i]) for i, j in found}
        result.append(sorted(found, key=lambda fact: -odd[fact]))
    return result


def sentences(found: list[Fact], names: dict[int, str], dice: random.Random) -> tuple[list[str], list[str]]:
    """Captions of the first view and of the second, which say the opposite of each other in the same words."""
    ours, theirs = [], []
    together = list(itertools.combinations(found, min(FACTS, len(found))))
    for facts_told in together[:CAPTIONS]:
        told = dice.sample(facts_told, len(facts_told))
        ours.append(" and ".join(f"{names[i]} is nearer than {names[j]}" for i, j in told) + ".")
        theirs.append(" and ".join(f"{names[j]} is nearer than {names[i]}" for i, j in told) + ".")
    return ours, theirs


def _make(data: Data, split: str) -> Frames:
    count = data.train_size if split == "train" else data.val_size
    if count < 2 or count % 2:
        raise ValueError(
            f"rooms are seen twice: data.train_size and data.val_size must be even and positive, got {count}"
        )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world = derive(data.seed, "views", split) % 2**31  # no room is in both splits
    size = (data.image_size, data.image_size)
    images: list[Tensor] = []
    depths: list[Tensor] = []
    captions: list[list[str]] = []
    tell = teller(count)
    first = 0
    while len(captions) < count:  # rooms without such a pair of objects are passed over
        frames = scenes.render(scenes.sample(world, range(first, first + _CHUNK), views=2, device=device), size)
        things = scenes.seen(frames)
        told = facts(frames)
        rows = []
        for room, found in enumerate(told):
            if found and len(captions) < count:
                names = {thing.slot: phrase(thing) for thing in things[2 * room]}
                captions += sentences(found, names, random.Random(derive(world, first + 2 * room)))
                rows += [2 * room, 2 * room + 1]
        images.append((frames.rgb[rows] * 255).round().to(torch.uint8).cpu())
        depths.append(frames.depth[rows].half().cpu())  # 2 mm at 4 m
        first += _CHUNK
        tell(len(captions))
    text = torch.tensor(list(json.dumps(captions).encode()), dtype=torch.uint8)
    return {"rgb": torch.cat(images), "depth": torch.cat(depths), "captions": text}
