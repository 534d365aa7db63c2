"""ALOHA in minutes: a small diffusion policy over four cameras at 128 px, from scratch, on one GPU.

    stringpe data demos MugOnPlate --episodes 800 --out data/mug
    stringpe data pack data/mug mug.safetensors --stride 5              # one small file, to train elsewhere
    stringpe compare aloha_small data.train=mug.safetensors --encodings absolute rope cayley --seeds 1 --out runs/aloha
    stringpe eval runs/aloha/runs/*/seed0 --env MugOnPlate --trials 50 --out results/aloha

Data: demonstrations as the first command records them. Several data sets, with commas between them, give a policy for
several tasks; the text of a task tells it which one is meant. Registers stand at the origin of the image encoder's
coordinates, so that a translation-invariant encoding can express where in the image a patch is. The decoder predicts
the clean chunk, a quarter of each batch are first frames, and the encoder begins with convolutions, so that the policy
learns to use its cameras: docs/policies.md. policy.simulate=MugOnPlate adds success in simulation to every evaluation
during training.
Time: sixteen minutes on one H200 for sixteen such policies side by side.
Expected success in simulation, absolute / RoPE / Cayley: MugOnPlate 48 / 80 / 94, HandOverPen 26 / 38 / 50, BowlOnRack
36 / 18 / 28 % (results/2026-11-16-aloha). The paper's large policies, over ten trials each: 70 / 90 / 80, 100 / 100 /
100 and 90 / 80 / 100 %.
These models started from Xavier weights, not from today's initialisation (docs/models.md), so a run today gives other
numbers.
"""

from .schema import Augment, Data, Loop, Model, Optim, Policy, Recipe

RECIPE = Recipe(
    name="aloha_small",
    task="policy",
    model=Model(dim=192, layers=6, heads=3, patch_size=16, stem="conv", encoding="cayley", registers=4),
    data=Data(source="demos", image_size=128),
    augment=Augment(shift=4, colour=0.2),
    policy=Policy(
        chunk=20,
        execute=10,
        dim=192,
        heads=3,
        encoder_layers=2,
        decoder_layers=4,
        sample_steps=8,
        repeats=4,
        prediction="sample",
        blind=0.2,
        first=0.25,
    ),
    optim=Optim(lr=5e-4, beta1=0.95, weight_decay=1e-6, warmup_steps=300, ema=0.999, ema_power=0.75),
    loop=Loop(
        batch_size=64,
        steps=4200,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=600,
        eval_batch=128,
        save_every=4200,
        keep=1,
    ),
)
