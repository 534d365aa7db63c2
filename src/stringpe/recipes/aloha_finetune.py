"""ALOHA, the second stage of the paper's training on real robots: a policy for many tasks, fine-tuned on one of them.

    stringpe train aloha policy.encoder=siglip:siglip-base-patch16-256 --out runs/aloha
    stringpe train aloha_finetune data.train=data/MugOnPlate --out runs/mug
    stringpe eval runs/aloha runs/mug --env MugOnPlate --trials 50              # before and after, on the same states

All of the policy, its image encoder included, starts from model.start=runs/aloha. On data that it was trained on
before, the first step sees exactly that policy. The paper trains on 300 real tasks and fine-tunes on ten of them; it
does not say at which rate and for how many steps. Ours are 20,000 steps at a tenth of the rate. For a small policy, set
model.start to a run of `aloha_small`, and model.* and policy.* as in that recipe.
Data: the folder of one task, as `stringpe data demos` writes it.
Time and expected number: not known, because the recipe has not been run in full.
"""

from dataclasses import replace

from .aloha import RECIPE as ALOHA

RECIPE = replace(
    ALOHA,
    name="aloha_finetune",
    model=replace(ALOHA.model, start="runs/aloha"),
    data=replace(ALOHA.data, train=""),
    optim=replace(ALOHA.optim, lr=1e-5),
    loop=replace(ALOHA.loop, steps=20_000, eval_every=1_000, save_every=1_000),
)
