"""Naming the object at a queried place in 60,000 RGB-D scenes: what depth as a third coordinate is worth.

    stringpe compare scenes_objects --seeds 3 --jobs 6 --out runs/scenes-objects --baseline absolute \\
        --encodings absolute rope rope_mixed circulant cayley \\
                    absolute:model.depth=none rope:model.depth=none rope_mixed:model.depth=none \\
                    circulant:model.depth=none cayley:model.depth=none

Rows with model.depth=none are the ViT on RGB; the others are the ViTD, with depth lifted to the third coordinate. Data:
96 px, rendered on the first run by the GPU and kept in data.cache (60,000 frames take 2.8 GB).
Time and expected number: no full run has been made yet; what it gives belongs in results/.
"""

from ..training.recipe import Augment, Data, Loop, Model, Optim, Recipe

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
        log_every=20,
        eval_every=100,
        eval_batch=500,
        save_every=600,
        keep=1,
    ),
)
