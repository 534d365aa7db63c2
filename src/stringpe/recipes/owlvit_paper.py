"""OWL-ViT in 2D as in the paper: B/32 at 768 px, towers with CLIP's loss, a list of detection data sets, COCO and LVIS.

    stringpe train owlvit_towers … model.encoding=cayley --out runs/towers/cayley                # likewise the others
    accelerate launch --num_processes 8 -m stringpe train owlvit_paper model.encoding=cayley \\
        'data.train=objects365 + visual_genome' 'data.train_boxes=objects365.json + visual_genome.json' \\
        data.mix='0.8 0.2' data.val=coco data.val_boxes=lvis_v1_val.json data.without=lvis_v1_val.json \\
        'model.start=runs/towers/{encoding}' --out runs/owlvit-cayley
    stringpe eval runs/owlvit-cayley                                                    # LVIS: AP, APr, APc, APf
    stringpe eval runs/owlvit-cayley data.val=val2017 data.val_boxes=instances_val2017.json                   # COCO

Data: folders, zips or tars of pictures with a COCO or LVIS file each, with " + " between them; data.mix holds their
shares of the training. Classes of the same name are one class; the queries of an image are classes of its own data set,
and a mosaic holds pictures of one set. LVIS takes pictures of both COCO splits, so its folder holds train2017 and
val2017. As in OWL-ViT's public configuration for B/32 with CLIP towers: 140,000 steps of 256, Adam 0.9, 0.999, lr 5e-5
(text 2e-6), 1,000 warm-up steps, cosine, clip 1.0, stochastic depth 0.2 and 0.1, crops down to 60 % of the area,
mosaics of 1×1, 2×2 and 3×3 with shares 0.4, 0.3, 0.3, 50 negatives, seven prompts, patches multiplied by the class
token; data.without leaves LVIS's rare names out of training, as there. Differences: gradients are clipped per batch and
not per example; boxes that almost coincide (IoU 0.9) are not merged into one with several names; pictures that are also
in a validation set stay; and the list of data sets is yours: that configuration trains on LVIS alone, OWL-ViT's paper
on Objects365 and Visual Genome, and this paper does not say.
Expected, from the paper (AP): COCO baseline 32.44, RoPE 33.66, RoPE-Mixed 32.74, Circulant 33.24, Cayley 33.47;
LVIS 21.98, 22.71, 22.43, 22.60, 23.01.
Time and number of this recipe: not known, because it has not been run in full.
"""

from dataclasses import replace

from .design import Design
from .owlvit_towers import RECIPE as TOWERS
from .schema import Augment, Data, Loop, Optim, Recipe

RECIPE = Recipe(
    name="owlvit_paper",
    task="detection2d",
    model=replace(TOWERS.model, drop_path=0.2),
    text=replace(TOWERS.text, drop_path=0.1),
    data=Data(source="coco", image_size=768, in_memory=False, workers=16, negatives=50),
    augment=Augment(crop=0.6, flip=True, mosaic="0.4 0.3 0.3"),
    optim=Optim(lr=5e-5, beta1=0.9, beta2=0.999, clip=1.0, warmup_steps=1000, text_lr_scale=0.04),
    loop=Loop(
        batch_size=256,
        steps=140_000,
        precision="bf16",
        log_every=100,
        eval_every=10_000,
        eval_batch=64,
        save_every=2_000,
    ),
)

DESIGN = Design(rows=("absolute", "rope", "rope_mixed", "circulant", "cayley"))
