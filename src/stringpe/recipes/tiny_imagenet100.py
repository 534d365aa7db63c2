"""Tiny-ImageNet-100: 100 classes at 64 px, 30,000 images; the pilot that tells encodings apart in a minute a run.

    stringpe train tiny_imagenet100 data.train=tiny-imagenet-100-train.tar.gz data.val=tiny-imagenet-100-val.tar.gz \\
        model.encoding=cayley --out runs/tiny-cayley
    stringpe compare tiny_imagenet100 data.train=… data.val=… --encodings absolute rope rope_mixed circulant cayley \\
        --seeds 3 --jobs 6 --out runs/tiny

Data: WebDataset layout, NNNNNN.webp + NNNNNN.cls, decoded once into memory and augmented on the device.
Time: one H200, about a minute a run alone (an earlier pilot with other code: 40 to 100 s).
Expected: that pilot, one seed each: absolute 46.9, RoPE 47.4, RoPE-Mixed 48.6, Cayley 48.7, Circulant(16) 49.7 % top-1.
This file itself has not been run to the end yet; what it gives belongs in results/.
"""

from ..training.recipe import Augment, Data, Loop, Loss, Model, Optim, Recipe

RECIPE = Recipe(
    name="tiny_imagenet100",
    task="classification",
    model=Model(dim=192, layers=6, heads=3, patch_size=8),
    data=Data(source="shards", image_size=64, num_classes=100, in_memory=True),
    augment=Augment(crop=0.35, flip=True, colour=0.3, mixup=0.5),
    loss=Loss(kind="softmax", label_smoothing=0.1),
    optim=Optim(lr=2e-3, weight_decay=0.1, clip=1.0, warmup_steps=150),
    loop=Loop(
        batch_size=1024,
        epochs=24,
        precision="bf16",
        log_every=30,
        eval_every=150,
        eval_batch=1024,
        save_every=600,
        keep=1,
    ),
)
