"""Retrieval where depth matters: rooms seen twice, captions that are true of one view and false of the other.

    python -m stringpe compare scenes_retrieval --seeds 3 --jobs 6 --out runs/scenes-retrieval \\
        --baseline absolute:model.depth=none \\
        --encodings absolute:model.depth=none rope:model.depth=none rope_mixed:model.depth=none \\
                    circulant:model.depth=none cayley:model.depth=none \\
                    absolute rope rope_mixed circulant cayley

Rows with model.depth=none are the ViT on RGB; the others are the ViTD, with depth as a channel and as third coordinate.
"a red mug is nearer than a blue bowl" is true of one of two views of a room, and the caption of the other view says the
opposite in the same words (`stringpe.data.scene_views`), in training and in the gallery. Mean recall is the number of
the table; "views" is the share of captions that choose the right one of the two views, where guessing gives 50 %. The
two views are compared with each other beside the rest of the batch (loss.within): with SigLIP's loss alone a model
learns rooms first, and hardly begins with views in a run of this length. A mirror changes no distance to the camera, so
images are flipped.
Data: 30,000 + 1,000 frames at 96 px in 64 patches, one in four of the frames that the GPU renders on the first run,
kept in data.cache (1.4 GB).
Time: six minutes for thirty runs with loop.steps=900, beside another comparison on one H200.
Expected from these: mean recall 5 to 6 % on RGB and 6 to 8 % with depth, views 52 to 54 % and 60 to 62 %
(results/2026-11-16-scenes-retrieval). Both were still rising. The paper's recall, on another task, is in `webli3d`.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_retrieval",
    task="retrieval",
    model=Model(dim=192, layers=6, heads=3, patch_size=12, pool="map", depth="lift+channel"),
    text=Text(dim=192, layers=3, heads=3, width=192, vocab=400, context=64),
    data=Data(source="scenes", image_size=96, train_size=30_000, val_size=1_000),
    augment=Augment(flip=True),
    loss=Loss(kind="siglip", pair_bias="auto", within=1.0),
    optim=Optim(lr=1e-3, beta2=0.98, weight_decay=0.05, clip=1.0, warmup_steps=100),
    loop=Loop(
        batch_size=256,
        steps=1_200,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=400,
        eval_batch=500,
        save_every=1_200,
        keep=1,
    ),
)
