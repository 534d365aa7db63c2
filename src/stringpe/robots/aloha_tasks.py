"""The twelve ALOHA tasks of the paper (appendix on ALOHA simulation), built from primitives."""

import numpy as np

from . import things
from .goals import Delivered, rests_on
from .task import Start, Task

FULL = float(np.pi)

MUG_ON_PLATE = Task(
    "MugOnPlate",
    "place the mug on the plate",
    (things.mug(), things.plate()),
    {
        "mug": Start((-0.16, -0.04), (0.36, 0.62), spin=FULL),
        "plate": Start((0.0, 0.12), (0.36, 0.62), spin=FULL),
    },
    lambda: Delivered(("mug",), rests_on("plate", 0.0, 0.02, 0.03)),
    seconds=15.0,
)

ALL = (MUG_ON_PLATE,)
