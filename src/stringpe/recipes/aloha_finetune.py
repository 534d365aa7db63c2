"""ALOHA, the second half of the paper's training on real robots: a policy of many tasks, tuned on one of them.

    stringpe train aloha policy.encoder=siglip:siglip-base-patch16-256 --out runs/aloha
    stringpe train aloha_finetune data.train=data/MugOnPlate --out runs/mug
    stringpe eval runs/aloha runs/mug --env MugOnPlate --trials 50              # before and after, on the same states

The policy starts from model.start=runs/aloha, all of it, image encoder included; with data that was trained on before,
the first step sees exactly that policy. The paper pre-trains on 300 real tasks and tunes on ten of them; which rate and
how many steps it does not say: 20,000 steps at a tenth of the rate are a choice of ours. For a small one, set
model.start to a run of `aloha_small` and its model.* and policy.* as there.
Time and expected number: no full run has been made.
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
