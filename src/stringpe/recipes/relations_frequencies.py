"""How fast frequencies should learn, and whether learned ones still work in a larger space: a study on `relations`.

    stringpe compare relations_frequencies --no-costs --out runs/frequencies

Rows are encodings with a multiple of the learning rate for their own parameters, `optim.encoding_lr_scale`; 0 leaves
them as they start. The second column tests the same models on sets of 128 points in a cube of twice the side: as many
points per volume as in training, at distances of up to twice those of training, as in a larger image.
Data: as in `relations`; ten seeds that no other page uses.
Time: ten and a half minutes, two processes with one thread each beside other work.
Expected (ten seeds, torch 2.13.0 on a CPU): four times the rate − the rate +2.47 ± 0.25 points as trained, −5.41 ± 1.15
on larger sets, +9.15 ± 1.45 with W_q and W_k frozen. With model.heads=1, learned frequencies are 6.05 ± 1.54 points
below unlearned ones on larger sets. All rows: results/2026-11-19-frequencies.
"""

from dataclasses import replace

from .design import MORE, Column, Contrast, Design
from .relations import FROZEN, TRAINED
from .relations import RECIPE as RELATIONS

RECIPE = replace(RELATIONS, name="relations_frequencies", seed=20)

LARGER = "larger sets"
_LEARNED = ("rope_mixed", "circulant", "cayley")


def _at(scale: float, *names: str) -> tuple[str, ...]:
    return tuple(f"{name}:optim.encoding_lr_scale={scale:g}" for name in names)


_SLOW, _HALF, _DOUBLE, _FAST = (_at(scale, *_LEARNED) for scale in (0.25, 0.5, 2, 4))
_AXIAL = "rope:base=100,learnable=true"
_FREE = {TRAINED: MORE, FROZEN: MORE}

DESIGN = Design(
    rows=(
        "rope:base=100", _AXIAL, "simplex", "golden",
        *_at(0, *_LEARNED), *_SLOW, *_HALF, *_LEARNED, *_DOUBLE, *_FAST,
    ),
    seeds=10,
    columns=(
        Column(TRAINED, "tested on new sets like those of training"),
        Column(LARGER, "the same models on sets of 128 points in a cube of twice the side", metric="larger"),
        Column(FROZEN, "the query and key projections stay as they start", ("model.freeze=qk",)),
    ),
    contrasts=(
        Contrast("learned − initial frequencies", _LEARNED, _at(0, *_LEARNED), _FREE),
        Contrast("learned − initial frequencies, along axes", (_AXIAL,), ("rope:base=100",), _FREE),
        Contrast("learned directions − simplex", _LEARNED, ("simplex",), {TRAINED: MORE}),
        Contrast("a quarter of the rate − the rate", _SLOW, _LEARNED),
        Contrast("half of the rate − the rate", _HALF, _LEARNED),
        Contrast("twice the rate − the rate", _DOUBLE, _LEARNED),
        Contrast("four times the rate − the rate", _FAST, _LEARNED),
        Contrast("Cayley-STRING − RoPE-Mixed", ("cayley",), ("rope_mixed",), {FROZEN: MORE}),
        Contrast("Cayley-STRING − RoPE-Mixed at a quarter of the rate", _SLOW[2:], _SLOW[:1], {FROZEN: MORE}),
        Contrast("golden − RoPE-Mixed at a quarter of the rate", ("golden",), _SLOW[:1]),
    ),
    about=(
        "Every model sees 16 labelled points in 3D and names, for each point, the label of its nearest neighbour in a "
        "metric that is tilted against the axes. Rows differ in how fast the parameters of the encoding learn. "
        "Frequencies that learn must help on this task, whose metric is tilted by an unknown frame; whether they help "
        "or harm in sets that are larger than those of training is open, and so is the rate at which they should "
        "learn."
    ),
)  # fmt: skip
