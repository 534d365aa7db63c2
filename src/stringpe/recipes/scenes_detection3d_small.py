"""x"""

from ..training.recipe import Augment, Data, Loop, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection3d_small",
    task="detection3d",
    model=Model(dim=64, layers=2, heads=4, patch_size=8, depth="lift+channel"),
    text=Text(dim=32, layers=1, heads=2, width=32, vocab=600, context=24),
    data=Data(source="scenes", image_size=64, train_size=3000, val_size=200, queries=12),
    augment=Augment(flip=True),
    optim=Optim(lr=3e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(
        batch_size=16,
        steps=1500,
        log_every=50,
        eval_every=500,
        eval_batch=100,
        save_every=1500,
        keep=1,
        tensorboard=False,
    ),
)
