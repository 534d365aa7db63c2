"""A frozen RGB model is extended to depth: only Θ, S, gates, the scale of depth and the classifier are trained.

    stringpe compare scenes_frozen data.cache=cache --jobs 8 --out runs/frozen      # trains the RGB model first, once

This is the situation of someone who attaches an encoding to an existing ViT. The RGB model is one run of `scenes_rgb`,
kept in data.cache; all rows and seeds start from it, and at first compute what it computes. Seeds differ in how the
encoding starts and in the order of the data. The mean depth of a patch is its third coordinate. Frozen W_q and W_k do
not absorb a basis, so Cayley-STRING should beat RoPE-Mixed. Controls: no encoding at all (only the classifier is
trained), a basis that is random and fixed, and LoRA of rank 8 on W_q and W_k beside RoPE-Mixed, with 6,144 numbers per
layer where S has 6,048. The encodings learn at four times the rate, because a gate has to move from 0 to about 1, and
Adam moves it by no more than the sum of the rates. For a CPU there is `scenes_frozen_small`.
Data: as `scenes_objects`.
Time and expected number: not known, because the recipe has not been run. `scenes_frozen_small`
finds Cayley 0.31 ± 0.16 points above RoPE-Mixed.
"""

from .design import MORE, ROTARY, Column, Contrast, Design
from .schema import Augment, Data, Loop, Model, Optim, Recipe

RECIPE = Recipe(
    name="scenes_frozen",
    task="objects",
    model=Model(dim=192, layers=6, heads=3, patch_size=8, depth="lift", start="recipe:scenes_rgb", freeze="backbone"),
    data=Data(source="scenes", image_size=64, train_size=40_000, val_size=4_000, queries=16),
    augment=Augment(flip=True),
    optim=Optim(lr=2e-3, warmup_steps=80, encoding_lr_scale=4.0),
    loop=Loop(
        batch_size=512,
        epochs=10,
        precision="bf16",
        log_every=20,
        eval_batch=500,
        save_every=400,
        keep=1,
    ),
)

HEAD, RANDOM = "none:model.depth=none", "cayley:model.freeze=backbone+basis"
NAMED = "objects named"


def design(rank: int) -> Design:
    """Rows and contrasts, with LoRA of this rank as a control."""
    lora = f"rope_mixed:model.lora={rank}"
    return Design(
        rows=(HEAD, "rope", "rope:base=100,learnable=true", *ROTARY.plus, RANDOM, lora),
        seeds=5,
        columns=(Column(NAMED, "objects named at queried places of new rooms"),),
        contrasts=(
            Contrast("depth − RGB", ROTARY.plus, (HEAD,), {NAMED: MORE}),
            Contrast("Cayley-STRING − RoPE-Mixed", ("cayley",), ("rope_mixed",), {NAMED: MORE}),
            Contrast("learned basis − random basis", ("cayley",), (RANDOM,), {NAMED: MORE}),
            Contrast("Cayley-STRING − RoPE-Mixed with LoRA", ("cayley",), (lora,)),
        ),
        about=(
            "Every row starts from one RGB model, whose weights stay as they are; what learns is the encoding in 3D "
            "that was put into it, behind gates that start at zero, the scale of depth and the classifier. The "
            "frozen query and key projections do not absorb the basis P, so theory expects Cayley-STRING to beat "
            "RoPE-Mixed."
        ),
    )


DESIGN = design(rank=8)
