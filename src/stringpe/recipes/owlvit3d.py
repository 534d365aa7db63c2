"""Detection in 3D as in the paper: the towers of WebLI-3D, batch 1,024, 250,000 steps, lr 1e-4.

    accelerate launch --num_processes 16 -m stringpe train owlvit3d model.encoding=cayley \\
        'model.start=runs/webli3d/{encoding}' --out runs/owlvit3d-cayley
    stringpe compare owlvit3d 'model.start=runs/webli3d/{encoding}' --seeds 3 --metrics iou_monte_carlo iou --best

With model.depth=none, and towers trained in that way, the model is the paper's ViT, else its ViTD.
Data: the paper renders four sets of a million images with Unity and holds out 20 of each; here they are procedural
scenes, in memory, or an Omni3D file: data.source=omni3d data.train=images/ data.train_boxes=train.json data.val=images/
data.val_boxes=val.json.
As in the paper: 12 objects per image in training, all in evaluation, Hungarian matching, class + L1 + corners with
equal weights; IoU by 100,000 points per box (iou_monte_carlo), beside the exact one. From OWL-ViT, whose training
method the paper takes over: Adam, clip 1.0, 1,000 warm-up steps, cosine, stochastic depth 0.2 and 0.1, a text tower
that learns at 1/25 of the rate. Expected, from the paper (mean 3D IoU, the best of three seeds): ViT 49.8, RoPE 58.1,
RoPE-Mixed 57.2, Circulant 58.9, Cayley 58.8; with depth 67.6, 71.2, 70.9, 72.4, 72.7.
Time and number of this recipe: not known, because it has not been run in full. Its 200,000 frames are a twentieth of
the paper's.
"""

from dataclasses import replace

from .schema import Augment, Data, Loop, Optim, Recipe
from .webli3d import RECIPE as WEBLI

RECIPE = Recipe(
    name="owlvit3d",
    task="detection3d",
    model=replace(WEBLI.model, drop_path=0.2),
    text=replace(WEBLI.text, drop_path=0.1),
    data=Data(source="scenes", image_size=256, train_size=200_000, val_size=80, queries=12),
    augment=Augment(flip=True),
    optim=Optim(lr=1e-4, clip=1.0, warmup_steps=1_000, text_lr_scale=0.04),
    loop=Loop(
        batch_size=1024,
        steps=250_000,
        precision="bf16",
        log_every=100,
        eval_every=5_000,
        eval_batch=80,
        eval_points=100_000,
        save_every=2_500,
    ),
)
