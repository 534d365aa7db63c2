"""The KUKA policy of section 4.4: pick, place and hand-over from RGB-D, by an energy policy around a 3D image encoder.

    for task in KukaPick KukaPlace KukaHandOver; do
        stringpe data demos $task --episodes 2000 --size 256 256 --depth; done
    stringpe train kuka policy.encoder=paligemma:paligemma-3b --out runs/kuka
    stringpe compare kuka --baseline circulant:model.depth=none --out runs/rows \\
        --encodings circulant:model.depth=none circulant:model.depth=normals \\
                    circulant circulant:model.depth=lift+normals
    stringpe eval runs/rows/runs/*/seed0 --env KukaPick --shifts --trials 50 --out results/kuka

Data: the three folders data/TASK that the first command writes. As in the paper, one policy learns three tasks, pick,
place and hand-over, and is evaluated on picking; Adam with lr 1e-4 and decay 1e-4, 10,000 warm-up steps and then a
constant rate, 500,000 steps of 256; depth as surface normals through the same embedding, or as the mean depth of a
patch through a learned linear layer, the third coordinate of Circulant-STRING; ranking NCE with a learned proposal and
Langevin steps; encoders that start from 2D weights. policy.encoder=paligemma:FOLDER is the vision tower of a PaliGemma
in transformers' format (siglip:FOLDER a SigLIP), whose image size must be data.image_size, and which takes depth by
lift or not at all. Without policy.encoder it is our own ViT-B/16, which also takes normals and should start from a run
(policy.encoder=RUN). Different from the paper: AdamW, whose decay does not go through the gradient; scripted experts in
simulation. Published PaliGemmas have patches of 14 at 224 px; the one with patches of 16 at 256 px that the paper names
is not public. Expected, from the paper, picks of a real robot: 2D 65 %, with normals 42 %, lifted 74 %, both 53 %.
Time and number of this recipe: not known, because it has not been run in full; those of `kuka_small` are measured.
"""

from .schema import Augment, Data, Loop, Model, Optim, Policy, Recipe

TASKS = ("KukaPick", "KukaPlace", "KukaHandOver")

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
    data=Data(source="demos", train=",".join(f"data/{task}" for task in TASKS), image_size=256),
    augment=Augment(shift=8, colour=0.2),
    policy=Policy(kind="energy", chunk=16, execute=8, dim=512, heads=8, encoder_layers=4, decoder_layers=6),
    optim=Optim(lr=1e-4, weight_decay=1e-4, warmup_steps=10_000, schedule="constant"),
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
