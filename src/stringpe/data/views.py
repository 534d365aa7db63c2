"""Rooms seen twice: a retrieval set in which only depth relations tell an image from its neighbour.

Two cameras look at every room, and every caption is about pairs of objects of which one is nearer to the first camera
and farther from the second: "a red mug is nearer than a blue bowl" is true of one view and false of the other, whose
own caption says the opposite in the same words. Knowing which objects are there finds the room; finding the view takes
the relation. Objects that stand lower in the image are mostly nearer, which would find four views in five without any
depth: only pairs of which the same one is lower in both views are spoken of, and height tells nothing.
"""

import itertools
import json
import random
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .. import scenes
from ..recipes.schema import Data
from ..scenes.catalogue import KINDS
from ..scenes.descriptions import noun
from .order import derive
from .pairs import Pairs
from .rendered import Frames, kept, teller

NEARER = scenes.RELATIONS.index("nearer than")
MIN_SHARE, MIN_VISIBILITY = 0.008, 0.4
"""Of the image's pixels, and of the object: one that shows less in either view is not spoken of."""

FACTS, CAPTIONS = 2, 6
"""Facts a caption, and captions an image, at most."""

_CHUNKS = {"cpu": 64, "cuda": 512}  # frames rendered at a time
Fact = tuple[int, int]
"""Slots (i, j): i is nearer than j in the first view and farther in the second."""


@lru_cache(maxsize=4)
def _made(data: Data, split: str) -> tuple[Frames, list[list[str]]]:
    found = kept("views", data, split, _make, __file__)
    return found, json.loads(found["captions"].numpy().tobytes())


def views(data: Data, split: str, depth: bool) -> Pairs:
    """`train_size` or `val_size` frames, two of every room; no room is in both splits."""
    found, captions = _made(data, split)
    return Pairs(found["rgb"], found["depth"] if depth else None, captions, group=2)


def facts(frames: scenes.Frames) -> list[list[Fact]]:
    """For every room of a batch (two frames each), what is nearer in its first view and farther in its second, of
    objects that are seen well and named uniquely in both, and of which the same one is lower in both images."""
    name = names(frames)
    alike = (name[:, :, None] == name[:, None, :]) & frames.visible[:, None, :]  # (b, o, o)
    enough = scenes.in_view(frames, max(1, round(MIN_SHARE * frames.depth[0].numel())), MIN_VISIBILITY)
    good = _rooms(enough & (alike.sum(2) == 1)).all(1)  # (rooms, o)
    nearer = _rooms(scenes.relations(frames)[..., NEARER])  # (rooms, 2, o, o)
    low = _rooms(frames.box2d[..., 3])
    lower = low[:, :, :, None] > low[:, :, None, :]  # (rooms, 2, o, o): object i stands lower in the image than j
    found = nearer[:, 0] & nearer[:, 1].mT & good[:, :, None] & good[:, None, :] & (lower[:, 0] == lower[:, 1])
    result: list[list[Fact]] = [[] for _ in range(len(good))]
    for room, i, j in found.nonzero().tolist():
        result[room].append((i, j))
    return result


def names(frames: scenes.Frames) -> Tensor:
    """(b, o): a number for what each object would be called; objects of one name have one number."""
    coloured = torch.tensor([kind.coloured for kind in KINDS], device=frames.kind.device)[frames.kind.clamp(min=0)]
    return frames.kind * len(scenes.COLOURS) + torch.where(coloured, frames.colour, 0)


def _rooms(frames: Tensor) -> Tensor:
    """(b, …) to (rooms, 2, …)."""
    return frames.unflatten(0, (-1, 2))


def sentences(found: list[Fact], nouns: Sequence[str], dice: random.Random) -> tuple[list[str], list[str]]:
    """Captions of the first view and of the second, which say the opposite of each other in the same words; `nouns` by
    slot."""
    ours, theirs = [], []
    together = list(itertools.combinations(found, min(FACTS, len(found))))
    for facts_told in together[:CAPTIONS]:
        told = dice.sample(facts_told, len(facts_told))
        ours.append(" and ".join(f"{nouns[i]} is nearer than {nouns[j]}" for i, j in told) + ".")
        theirs.append(" and ".join(f"{nouns[j]} is nearer than {nouns[i]}" for i, j in told) + ".")
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
    first, chunk = 0, _CHUNKS[device.type]
    while len(captions) < count:  # rooms without such a pair of objects are passed over
        frames = scenes.render(scenes.sample(world, range(first, first + chunk), views=2, device=device), size)
        kinds, colours = frames.kind[::2].tolist(), frames.colour[::2].tolist()
        rows = []
        for room, found in enumerate(facts(frames)):
            if found and len(captions) < count:
                nouns = [
                    noun(kind, colour) if kind >= 0 else ""
                    for kind, colour in zip(kinds[room], colours[room], strict=True)
                ]
                captions += sentences(found, nouns, random.Random(derive(world, first + 2 * room)))
                rows += [2 * room, 2 * room + 1]
        images.append((frames.rgb[rows] * 255).round().to(torch.uint8).cpu())
        depths.append(frames.depth[rows].half().cpu())  # 2 mm at 4 m
        first += chunk
        tell(len(captions))
    text = torch.frombuffer(bytearray(json.dumps(captions).encode()), dtype=torch.uint8)
    return {"rgb": torch.cat(images), "depth": torch.cat(depths), "captions": text}
