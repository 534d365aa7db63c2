"""Naming the object at a queried place in RGB frames: the 2D model that `scenes_frozen` lifts to 3D.

    stringpe train scenes_rgb --out runs/scenes-rgb

`stringpe compare scenes_frozen` trains it on its own, once. The model has a learned table of absolute embeddings and
no depth, as most existing ViTs.
Data: as `scenes_objects`.
Time and expected number: not known, because the recipe has not been run.
"""

from .schema import Augment, Data, Loop, Model, Optim, Recipe

RECIPE = Recipe(
    name="scenes_rgb",
    task="objects",
    model=Model(dim=192, layers=6, heads=3, patch_size=8, encoding="absolute"),
    data=Data(source="scenes", image_size=64, train_size=40_000, val_size=4_000, queries=16),
    augment=Augment(flip=True),
    optim=Optim(lr=2e-3, weight_decay=0.05, warmup_steps=80),
    loop=Loop(
        batch_size=512,
        epochs=20,
        precision="bf16",
        compile=True,
        log_every=20,
        eval_every=400,
        eval_batch=500,
        save_every=800,
        keep=1,
    ),
)
