"""ModelNet10: point clouds of furniture in any pose, a transformer over groups of points.

    stringpe compare modelnet10 data.train=modelnet10.npz data.cache=cache --jobs 8 --out runs/modelnet10
    stringpe train modelnet10 data.train=modelnet10.npz model.encoding=cayley --out runs/modelnet10-cayley

Data: one .npz with train_points (n, 1024, 3), train_label (n,), test_points, test_label and perhaps classes:
3,991 + 908 shapes. Clouds are centred and scaled to radius 1, because the units of CAD files differ; 64 groups of 32
points are found once and kept in data.cache. Every training example is in a new random pose (augment.turn=any).
Coordinates are the centres of the groups in space, times 8. Absolute embeddings are sine-cosine, since there is no grid
for a table. Columns: clouds as stored, in other random poses, and all moved by four radii.
Time and expected number: not known, because the comparison has not been run. A smaller model does learn on a CPU, in 78
CPU seconds: Cayley, 4 layers × 96, 32 groups, 500 steps of 32 (four epochs), seed 0, names 32.7 % of the shapes as
stored, 33.6 % in other poses and 32.7 % moved, while the loss still falls. A plain PointNet of 3-64-128-192 channels,
trained as long on 256 points per cloud in random poses, names 11.0 %.
"""

from .design import ROTARY, STRING, Column, Contrast, Design
from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe

RECIPE = Recipe(
    name="modelnet10",
    task="shapes",
    model=Model(dim=192, layers=6, heads=6, mlp_ratio=2.0, drop_path=0.1),
    data=Data(source="clouds", num_classes=10, groups=64, group_size=32),
    augment=Augment(turn="any"),
    loss=Loss(label_smoothing=0.1),
    optim=Optim(lr=1e-3, weight_decay=0.05, warmup_steps=200),
    loop=Loop(
        batch_size=64,
        epochs=100,
        precision="bf16",
        compile=True,
        log_every=100,
        eval_every=1_500,
        eval_batch=454,
        save_every=3_000,
        keep=1,
    ),
)

STORED, TURNED, MOVED = "as stored", "in other poses", "moved"

DESIGN = Design(
    rows=(
        "none",
        "sincos",
        "rope",
        "rope:base=100",
        "rope:base=100,learnable=true",
        "rope_mixed",
        "circulant",
        "cayley",
        "cayley:frequencies=axial,share_basis=true",
        "harope",
        "simplex",
        "liere",
    ),
    seeds=5,
    columns=(
        Column(STORED, "test clouds as the file has them"),
        Column(TURNED, "the same models, each test cloud in a random pose", metric="turned"),
        Column(MOVED, "the same models, all test clouds moved by four radii", metric="moved"),
    ),
    contrasts=(
        Contrast("rotary − absolute", ROTARY.plus, ("sincos",), {MOVED: "more"}),
        STRING,
        Contrast("STRING − HARoPE and nD-RoPE", ("circulant", "cayley"), ("harope", "simplex")),
    ),
    about=(
        "Every model names the shape of a point cloud from groups of its points, trained on clouds in random poses. "
        "Rotary encodings see relative positions only, so the column of moved clouds must equal the first for them, "
        "and absolute embeddings must fall there. Projections are free, so theory gives STRING no reason to beat "
        "RoPE-Mixed in what it can express; a difference would be one of learning."
    ),
)
