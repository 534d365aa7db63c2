"""A detector in 3D that any machine can train: one object of six kinds in an empty room, with depth.

    stringpe train detection3d_demo --out runs/demo
    stringpe eval runs/demo --html              # runs/demo/eval/003000/scenes.html: turn the rooms and their boxes

Data: 2,000 + 100 frames at 64 px, rendered on the first run and kept in the user's cache folder.
Time: 153 s on one CPU thread, on a machine with other work.
Expected (Cayley, seeds 0 to 2, torch 2.13.0): mean 3D IoU 83.2, 83.3 and 80.9 %, AP3D at 0.5 of 90.2, 91.9 and 85.9 %.
With absolute centres, as in the paper, IoU is 65.2, 64.3 and 58.2 %, and AP3D 21.4, 32.2 and 17.5 %
(docs/detection3d.md). The model of seed 0 is in models/detection3d-demo.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="detection3d_demo",
    task="detection3d",
    model=Model(
        dim=64, layers=2, heads=4, patch_size=8, stem="conv", depth="lift+channel", registers=4, box_centre="point"
    ),
    text=Text(dim=32, layers=1, heads=2, width=32, vocab=300, context=24),
    data=Data(source="one_object", image_size=64, train_size=2000, val_size=100, queries=1),
    augment=Augment(flip=True),
    loss=Loss(factor=10.0),
    optim=Optim(lr=2e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(
        batch_size=32,
        steps=3000,
        log_every=100,
        eval_every=1500,
        eval_batch=100,
        save_every=3000,
        keep=1,
    ),
)
