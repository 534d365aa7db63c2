"""VOC2007 at 224 px: open-vocabulary detection of 20 classes with a small OWL-ViT, in 1,980 steps a run.

    stringpe train voc2007 data.train=voc2007-train.tar data.val=voc2007-val.tar model.encoding=cayley \\
        --out runs/voc2007-cayley
    python -m stringpe.training compare voc2007 data.train=… data.val=… \\
        model.start='runs/flickr8k/runs/{encoding}/seed{seed}' --seeds 3 --jobs 5 --out runs/voc2007 \\
        --encodings absolute rope rope_mixed circulant cayley

Data: pictures of 224 px on the long side in a tar, boxes beside them as COCO JSON (voc2007-train.json; difficult
objects are crowds), 3,961 / 991 pictures. Decoded once, kept on the device, mosaics made there.
Towers: those of the recipe flickr8k, the image tower at 128 px, both with random weights unless model.start names runs
of it; {encoding} and {seed} give every row the towers of its own encoding and seed. From random weights, let the text
tower learn as fast as the rest: optim.text_lr_scale=1. Mosaics end at 2×2: in a 3×3 one at this size, most objects are
smaller than a patch.
Time and expected number: no run has been finished yet. Half of one with 990 steps had AP 0.1 % with absolute embeddings
and 0.3 to 0.7 % with rotary ones, three seeds each; what a whole one gives belongs in results/.
"""

from dataclasses import replace

from ..training.recipe import Augment, Data, Loop, Loss, Optim, Recipe
from .flickr8k import RECIPE as FLICKR8K

RECIPE = Recipe(
    name="voc2007",
    task="detection2d",
    model=replace(FLICKR8K.model, dropout=0.1),
    text=replace(FLICKR8K.text, dropout=0.0),
    data=Data(source="coco", image_size=224, negatives=50),
    loss=Loss(factor=10.0),
    augment=Augment(crop=0.33, flip=True, colour=0.3, mosaic="0.6 0.4"),
    optim=Optim(lr=5e-4, weight_decay=0.05, clip=1.0, warmup_steps=100, text_lr_scale=0.1),
    loop=Loop(
        batch_size=128,
        epochs=64,
        precision="bf16",
        compile=True,
        log_every=30,
        eval_every=1_000,
        eval_batch=256,
        save_every=2_000,
        keep=1,
        tensorboard=False,
    ),
)
