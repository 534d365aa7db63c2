"""Naming the object at a queried place in 40,000 RGB-D scenes: how much depth and positions help.

    stringpe compare scenes_objects data.cache=cache --seeds 3 --jobs 11 --rates 1e-3 2e-3 4e-3 --rates-share 0.4 \\
        --baseline absolute --out runs/objects --encodings absolute rope rope_mixed circulant cayley \\
        absolute:model.depth=none rope:model.depth=none rope_mixed:model.depth=none circulant:model.depth=none \\
        cayley:model.depth=none cayley:model.depth=channel cayley:model.depth=lift

Rows with model.depth=none are the ViT on RGB; the others are the ViTD, with depth as fourth channel and as third
coordinate. Data: 64 px, rendered on the first run by the GPU and kept in data.cache (1.1 GB).
Time: 6 minutes on one H200 for all 72 runs, 11 side by side, including those that choose learning rates.
Expected (three seeds, ± half of the 95 % interval): RGB-D absolute 43.59 ± 2.29, RoPE 48.83 ± 2.05, RoPE-Mixed
48.24 ± 2.65, Circulant 48.68 ± 0.85, Cayley 47.65 ± 1.78; RGB 27.94 ± 1.50, 30.63 ± 1.32, 29.77 ± 1.22, 30.83 ± 2.79,
31.12 ± 2.34 % of objects named (results/2026-11-15-scenes-objects).
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Model, Optim, Recipe

RECIPE = Recipe(
    name="scenes_objects",
    task="objects",
    model=Model(dim=192, layers=6, heads=3, patch_size=8, depth="lift+channel"),
    data=Data(source="scenes", image_size=64, train_size=40_000, val_size=4_000, queries=16),
    augment=Augment(flip=True),
    optim=Optim(lr=2e-3, weight_decay=0.05, warmup_steps=80),
    loop=Loop(
        batch_size=512,
        epochs=5,
        precision="bf16",
        compile=True,
        log_every=20,
        eval_every=100,
        eval_batch=500,
        save_every=600,
        keep=1,
    ),
)
