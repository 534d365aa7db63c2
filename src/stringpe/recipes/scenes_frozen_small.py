"""`scenes_frozen` for a CPU: an RGB model of 2 layers × 64 is trained first, then lifted to 3D with its weights frozen.

    stringpe compare scenes_frozen_small

Data: the frames of `scenes`. LoRA of rank 2 has 512 numbers per layer, S of Cayley-STRING 480.
Time and expected number: not known, because the recipe has not been run in full.
"""

from dataclasses import replace

from .scenes_frozen import RECIPE as LARGE
from .scenes_frozen import design
from .schema import Loop

RECIPE = replace(
    LARGE,
    name="scenes_frozen_small",
    model=replace(LARGE.model, dim=64, layers=2, heads=4, stem="conv", start="recipe:scenes_rgb_small"),
    data=replace(LARGE.data, train_size=3_000, val_size=600, queries=64),
    optim=replace(LARGE.optim, lr=3e-3, warmup_steps=40),
    loop=Loop(batch_size=16, steps=400, log_every=20, save_every=400, keep=1),
)

DESIGN = design(rank=2)
