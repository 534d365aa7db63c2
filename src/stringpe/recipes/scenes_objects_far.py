"""`scenes_objects` trained with near cameras, and tested with near and with far ones.

    stringpe compare scenes_objects_far data.cache=cache --baseline absolute --jobs 8 --no-costs --out runs/objects-far

Data: training cameras stand near what they look at, in 40,000 rooms; the 4,000 test rooms are seen by near cameras
and, for the metric `far`, by cameras farther away than any in training. Objects are then smaller in the image and
deeper in the scene. 20 epochs, otherwise as in `scenes_objects`.
Time: 8.5 minutes on one H200 for all 65 runs, eight side by side.
Expected from near and from far (five seeds, ± half of the 95 % interval): absolute 72.45 ± 0.37 and 71.47 ± 0.32,
RoPE-Mixed 76.64 ± 0.20 and 75.75 ± 0.32, Cayley 76.99 ± 0.23 and 76.11 ± 0.32; without depth 50.3, 56.8 and 57.2 % of
objects named from near (results/2026-11-20-scenes-objects).
"""

from dataclasses import replace

from .design import EQUAL, MORE, ROTARY, STRING, Column, Contrast, Design
from .scenes_objects import RECIPE as OBJECTS

RECIPE = replace(
    OBJECTS,
    name="scenes_objects_far",
    data=replace(OBJECTS.data, cameras="near"),
    loop=replace(OBJECTS.loop, epochs=20),
)

NEAR, FAR = "near", "far"
DEPTH = ("absolute", "rope_mixed", "cayley")
DESIGN = Design(
    rows=(
        "absolute", "sincos", "rope", "rope:base=100", "rope:base=100,learnable=true",
        "rope_mixed", "circulant", "cayley",
        *(f"{row}:model.depth=none" for row in DEPTH), "cayley:model.depth=channel", "cayley:model.depth=lift",
    ),
    seeds=5,
    columns=(
        Column(NEAR, "test rooms seen by cameras as near as in training"),
        Column(FAR, "the same models and rooms, seen from farther away than anything in training", metric="far"),
    ),
    contrasts=(
        replace(ROTARY, expected={NEAR: MORE, FAR: MORE}),
        replace(STRING, expected={NEAR: EQUAL, FAR: EQUAL}),
        Contrast("RoPE-Mixed − RoPE, learned", ("rope_mixed",), ("rope:base=100,learnable=true",)),
        Contrast("depth − RGB", DEPTH, tuple(f"{row}:model.depth=none" for row in DEPTH), {NEAR: MORE, FAR: MORE}),
        Contrast("channel and lift − channel", ("cayley",), ("cayley:model.depth=channel",)),
    ),
    about=(
        "Every model names the object at a queried place of an RGB-D frame. Training cameras stand near; those of the "
        "second column stand farther away than any of them, where absolute embeddings of depth have not been trained."
    ),
)  # fmt: skip
