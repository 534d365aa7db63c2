"""`voc2007` for a CPU: the same pictures at 64 px and a tiny OWL-ViT, to see that everything works.

    stringpe compare voc2007_small data.train=voc2007-train.tar data.val=voc2007-val.tar --seeds 2 \\
        --no-costs --encodings absolute rope cayley
    stringpe compare voc2007_small … 'model.start=runs/flickr8k-small/runs/{encoding}/seed{seed}' --encodings …

Data: the files of `voc2007`. The towers are those of `flickr8k_small`, with random weights unless model.start names
runs of it.
Time: 105 s of one CPU core per run, two runs side by side on two cores.
Expected (two seeds, torch 2.13.0 on a CPU, ± half of the 95 % interval): AP absolute 0.31 ± 0.33, RoPE 0.14 ± 0.11,
Cayley 0.25 ± 0.61 %; AP50 0.5 to 1 %. It shows that everything works. 600 steps from random towers do not train a
detector, and these numbers say nothing about encodings.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .flickr8k_small import RECIPE as TOWERS
from .schema import Augment, Data, Loop, Loss, Optim, Recipe

RECIPE = Recipe(
    name="voc2007_small",
    task="detection2d",
    model=TOWERS.model,
    text=TOWERS.text,
    data=Data(source="coco", image_size=64, negatives=50),
    loss=Loss(factor=10.0),
    augment=Augment(crop=0.33, flip=True, colour=0.3, mosaic="0.6 0.4"),
    optim=Optim(lr=1e-3, weight_decay=0.05, clip=1.0, warmup_steps=40),
    loop=Loop(
        batch_size=32,
        steps=600,
        log_every=20,
        eval_every=300,
        eval_batch=128,
        save_every=600,
        keep=1,
    ),
)
