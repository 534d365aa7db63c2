"""The KUKA policy of section 4.4: picking from RGB-D, with an energy policy around a 3D image encoder.

    stringpe data demos KukaPick --episodes 2000 --size 256 256 --depth --out data/pick
    stringpe compare kuka data.train=data/pick --baseline circulant:model.depth=none --out runs/kuka \\
        --encodings circulant:model.depth=none circulant:model.depth=normals \\
                    circulant circulant:model.depth=lift+normals
    stringpe eval runs/kuka/runs/*/seed0 --env KukaPick --trials 50 --out results/kuka
    stringpe eval runs/kuka/runs/*/seed0 lighting=dim --env KukaPick --trials 50 --out results/kuka-dim

As the paper states it: Adam with lr 1e-4 and decay 1e-4, 10,000 warm-up steps, 500,000 steps of 256, depth as surface
normals through the same embedding, or as mean depth of a patch through a learned linear layer, third coordinate of
Circulant-STRING; ranking NCE with a learned proposal and Langevin steps. Different here: a ViT-B/16 in place of
PaliGemma's encoder (start it from a checkpoint with policy.encoder), AdamW, which takes the decay out of the gradient,
and a cosine after the warm-up. `stringpe data demos KukaPlace` and `KukaHandOver` give the other two tasks of the
paper; data.train=data/pick,data/place,data/hand trains one policy on all three.
Time and expected number: no full run has been made; what it gives belongs in results/.
"""

from .schema import Augment, Data, Loop, Model, Optim, Policy, Recipe

RECIPE = Recipe(
    name="kuka",
    task="policy",
    model=Model(
        dim=768,
        layers=12,
        heads=12,
        patch_size=16,
        encoding="circulant",
        depth="lift",
        registers=4,
    ),
    data=Data(source="demos", image_size=256),
    augment=Augment(shift=8, colour=0.2),
    policy=Policy(kind="energy", chunk=16, execute=8, dim=512, heads=8, encoder_layers=4, decoder_layers=6),
    optim=Optim(lr=1e-4, weight_decay=1e-4, warmup_steps=10_000),
    loop=Loop(
        batch_size=256,
        steps=500_000,
        precision="bf16",
        log_every=100,
        eval_every=10_000,
        eval_batch=64,
        save_every=10_000,
    ),
)
