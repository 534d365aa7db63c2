"""Tiny-ImageNet-100: 100 classes at 64 px, 30,000 images; small enough for many encodings and seeds.

    stringpe train tiny_imagenet100 data.train=tiny-imagenet-100-train.tar.gz data.val=tiny-imagenet-100-val.tar.gz \\
        model.encoding=cayley --out runs/tiny-cayley
    stringpe compare tiny_imagenet100 data.train=… data.val=… data.cache=cache --seeds 3 --jobs 11 --rates 1e-3 2e-3 \\
        --rates-share 0.4 --encodings absolute rope rope_mixed circulant cayley liere --out runs/tiny

Data: WebDataset layout, NNNNNN.webp + NNNNNN.cls, decoded once (kept in data.cache) and augmented on the device.
Time: one H200, fourteen runs side by side: 0.13 to 0.17 s a step for each (LieRE 0.47), so about two and a half minutes
for each eleven runs; alone, a run waits for its host.
Expected: no run of this length has been made. Eight epochs (loop.epochs=8, three seeds): absolute 13.09 ± 0.60, RoPE
13.41 ± 1.61, Circulant 13.64 ± 2.05, LieRE 13.11 ± 1.77 % top-1, which tells nothing apart; see
results/2026-11-15-tiny-imagenet-100. A pilot with a larger model and 60 epochs, one seed: absolute 46.9, RoPE 47.4,
RoPE-Mixed 48.6, Cayley 48.7, Circulant 49.7.
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
        epochs=30,
        precision="bf16",
        log_every=30,
        eval_every=150,
        eval_batch=1024,
        save_every=600,
        keep=1,
    ),
)
