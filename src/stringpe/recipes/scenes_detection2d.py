"""Detection on any machine: boxes around the named objects of small procedural scenes, RGB, with a tiny OWL-ViT.

    stringpe compare scenes_detection2d --encodings absolute rope cayley
    stringpe train scenes_detection2d model.encoding=cayley --out runs/scenes-detection2d

Data: 3,000 + 600 frames at 64 px, those of the recipe `scenes`, rendered on the first run and kept in the user's cache
folder. The queries of a frame are the classes that it shows and 20 others, of 57.
Time: the six runs of the first command took 1,345 s on two CPU cores that were busy with other work.
Expected (two seeds, torch 2.13.0 on a CPU, ± half of the 95 % interval): absolute 0.16 ± 0.02, RoPE 0.14 ± 0.10, Cayley
0.13 ± 0.45 % AP; about 0.5 % AP50. It shows that everything works. 400 steps from random towers do not train a
detector, and these numbers say nothing about encodings.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection2d",
    task="detection2d",
    model=Model(dim=64, layers=2, heads=4, patch_size=8),
    text=Text(dim=32, layers=1, heads=2, width=32, vocab=600, context=24),
    data=Data(source="scenes", image_size=64, train_size=3000, val_size=600, negatives=20),
    augment=Augment(flip=True),
    loss=Loss(factor=10.0),
    optim=Optim(lr=3e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(batch_size=16, steps=400, log_every=20, eval_every=200, save_every=400, keep=1),
)
