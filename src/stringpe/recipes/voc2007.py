"""VOC2007 at 112 px: open-vocabulary detection of 20 classes with a small OWL-ViT, in 4,600 steps per run.

    stringpe train voc2007 data.train=voc2007-train.tar data.val=voc2007-val.tar model.encoding=cayley \\
        --out runs/voc2007-cayley
    python -m stringpe compare voc2007 data.train=… data.val=… \\
        model.start='runs/tiny/runs/{encoding}/seed{seed}' --seeds 3 --jobs 15 --no-costs --out runs/voc2007 \\
        --encodings absolute rope rope_mixed circulant cayley

Data: pictures of 224 px on the long side in a tar, boxes beside them as COCO JSON (voc2007-train.json; difficult
objects are crowds), 3,961 / 991 pictures. Decoded once at 112 px, kept on the device.
Towers: an image tower like that of the recipe tiny_imagenet100, with random weights unless model.start names runs of
it; {encoding} and {seed} give every row the tower of its own encoding and seed. The text tower starts at random.
Time: 886 s on one H200 for 15 runs side by side. Most is learned late: AP is near 1 % after a quarter of the steps.
Expected (three seeds, ± half of the 95 % interval): AP 3.13 ± 0.96 absolute, 4.42 ± 0.89 RoPE, 2.32 ± 2.43 RoPE-Mixed,
2.43 ± 2.12 Circulant, 2.23 ± 0.69 % Cayley; after 2,000 steps from random towers 1.3 to 1.5 %, one seed. What this
shows and what it does not: results/2026-11-16-voc2007.
These models had 6 layers × 192 and started from Xavier weights, not from today's initialisation (docs/models.md), so a
run today gives other numbers.
"""

from .schema import Augment, Data, Loop, Loss, Optim, Recipe, Text
from .tiny_imagenet100 import RECIPE as TINY_IMAGENET100

RECIPE = Recipe(
    name="voc2007",
    task="detection2d",
    model=TINY_IMAGENET100.model,
    text=Text(dim=192, layers=2, heads=3, width=192, vocab=600, context=24),
    data=Data(source="coco", image_size=112, negatives=50),
    loss=Loss(factor=10.0),
    augment=Augment(crop=0.33, flip=True, colour=0.3),
    optim=Optim(lr=5e-4, weight_decay=0.05, clip=1.0, warmup_steps=100),
    loop=Loop(
        batch_size=128,
        steps=4_600,
        precision="bf16",
        compile=True,
        log_every=30,
        eval_every=1_150,
        eval_batch=256,
        save_every=4_600,
        keep=1,
    ),
)
