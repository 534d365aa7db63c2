"""A comparison on pictures that runs anywhere: naming objects at queried places in small RGB-D scenes by a tiny ViTD.

    stringpe compare scenes                 # eight rows, five seeds
    stringpe train scenes model.encoding=cayley --out runs/scenes-cayley

Every row gets depth as a channel, and as third coordinate where its encoding has coordinates: a lift alone shows only
differences of depth, and these objects differ in metric size.
Data: 3,000 + 600 frames at 64 px, rendered on the first run (about 30 s) and kept in the user's cache folder.
Time: about 20 seconds of one core per run, 40 runs.
Expected (seeds 0 to 4, torch 2.13.0 on a CPU, ± 0.33, half of the 95 % interval): none 26.83, absolute 29.43,
RoPE-Mixed 29.43, Circulant 29.38, Cayley 29.59 % of objects named; always saying "table" gives 11.7. No learning rate
was tuned for any row. Six hundred steps show that everything works and which row starts fast, not which is best:
training is far from its end (with loop.steps=2400, 37.5 % without positions and 42.2 to 42.7 % with). For evidence run
`scenes_objects`. docs/training.md has the tables.
"""

from .design import Design
from .schema import Augment, Data, Loop, Model, Optim, Recipe

RECIPE = Recipe(
    name="scenes",
    task="objects",
    model=Model(dim=64, layers=2, heads=4, patch_size=8, stem="conv", depth="lift+channel"),
    data=Data(source="scenes", image_size=64, train_size=3000, val_size=600, queries=64),
    augment=Augment(flip=True),
    optim=Optim(lr=3e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(batch_size=16, steps=600, log_every=20, eval_every=300, save_every=600, keep=1),
)

DESIGN = Design(seeds=5)
