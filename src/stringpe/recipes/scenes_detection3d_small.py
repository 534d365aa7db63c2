"""Detection in 3D on any machine: oriented boxes of named objects in small RGB-D scenes, with a tiny ViTD.

    stringpe compare scenes_detection3d_small --encodings absolute rope_mixed circulant cayley --seeds 5 --jobs 2 \\
        --no-costs --out runs/detection3d-small
    stringpe train scenes_detection3d_small model.encoding=cayley --out runs/detection3d-small-cayley

Data: 6,000 + 400 frames at 64 px, rendered on the first run (a minute of one CPU core) and kept in the user's cache
folder. Centres are predicted relative to the points where patches lie, as in `scenes_detection3d`.
Time: 30 to 50 ms of one CPU core per step, so two minutes per run.
Expected mean 3D IoU (five seeds, torch 2.13.0 on a CPU): absolute 11.78 ± 0.29, RoPE-Mixed 11.90 ± 0.78, Circulant
11.85 ± 0.39, Cayley 11.79 ± 0.31 %; rotary − absolute +0.07 ± 0.43 (results/2026-11-19-boxes-small).
"""

from .design import Design
from .scenes_detection3d import BOTH, CONTRASTS, fix_centres
from .scenes_detection3d import DESIGN as LARGE
from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection3d_small",
    task="detection3d",
    model=Model(dim=64, layers=2, heads=4, patch_size=8, patch_gain=1.0, depth="lift+channel", box_centre="point"),
    text=Text(dim=32, layers=1, heads=2, width=32, vocab=600, context=24),
    data=Data(source="scenes", image_size=64, train_size=6000, val_size=400, queries=12),
    augment=Augment(flip=True),
    loss=Loss(factor=10.0),
    optim=Optim(lr=3e-3, beta2=0.95, weight_decay=0.05, warmup_steps=40),
    loop=Loop(
        batch_size=16,
        steps=3000,
        log_every=50,
        eval_every=1000,
        eval_batch=100,
        save_every=3000,
        keep=1,
    ),
)

DESIGN = Design(
    rows=("absolute", "rope_mixed", "circulant", "cayley", *fix_centres(*BOTH)),
    seeds=5,
    contrasts=CONTRASTS,
    about=LARGE.about,
)
