"""`scenes_objects` trained with near cameras, and tested with near and with far ones.

    stringpe compare scenes_objects_far data.cache=cache --jobs 11 --no-costs --out runs/objects-far

Data: training cameras stand near what they look at, in 40,000 rooms; the 4,000 test rooms are seen by near cameras
and, for the metric `far`, by cameras farther away than any in training. Objects are then smaller in the image and
deeper in the scene. 20 epochs, otherwise as in `scenes_objects`.
Time and expected number: not known, because the comparison, which needs a GPU, has not been run.
"""

from dataclasses import replace

from .design import Column, Design
from .scenes_objects import RECIPE as OBJECTS

RECIPE = replace(
    OBJECTS,
    name="scenes_objects_far",
    data=replace(OBJECTS.data, cameras="near"),
    loop=replace(OBJECTS.loop, epochs=20),
)

DESIGN = Design(
    rows=("absolute", "sincos", "rope", "rope:base=100", "rope_mixed", "circulant", "cayley"),
    seeds=5,
    columns=(
        Column("near", "test rooms seen by cameras as near as in training"),
        Column("far", "the same models and rooms, seen from farther away than anything in training", metric="far"),
    ),
    about=(
        "Every model names the object at a queried place of an RGB-D frame. Training cameras stand near; those of the "
        "second column stand farther away than any of them, where absolute embeddings of depth have not been trained."
    ),
)
