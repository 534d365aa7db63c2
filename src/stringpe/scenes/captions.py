"""Sentences that are true of a frame: what is there, and how it stands to the rest."""

from __future__ import annotations

import random

from .catalogue import KINDS
from .frames import Frames
from .palette import COLOURS
from .relations import RELATIONS, Seen, relations, seen
from .world import FAMILIES

_PLACES = {
    "living": "a living room",
    "tabletop": "a cluttered table",
    "tables": "several cluttered tables",
    "trays": "a table of trays",
}
_WORN = {"stripes": "striped", "checks": "checked", "dots": "dotted"}
_MIN_PIXELS, _MIN_VISIBILITY = 12, 0.25
_COLOURS = tuple(COLOURS)


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def phrase(thing: Seen, detail: float = 0.0) -> str:
    """A noun phrase: colour and kind, and for detail > ½ the material or the pattern too."""
    extra = _WORN.get(thing.pattern, thing.material if thing.material in ("wooden", "metal", "glass") else "")
    return noun(thing.kind_index, thing.colour_index, extra if detail > 0.5 else "")


def noun(kind: int, colour: int, extra: str = "") -> str:
    """A noun phrase for a kind and a colour, by number: "a red striped mug"."""
    coloured = KINDS[kind].coloured  # a plant in a red pot is not a red plant
    words = [_COLOURS[colour] if coloured else "", extra if coloured else "", KINDS[kind].name]
    return _with_article(" ".join(word for word in words if word))


def _listed(phrases: list[str]) -> str:
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
        sentences = [f"{place} with {_listed(shown)}."]
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
