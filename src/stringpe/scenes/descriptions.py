"""What can be said of a frame: which objects are seen, how they stand to each other, and true sentences about them."""

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

_NEARER = 0.1


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
    parent: int  # slot of what it stands on, −1 for floor or wall


def in_view(frames: Frames, min_pixels: int = 1, min_visibility: float = 0.0) -> Tensor:
    """(b, o) bool: objects of which enough is seen."""
    return (frames.pixels >= max(min_pixels, 1)) & (frames.visibility >= min_visibility)


def seen(frames: Frames, min_pixels: int = 1, min_visibility: float = 0.0) -> list[list[Seen]]:
    """For every frame, its visible objects."""
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
    share = (first(box[..., 0]) < second(box[..., 2])) & (second(box[..., 0]) < first(box[..., 2]))
    behind = (first(near) > second(far)) & share
    slots = torch.arange(box.shape[1], device=box.device)
    on = first(frames.scenes.parent) == slots
    nearer = first(distance) < second(distance) - _NEARER
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
_WORN = {"stripes": "striped", "checks": "checked", "dots": "dotted"}
_MIN_PIXELS, _MIN_VISIBILITY = 12, 0.25
_COLOURS = tuple(COLOURS)


def _add_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def phrase(thing: Seen, detail: float = 0.0) -> str:
    """A noun phrase: colour and kind, and for detail > ½ the material or the pattern too."""
    extra = _WORN.get(thing.pattern, thing.material if thing.material in ("wooden", "metal", "glass") else "")
    return noun(thing.kind_index, thing.colour_index, extra if detail > 0.5 else "")


def noun(kind: int, colour: int, extra: str = "") -> str:
    """A noun phrase for a kind and a colour, by number: "a red striped mug"."""
    coloured = ALL_KINDS[kind].coloured  # a plant in a red pot is not a red plant
    words = [_COLOURS[colour] if coloured else "", extra if coloured else "", ALL_KINDS[kind].name]
    return _add_article(" ".join(word for word in words if word))


def _join(phrases: list[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def captions(frames: Frames, count: int = 4) -> list[list[str]]:
    """`count` sentences for every frame, the first of which lists objects and the others state one relation each.

    Every sentence is true: it names only objects of which at least a quarter and 12 pixels are seen, and only relations
    that `relations` holds true. The choice depends on the scene's seed and index alone. A frame with fewer true
    relations gets fewer sentences.
    """
    table = relations(frames).cpu()
    result = []
    for b, things in enumerate(seen(frames, _MIN_PIXELS, _MIN_VISIBILITY)):
        chooser = random.Random(f"{frames.scenes.seed}/{int(frames.scenes.index[b])}")
        place = _PLACES[FAMILIES[int(frames.scenes.family[b])]]
        if not things:
            result.append([f"{place}."])
            continue
        # Prefer what is large in the image, as a person would; keep it random beyond that.
        things = sorted(things, key=lambda t: -t.pixels * chooser.uniform(0.3, 1.0))[:8]
        shown = [phrase(t, chooser.random()) for t in things[: chooser.randint(1, 4)]]
        sentences = [f"{place} with {_join(shown)}."]
        facts = [
            (i, j, r)
            for i in things
            for j in things
            for r, held in enumerate(table[b, i.slot, j.slot].tolist())
            if held
        ]
        chooser.shuffle(facts)
        facts.sort(key=lambda fact: RELATIONS[fact[2]] != "on")  # what stands on what is said first, where it is known
        kept = facts[:1] + chooser.sample(facts[1:], min(len(facts[1:]), max(count - 2, 0)))
        sentences += [
            f"{phrase(i, chooser.random())} is {RELATIONS[r]} {phrase(j, chooser.random())}." for i, j, r in kept
        ]
        result.append(sentences[:count])
    return result
