"""KUKA pick in minutes: a small diffusion policy from RGB-D at 128 px, from scratch, on one GPU.

    stringpe data demos KukaPick depth_noise=true --episodes 1200 --depth --out data/pick
    stringpe data pack data/pick pick.safetensors --stride 6 --depth-step 4
    stringpe compare kuka_small data.train=pick.safetensors --baseline circulant:model.depth=none --out runs/kuka \\
        --encodings circulant:model.depth=none circulant:model.depth=normals \\
                    circulant circulant:model.depth=lift+normals
    stringpe eval runs/kuka/runs/*/seed0 depth_noise=true --env KukaPick --trials 50 --out results/kuka
    stringpe eval runs/kuka/runs/*/seed0 depth_noise=true lighting=dim --env KukaPick --trials 50 --out results/kuka-dim

The rows: 2D, 2D with surface normals, depth lifted to the third coordinate, and both. policy.kind=energy is the paper's
kind of policy, which learns more slowly (docs/policies.md). Registers stand at the origin of the coordinates, so that a
lifted patch tells its depth itself and not only how it differs from others. The clean chunk is predicted, a quarter of
a batch are first frames, and the encoder begins with convolutions, so that the policy learns to look: docs/policies.md.
Time: one H200, sixteen such policies side by side, nine minutes (with linear patches). Expected number: no run on a
GPU with these settings has been evaluated yet; what it gives belongs in results/.
"""

from ..training.recipe import Augment, Data, Loop, Model, Optim, Policy, Recipe

RECIPE = Recipe(
    name="kuka_small",
    task="policy",
    model=Model(
        dim=192,
        layers=6,
        heads=3,
        patch_size=16,
        stem="conv",
        encoding="circulant",
        depth="lift",
        registers=4,
    ),
    data=Data(source="demos", image_size=128),
    augment=Augment(shift=4, colour=0.2),
    policy=Policy(
        chunk=16,
        execute=8,
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
        steps=3600,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=600,
        eval_batch=128,
        save_every=3600,
        keep=1,
        tensorboard=False,
    ),
)
