"""Detection in 3D on any machine: oriented boxes of named objects in small RGB-D scenes, with a tiny ViTD.

    stringpe compare scenes_detection3d_small --encodings absolute cayley --seeds 1 --out runs/detection3d-small
    stringpe train scenes_detection3d_small model.encoding=cayley --out runs/detection3d-small-cayley

Data: 3,000 + 200 frames at 64 px, rendered on the first run (40 s of one CPU core) and kept in the user's cache folder.
Time: 60 ms of one CPU core per step, so 90 s per row; two rows run side by side on two cores.
Expected, mean 3D IoU (one seed, torch 2.13.0 on a CPU): absolute 6.40, Cayley 5.37 %; AP3D is 0.3 %. Absolute boxes
learn slowly, and a row sees 24,000 images where the paper's saw 256 million: this shows that everything works, and is
no evidence about encodings. For evidence run `scenes_detection3d`.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection3d_small",
    task="detection3d",
    model=Model(dim=64, layers=2, heads=4, patch_size=8, depth="lift+channel"),
    text=Text(dim=32, layers=1, heads=2, width=32, vocab=600, context=24),
    data=Data(source="scenes", image_size=64, train_size=3000, val_size=200, queries=12),
    augment=Augment(flip=True),
    loss=Loss(factor=10.0),
    optim=Optim(lr=3e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(
        batch_size=16,
        steps=1500,
        log_every=50,
        eval_every=500,
        eval_batch=100,
        save_every=1500,
        keep=1,
    ),
)
