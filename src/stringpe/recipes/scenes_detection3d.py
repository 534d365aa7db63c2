"""Named objects with their oriented boxes in 3D, in procedural scenes of all four families: the paper's section 4.2.

    stringpe compare scenes_detection3d --seeds 3 --jobs 6 --out runs/detection3d --baseline absolute \\
        --encodings absolute rope rope_mixed circulant cayley \\
                    absolute:model.depth=none rope:model.depth=none rope_mixed:model.depth=none \\
                    circulant:model.depth=none cayley:model.depth=none
    stringpe train scenes_detection3d 'model.start=runs/scenes-retrieval/runs/{encoding}/seed{seed}' --out runs/d3

Rows with model.depth=none are the ViT on RGB; the others are the ViTD, with depth as a channel (boxes are metric and
absolute, and a lift alone shows only differences of depth) and as third coordinate. The text tower is trained as well;
with model.start both towers come from a run of `scenes_retrieval`, whose sizes they have, as in the paper. Queries are
the names of all 57 kinds, in seven templates.
Data: 40,000 + 1,000 frames at 120 px in 100 patches, rendered on the first run and kept in data.cache (3.0 GB);
validation rooms have another seed. 2,400 steps show every frame 7.7 times; more (loop.steps=6000) still help. For a CPU
there is `scenes_detection3d_small`.
Time: seven minutes for thirty runs with loop.steps=1300, beside another comparison on one H200.
Expected from these: mean 3D IoU 4.4 % on RGB, 9 to 11 % with depth, still rising
(results/2026-11-16-scenes-detection3d).
The paper's numbers, of far longer runs on other scenes, are in `owlvit3d`: 49.8 to 58.9 % and 67.6 to 72.7 %.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection3d",
    task="detection3d",
    model=Model(dim=192, layers=6, heads=3, patch_size=12, depth="lift+channel"),
    text=Text(dim=192, layers=3, heads=3, width=192, vocab=600, context=64),
    data=Data(source="scenes", image_size=120, train_size=40_000, val_size=1_000, queries=12),
    augment=Augment(flip=True, colour=0.2),
    loss=Loss(factor=10.0),
    optim=Optim(lr=1e-3, weight_decay=0.05, warmup_steps=100),
    loop=Loop(
        batch_size=128,
        steps=2_400,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=1_200,
        eval_batch=250,
        save_every=2_400,
        keep=1,
    ),
)
