"""VOC2007 at 112 px: open-vocabulary detection of 20 classes with a small OWL-ViT, in 3,961 steps a run.

    stringpe train voc2007 data.train=voc2007-train.tar data.val=voc2007-val.tar model.encoding=cayley \\
        --out runs/voc2007-cayley
    python -m stringpe.training compare voc2007 data.train=… data.val=… \\
        model.start='runs/tiny/runs/{encoding}/seed{seed}' --seeds 3 --jobs 8 --out runs/voc2007 \\
        --encodings absolute rope rope_mixed circulant cayley

Data: pictures of 224 px on the long side in a tar, boxes beside them as COCO JSON (voc2007-train.json; difficult
objects are crowds), 3,961 / 991 pictures. Decoded once at 112 px, kept on the device.
Towers: an image tower like that of the recipe tiny_imagenet100, with random weights unless model.start names runs of
it; {encoding} and {seed} give every row the tower of its own encoding and seed. The text tower starts at random.
Why so: on a CPU (ViT of 4 layers × 128 at 96 px, batches of 32, Cayley, one seed each) a run is held back by its
training, not by new pictures (AP 0.47 % on the training set, 0.57 % on the other, after 4,500 steps); single pictures
gave more than 2×2 mosaics in two of five (0.57 against 0.46 %); a classifier's tower (16 % top-1) gave more than a
random one (0.48 against 0.39 % after 700 steps of patches of 8 px).
Time and expected number: no run has been finished yet. An earlier form of this recipe, at 224 px and from towers of
flickr8k, had AP 0.1 % with absolute embeddings and 0.3 to 0.7 % with rotary ones after 495 steps, three seeds each;
what a whole one gives belongs in results/.
"""

from ..training.recipe import Augment, Data, Loop, Loss, Optim, Recipe, Text
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
        epochs=128,
        precision="bf16",
        compile=True,
        log_every=30,
        eval_every=1_000,
        eval_batch=256,
        save_every=4_000,
        keep=1,
        tensorboard=False,
    ),
)
