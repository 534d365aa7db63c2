"""`flickr8k` for a CPU: 1,000 images at 64 px and a tiny ViT, to see that everything works.

    stringpe compare flickr8k_small data.train=flickr8k-train.tar data.val=flickr8k-test.tar \\
        --encodings absolute rope cayley

Data: the files of `flickr8k`; the gallery is the first 200 images of data.val and their captions.
Time: not measured on an idle machine.
Expected (Cayley, one seed, torch 2.13.0 on a CPU): 6.3 % mean recall, where guessing gives 2.7 %. 300 steps are only a
beginning.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="flickr8k_small",
    task="retrieval",
    model=Model(dim=64, layers=3, heads=4, patch_size=8, pool="map"),
    text=Text(dim=64, layers=2, heads=4, width=64, vocab=2_000, context=64),
    data=Data(source="shards", image_size=64, train_size=1_000, val_size=200),
    augment=Augment(crop=0.5, flip=True, colour=0.3),
    loss=Loss(kind="siglip", pair_bias="auto"),
    optim=Optim(lr=2e-3, beta2=0.98, weight_decay=0.1, warmup_steps=40),
    loop=Loop(batch_size=100, steps=300, log_every=20, eval_every=100, save_every=300, keep=1),
)
