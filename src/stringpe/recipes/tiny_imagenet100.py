"""Tiny-ImageNet-100: 100 classes at 64 px, 30,000 images; small enough for many encodings and seeds.

    stringpe train tiny_imagenet100 data.train=tiny-imagenet-100-train.tar.gz data.val=tiny-imagenet-100-val.tar.gz \\
        model.encoding=cayley --out runs/tiny-cayley
    stringpe compare tiny_imagenet100 data.train=… data.val=… data.cache=cache --seeds 3 --jobs 15 --no-costs \\
        --baseline absolute --out runs/tiny --encodings absolute rope rope_mixed circulant cayley

Data: WebDataset layout, NNNNNN.webp + NNNNNN.cls, decoded once (kept in data.cache) and augmented on the device.
Layers are compiled; without a C++ compiler on the machine, add loop.compile=false.
Augmentation: mirror images, shifts by 8 reflected pixels, and mixup; branches are dropped at random.
Models are also tested on images enlarged to 96 and 128 px, without further training: columns of a comparison.
Time: about 26 s per run on one H200.
Expected top-1 (two seeds): 49.0 and 49.2 % with absolute embeddings, 49.1 and 48.7 % with Cayley-STRING; at 128 px 13.2
and 13.9, 8.5 and 9.5 % (results/2026-11-19-start).
"""

from .design import MORE, ROTARY, STRING, Column, Contrast, Design
from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe

RECIPE = Recipe(
    name="tiny_imagenet100",
    task="classification",
    model=Model(dim=256, layers=8, heads=4, patch_size=8, patch_gain=1.0, drop_path=0.1),
    data=Data(source="shards", image_size=64, num_classes=100, in_memory=True),
    augment=Augment(crop=1.0, flip=True, shift=8, mixup=0.8),
    loss=Loss(kind="softmax", label_smoothing=0.1),
    optim=Optim(lr=1.5e-3, beta2=0.95, weight_decay=0.05, clip=1.0, warmup_steps=150),
    loop=Loop(
        batch_size=1024,
        epochs=60,
        precision="bf16",
        compile=True,
        log_every=30,
        eval_every=300,
        eval_batch=1024,
        eval_sizes="96 128",
        save_every=900,
        keep=1,
    ),
)

TRAINED, LARGER, TWICE = "64 px", "96 px", "128 px"

DESIGN = Design(
    columns=(
        Column(TRAINED, "images of the size of training"),
        Column(LARGER, "the same models on images enlarged to 96 px, without further training", metric="top1_96"),
        Column(TWICE, "the same models on images enlarged to 128 px", metric="top1_128"),
    ),
    contrasts=(
        Contrast(ROTARY.name, ROTARY.plus, ROTARY.minus, {TRAINED: MORE, LARGER: MORE, TWICE: MORE}),
        STRING,
        Contrast("RoPE-Mixed − RoPE", ("rope_mixed",), ("rope",), {TWICE: MORE}),
    ),
    about=(
        "Every model names the class of images of 64 px. Enlarged images have more patches: learned tables are "
        "interpolated, and rotary encodings see larger distances than in training."
    ),
)
