"""Named objects with their oriented boxes in 3D, in procedural scenes of all four families: the paper's section 4.2.

    stringpe compare scenes_detection3d data.cache=cache --jobs 4 --no-costs --out runs/detection3d
    stringpe train scenes_detection3d 'model.start=runs/scenes-retrieval/runs/{encoding}/seed{seed}' --out runs/d3

Depth is a channel (a lift alone shows only differences of depth) and the third coordinate: the paper's ViTD. Centres
are predicted relative to the points where patches lie. With absolute centres, as in the paper, a run may stay for
thousands of steps at boxes that are alike in every image: one seed of two ended at 10.5 % mean IoU, the other was at
25.5 % after 3,000 steps (results/2026-11-19-start). Rows with model.depth=none, the ViT on RGB, have no points and need
absolute centres.
The text tower is trained as well; with model.start both towers come from a run of `scenes_retrieval`, as in the paper,
which must then be of the same size (model.dim=384 model.layers=8 model.heads=6). Queries are the names of all 57 kinds,
in seven templates.
Data: 100,000 + 1,000 frames at 120 px in 100 patches, rendered on the first run and kept in data.cache (7.5 GB);
validation rooms have another seed. 4,000 steps show every frame ten times. For a CPU there is
`scenes_detection3d_small`.
Time: about one minute per run on one H200, after one minute of rendering.
Expected: mean 3D IoU 33.6 and 32.7 %, AP 19.6 and 18.7 %, AP25 21.3 and 20.5 % with Cayley-STRING (two seeds).
The paper's numbers, of far longer runs on other scenes, are in `owlvit3d`: 49.8 to 58.9 % and 67.6 to 72.7 %.
"""

from .design import ROTARY, STRING, Contrast, Design
from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="scenes_detection3d",
    task="detection3d",
    model=Model(dim=384, layers=8, heads=6, patch_size=12, depth="lift+channel", box_centre="point"),
    text=Text(dim=192, layers=3, heads=3, width=192, vocab=600, context=64),
    data=Data(source="scenes", image_size=120, train_size=100_000, val_size=1_000, queries=12),
    augment=Augment(flip=True, colour=0.2),
    loss=Loss(factor=10.0),
    optim=Optim(lr=7e-4, beta2=0.95, weight_decay=0.05, warmup_steps=400),
    loop=Loop(
        batch_size=256,
        steps=4_000,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=1_000,
        eval_batch=250,
        save_every=2_000,
        keep=1,
    ),
)


def fix_centres(*rows: str, depth: bool = True) -> tuple[str, ...]:
    """These rows with absolute centres, as in the paper; without depth, its ViT on RGB."""
    changes = "model.box_centre=absolute" if depth else "model.depth=none,model.box_centre=absolute"
    return tuple(f"{row}:{changes}" for row in rows)


BOTH = ("absolute", "cayley")
CONTRASTS = (
    ROTARY,
    STRING,
    Contrast(f"{ROTARY.name}, absolute centres", fix_centres(*ROTARY.plus), fix_centres(*ROTARY.minus)),
    Contrast("points − absolute centres", BOTH, fix_centres(*BOTH)),
    Contrast("depth − RGB, absolute centres", fix_centres(*BOTH), fix_centres(*BOTH, depth=False)),
)

DESIGN = Design(
    rows=(
        "absolute", "sincos", "rope:base=100,learnable=true", "rope_mixed", "circulant", "cayley",
        *fix_centres("absolute", "rope_mixed", "cayley"), *fix_centres(*BOTH, depth=False),
    ),
    seeds=4,
    contrasts=CONTRASTS,
    about=(
        "Every model finds named objects in RGB-D scenes and gives each an oriented box in metres. Centres are "
        "predicted relative to the points where patches lie in space, or, in rows that say so, absolutely, as in the "
        "paper; there a run may stay for long at boxes that are alike in every image."
    ),
)  # fmt: skip
