"""Descriptions of frames: the visible objects, the relations between them, and true sentences about them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .object_kinds import COLOURS, MATERIALS, PATTERNS
from .scene import FAMILIES, Frames
from .templates import ALL_KINDS, kinds

RELATIONS = ("left of", "right of", "behind", "in front of", "on", "nearer than")

_NEARER_BY = 0.1
"""The difference in distance, in metres, from which "nearer than" holds."""


@dataclass(frozen=True)
class Seen:
    """One visible object of one frame, as plain data."""

    slot: int  # object i of the frame; its instance id is slot + 1
    kind: str
    kind_index: int
    colour: str
    colour_index: int
    material: str
    pattern: str
    centre: tuple[float, ...]  # camera frame, metres
    rotation: tuple[tuple[float, ...], ...]
    size: tuple[float, ...]
    box2d: tuple[float, ...]
    visibility: float
    pixels: int
    parent: int  # slot of the object that it stands on, −1 for floor or wall


def in_view(frames: Frames, min_pixels: int = 1, min_visibility: float = 0.0) -> Tensor:
    """(b, o) bool: the objects with at least this many visible pixels (and at least one) and this visibility."""
    return (frames.pixels >= max(min_pixels, 1)) & (frames.visibility >= min_visibility)


def seen(frames: Frames, min_pixels: int = 1, min_visibility: float = 0.0) -> list[list[Seen]]:
    """The visible objects of every frame, as `in_view` selects them."""
    chosen = in_view(frames, min_pixels, min_visibility).cpu()
    scenes = frames.scenes
    names, colours, materials = kinds(), list(COLOURS), list(MATERIALS)
    columns = [
        t.cpu()
        for t in (
            frames.kind,
            frames.colour,
            scenes.material,
            scenes.pattern,
            frames.centre,
            frames.rotation,
            frames.size,
            frames.box2d,
            frames.visibility,
            frames.pixels,
            scenes.parent,
        )
    ]
    result: list[list[Seen]] = []
    for b in range(len(frames)):
        row: list[Seen] = []
        for o in chosen[b].nonzero()[:, 0].tolist():
            values: list[Any] = [c[b, o].tolist() for c in columns]
            kind, colour, material, pattern, centre, rotation, size, box, share, pixels, parent = values
            row.append(
                Seen(
                    o,
                    names[kind],
                    kind,
                    colours[colour],
                    colour,
                    materials[material],
                    PATTERNS[pattern],
                    tuple(centre),
                    tuple(map(tuple, rotation)),
                    tuple(size),
                    tuple(box),
                    share,
                    pixels,
                    parent,
                )
            )
        result.append(row)
    return result


def relations(frames: Frames) -> Tensor:
    """(b, o, o, len(RELATIONS)) bool: entry [·, i, j, r] says "object i is r object j"; only visible objects have any.

    - left of: i's 2D box ends before j's begins (the viewer's left); right of is the converse.
    - behind: every corner of i's 3D box is deeper than every corner of j's, and their 2D boxes share columns; in front
      of is the converse.
    - on: i stands on j.
    - nearer than: i's centre is at least 0.1 m nearer to the camera than j's.
    """
    box, depth = frames.box2d, frames.corners()[..., 2]
    near, far, distance = depth.amin(-1), depth.amax(-1), frames.centre.norm(dim=-1)

    def first(column: Tensor) -> Tensor:
        return column[:, :, None]

    def second(column: Tensor) -> Tensor:
        return column[:, None, :]

    left = first(box[..., 2]) <= second(box[..., 0])
    overlap = (first(box[..., 0]) < second(box[..., 2])) & (second(box[..., 0]) < first(box[..., 2]))
    behind = (first(near) > second(far)) & overlap  # their 2D boxes share columns
    slots = torch.arange(box.shape[1], device=box.device)
    on = first(frames.scenes.parent) == slots
    nearer = first(distance) < second(distance) - _NEARER_BY
    table = torch.stack([left, left.transpose(1, 2), behind, behind.transpose(1, 2), on, nearer], -1)
    visible = frames.visible
    both = first(visible) & second(visible) & ~torch.eye(len(slots), dtype=torch.bool, device=box.device)
    return table & both[..., None]


_PLACES = {
    "living": "a living room",
    "tabletop": "a cluttered table",
    "tables": "several cluttered tables",
    "trays": "a table of trays",
}
_PATTERN_WORDS = {"stripes": "striped", "checks": "checked", "dots": "dotted"}
_MIN_PIXELS, _MIN_VISIBILITY = 12, 0.25
_COLOURS = tuple(COLOURS)


def _add_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def phrase(thing: Seen, detail: float = 0.0) -> str:
    """A noun phrase for an object: colour and kind and, for detail > ½, also the pattern or the material."""
    extra = _PATTERN_WORDS.get(thing.pattern, thing.material if thing.material in ("wooden", "metal", "glass") else "")
    return noun(thing.kind_index, thing.colour_index, extra if detail > 0.5 else "")


def noun(kind: int, colour: int, extra: str = "") -> str:
    """A noun phrase for a kind and a colour, by number: "a red striped mug"."""
    coloured = ALL_KINDS[kind].coloured  # a plant in a red pot is not a red plant
    words = [_COLOURS[colour] if coloured else "", extra if coloured else "", ALL_KINDS[kind].name]
    return _add_article(" ".join(word for word in words if word))


def _join(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def captions(frames: Frames, count: int = 4) -> list[list[str]]:
    """Up to `count` sentences per frame: the first lists objects, and each of the others states one relation.

    Every sentence is true: it names only objects with at least 12 visible pixels and a visibility of at least a
    quarter, and only relations that `relations` reports. The choice depends on the scene's seed and index alone. A
    frame with few true relations has fewer sentences.
    """
    table = relations(frames).cpu()
    result = []
    for b, things in enumerate(seen(frames, _MIN_PIXELS, _MIN_VISIBILITY)):
        rng = random.Random(f"{frames.scenes.seed}/{int(frames.scenes.index[b])}")
        place = _PLACES[FAMILIES[int(frames.scenes.family[b])]]
        if not things:
            result.append([f"{place}."])
            continue
        # Prefer objects that are large in the image, as a person would; the rest of the order is random.
        things = sorted(things, key=lambda t: -t.pixels * rng.uniform(0.3, 1.0))[:8]
        phrases = [phrase(t, rng.random()) for t in things[: rng.randint(1, 4)]]
        sentences = [f"{place} with {_join(phrases)}."]
        facts = [
            (i, j, r)
            for i in things
            for j in things
            for r, holds in enumerate(table[b, i.slot, j.slot].tolist())
            if holds
        ]
        rng.shuffle(facts)
        facts.sort(key=lambda fact: RELATIONS[fact[2]] != "on")  # if any object stands on another, say so first
        stated = facts[:1] + rng.sample(facts[1:], min(len(facts[1:]), max(count - 2, 0)))
        sentences += [f"{phrase(i, rng.random())} is {RELATIONS[r]} {phrase(j, rng.random())}." for i, j, r in stated]
        result.append(sentences[:count])
    return result
