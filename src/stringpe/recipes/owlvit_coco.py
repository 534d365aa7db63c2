"""OWL-ViT on COCO or LVIS: ViT-B/16 at 768 px on SigLIP towers, with the optimiser, mosaics and prompts of OWL-ViT.

    accelerate launch --num_processes 8 -m stringpe train owlvit_coco model.encoding=cayley \\
        data.train=/data/coco/train2017 data.train_boxes=/data/coco/annotations/instances_train2017.json \\
        data.val=/data/coco/val2017 data.val_boxes=/data/coco/annotations/instances_val2017.json \\
        model.start='runs/webli3d/{encoding}' --out runs/owlvit-cayley

Data: pictures in folders, zips or tars, and COCO or LVIS annotation files; LVIS takes pictures of both COCO splits, so
its data.train and data.val are a folder that holds train2017 and val2017.
Towers: those of the recipe webli3d on RGB, or model.start=FOLDER of an OWL-ViT or OWLv2 that transformers wrote.
The paper's own setting, B/32 on towers with CLIP's loss, and its numbers are in `owlvit_paper`.
Time and expected number: not known, because the recipe has not been run in full.
"""

from dataclasses import replace

from .schema import Augment, Data, Loop, Optim, Recipe
from .webli3d import RECIPE as WEBLI

RECIPE = Recipe(
    name="owlvit_coco",
    task="detection2d",
    model=replace(WEBLI.model, depth="none", drop_path=0.2),
    text=replace(WEBLI.text, drop_path=0.1),
    data=Data(source="coco", image_size=768, in_memory=False, workers=16, negatives=50),
    augment=Augment(crop=0.33, flip=True, mosaic="0.4 0.3 0.3"),
    optim=Optim(lr=5e-5, clip=1.0, warmup_steps=1000, text_lr_scale=0.04),
    loop=Loop(
        batch_size=256,
        steps=140_000,
        precision="bf16",
        log_every=100,
        eval_every=10_000,
        eval_batch=64,
        save_every=5_000,
    ),
)
