"""`scenes_retrieval` for a CPU: a tiny ViTD at 64 px, to see that everything works.

    stringpe compare scenes_retrieval_small --encodings absolute rope cayley cayley:model.depth=none

Data: 3,000 + 400 frames, rendered on the first run and kept in the user's cache folder.
Time: not measured on an idle machine; about four rooms are rendered for each that is kept.
Expected (one seed, torch 2.13.0 on a CPU): absolute on RGB 2.94, Cayley on RGB-D 5.29 % mean recall, where guessing
gives about 1.5 %; of 482 captions 49 and 55 % choose the right one of two views, where guessing gives 50 %.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_retrieval_small",
    task="retrieval",
    model=Model(dim=64, layers=3, heads=4, patch_size=8, pool="map", depth="lift+channel"),
    text=Text(dim=64, layers=2, heads=4, width=64, vocab=400, context=64),
    data=Data(source="scenes", image_size=64, train_size=3_000, val_size=400),
    augment=Augment(flip=True),
    loss=Loss(kind="siglip", pair_bias="auto", within=1.0),
    optim=Optim(lr=2e-3, beta2=0.98, weight_decay=0.05, warmup_steps=50),
    loop=Loop(batch_size=100, steps=600, log_every=20, eval_every=200, save_every=600, keep=1),
)
