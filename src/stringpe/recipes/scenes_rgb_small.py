"""`scenes_rgb` for a CPU: the 2D model that `scenes_frozen_small` lifts to 3D.

    stringpe train scenes_rgb_small --out runs/scenes-rgb-small

Data: the frames of `scenes`.
Time: 75 seconds of one core. Expected: 28.5 to 30.0 % of objects named (seeds 20 to 29, torch 2.13.0 on a CPU).
"""

from dataclasses import replace

from .scenes_rgb import RECIPE as LARGE
from .schema import Loop

RECIPE = replace(
    LARGE,
    name="scenes_rgb_small",
    model=replace(LARGE.model, dim=64, layers=2, heads=4, stem="conv"),
    data=replace(LARGE.data, train_size=3_000, val_size=600, queries=64),
    optim=replace(LARGE.optim, lr=3e-3, warmup_steps=40),
    loop=Loop(batch_size=32, steps=1500, log_every=50, eval_every=500, save_every=500, keep=1),
)
