"""x"""

from ..training.recipe import Augment, Data, Loop, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection3d_small",
    task="detection3d",
    model=Model(dim=128, layers=4, heads=4, patch_size=8, depth="lift+channel"),
    text=Text(dim=64, layers=1, heads=2, width=64, vocab=600, context=16),
    data=Data(source="scenes", image_size=64, train_size=3000, val_size=200, queries=12),
    augment=Augment(flip=True),
    optim=Optim(lr=1e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(
        batch_size=16, steps=400, log_every=20, eval_every=200, eval_batch=50, save_every=400, keep=1, tensorboard=False
    ),
)
