"""The comparison that runs anywhere: naming objects at queried places in small RGB-D scenes, with a tiny ViTD.

    stringpe compare                        # this recipe, six encodings, two seeds
    stringpe train scenes model.encoding=cayley --out runs/scenes-cayley

Data: 3,000 + 600 frames at 64 px, rendered on the first run (about 20 s) and kept in the user's cache folder.
Time: 2 min 8 s for the whole comparison on two CPU cores, rendering included.
Expected (one run of the comparison, two seeds, torch 2.13 on a CPU): none 18.9, absolute 22.8, RoPE 16.8, RoPE-Mixed
17.4, Circulant 17.3, Cayley 17.3 % of objects named; always saying "table" gives 11.7. No learning rate was tuned for
any row. Six hundred steps show that everything works and who starts fast, not who is best: training is far from its
end. Why rows that add position or depth to the tokens lead here has not been tested. For evidence run `scenes_objects`.
"""

from ..training.recipe import Augment, Data, Loop, Model, Optim, Recipe

RECIPE = Recipe(
    name="scenes",
    task="objects",
    model=Model(dim=64, layers=2, heads=4, patch_size=8, depth="lift"),
    data=Data(source="scenes", image_size=64, train_size=3000, val_size=600, queries=16),
    augment=Augment(flip=True),
    optim=Optim(lr=3e-3, weight_decay=0.05, warmup_steps=40),
    loop=Loop(batch_size=16, steps=600, log_every=20, eval_every=150, save_every=600, keep=1, tensorboard=False),
)
