"""Linear attention on pictures: `scenes` with ReLU and with Performer features in place of softmax, twice as long.

    stringpe compare scenes_linear --no-costs --out runs/linear

In front of a ReLU the query and key projections cannot absorb a basis P, so theory expects Cayley-STRING above
RoPE-Mixed; the Performer's features estimate the softmax, whose scores P does not change where projections are free,
so it expects them to be equal there. Data: as in `scenes`.
Time: about 25 seconds of one idle core per run, 40 runs.
Expected (torch 2.13.0 on a CPU, ± half of the 95 % interval): by ReLU features, seeds 0 to 4, absolute 35.79 ± 0.34,
RoPE-Mixed 34.44 ± 0.34, Circulant 34.61 ± 0.34, Cayley 34.73 ± 0.34 % of objects named; by Performer features 35.50,
33.94, 34.11 and 34.05 ± 0.22. Cayley − RoPE-Mixed by ReLU features in the seeds 10 to 19: +0.71 ± 0.28
(results/2026-11-20-linear-attention).
"""

from dataclasses import replace

from .design import EQUAL, MORE, ROTARY, Column, Contrast, Design
from .scenes import RECIPE as SCENES

RECIPE = replace(
    SCENES,
    name="scenes_linear",
    model=replace(SCENES.model, attention="relu"),
    loop=replace(SCENES.loop, steps=1200, save_every=1200),
)

RELU, PERFORMER = "ReLU", "Performer"

DESIGN = Design(
    rows=("absolute", "rope_mixed", "circulant", "cayley"),
    seeds=5,
    columns=(
        Column(RELU, "linear attention by ReLU features, which no projection sees through"),
        Column(PERFORMER, "linear attention by random features that estimate the softmax", ("model.attention=linear",)),
    ),
    contrasts=(
        ROTARY,
        Contrast("Cayley-STRING − RoPE-Mixed", ("cayley",), ("rope_mixed",), {RELU: MORE, PERFORMER: EQUAL}),
        Contrast("Circulant-STRING − RoPE-Mixed", ("circulant",), ("rope_mixed",)),
    ),
    about=(
        "Every model names the objects at queried places of small RGB-D frames, with linear attention in place of "
        "softmax. In front of a ReLU, projections cannot absorb the basis P of STRING, and it should help; where "
        "features estimate the softmax, they can, and it should not."
    ),
)
