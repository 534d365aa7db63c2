"""Flickr8k: 6,000 images with five captions each at 128 px; retrieval from scratch, in 840 steps per run.

    stringpe train flickr8k data.train=flickr8k-train.tar data.val=flickr8k-test.tar model.encoding=cayley \\
        --out runs/flickr8k-cayley
    python -m stringpe compare flickr8k data.train=… data.val=… --seeds 3 --jobs 6 --out runs/flickr8k \\
        --encodings absolute rope rope_mixed circulant cayley

Data: WebDataset layout, NNNNNN.webp + NNNNNN.json with {"captions": [five]}, decoded once into memory and augmented
on the device: crops, flips (left and right change places in the caption), colour, and one of the five captions at
random. The tokeniser is trained on the training captions. Gallery: the 1,000 test images and their 5,000 captions.
So few images are memorised within a few tens of epochs, which is why dropout and weight decay are high. There is no
stochastic depth: its rate differs from layer to layer, so every layer would be compiled on its own.
Time: 250 s on one H200 for fifteen runs side by side.
Expected number: not known with today's initialisation (docs/models.md). From Xavier weights, with which models started
before (stringpe 7d2cc4b, three seeds), all five encodings reached a mean recall of 3.5 to 4.5 %, where guessing gives
0.53 %, and no difference between them excluded zero: 6,000 images are too few to compare encodings.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="flickr8k",
    task="retrieval",
    model=Model(dim=256, layers=6, heads=4, patch_size=16, pool="map", dropout=0.15),
    text=Text(dim=256, layers=3, heads=4, width=256, vocab=4_000, context=64, dropout=0.2),
    data=Data(source="shards", image_size=128, in_memory=True),
    augment=Augment(crop=0.4, flip=True, colour=0.4),
    loss=Loss(kind="siglip", pair_bias="auto"),
    optim=Optim(lr=1e-3, beta2=0.98, weight_decay=0.2, clip=1.0, warmup_steps=80),
    loop=Loop(
        batch_size=500,
        epochs=70,
        precision="bf16",
        compile=True,
        log_every=30,
        eval_every=280,
        eval_batch=500,
        save_every=840,
        keep=1,
    ),
)
