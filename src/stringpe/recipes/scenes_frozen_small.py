"""`scenes_frozen` for a CPU: an RGB model of 2 layers × 64 is trained first, then lifted to 3D with its weights frozen.

    stringpe compare scenes_frozen_small

Data: the frames of `scenes`. LoRA of rank 2 has 512 numbers per layer, S of Cayley-STRING 480.
Time: 9 seconds of one core per run, after 75 for the RGB model.
Expected (ten RGB models, seeds 20 to 29, torch 2.13.0 on a CPU, % of objects named, ± half of the 95 % interval):
classifier alone 29.18 ± 0.05, RoPE-Mixed 29.29, Cayley with a random basis 29.29, RoPE-Mixed with LoRA 29.30, Cayley
29.42; Cayley − RoPE-Mixed +0.13 ± 0.06, learned − random basis +0.14 ± 0.06. More in results/2026-11-19-frozen-vit.
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
