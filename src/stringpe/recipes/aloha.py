"""The ALOHA policy of section 4.3: a diffusion transformer over four cameras, each seen by SigLIP B/16 at 256 px, one
policy for all twelve simulated tasks.

    for task in BowlOnRack GlassOnRack PlateOnRack SingleInsertion DoubleInsertion FMB-1 FMB-2 FruitBowl StorageBin \\
        HandOverBanana HandOverPen MugOnPlate; do stringpe data demos $task --episodes 500 --size 256 256; done
    stringpe train aloha policy.encoder=siglip:siglip-base-patch16-256 --out runs/aloha
    stringpe eval runs/aloha --env BowlOnRack GlassOnRack MugOnPlate --trials 10           # … and the other nine
    stringpe compare aloha policy.encoder=siglip:siglip-base-patch16-256 --out runs/rows \\
        --encodings absolute rope cayley

Data: the twelve folders data/TASK that the first command writes; data.train=data/MugOnPlate trains on one task alone,
and `aloha_finetune` continues from this policy on one task. All pictures are held in memory, 0.8 MB per time step with
four cameras; policy.stride=5 keeps every fifth.
As in the paper and ALOHA Unleashed: chunks of 50 absolute joint targets, noise prediction, an encoder-decoder
transformer, a million steps, and success over ten trials per task every 10,000 steps. policy.simulate=MugOnPlate,…,
with all twelve names, measures that curve during training, in one process. The rows are absolute (SigLIP as it is),
rope and cayley, attached so that they start as the same function. All frequencies are learned, also those of RoPE.
Not stated there, and chosen here: T = 100 with a squared-cosine schedule and 16 DDIM steps, AdamW 1e-4 (0.95, 0.999)
with decay 1e-6, EMA power 0.75, batches of 256. Unlike there, demonstrations come from scripted experts at 10 actions
per second, so a chunk is 5 s and not 1 s long, and the scenes are rebuilt from primitives.
Expected, from the paper, mean success over the twelve tasks: ViT 0.37, RoPE 0.42, Cayley-STRING 0.46.
Time and number of this recipe: not known, because it has not been run in full; those of `aloha_small` are measured.
"""

from .schema import Augment, Data, Loop, Model, Optim, Policy, Recipe

TASKS = (
    "BowlOnRack",
    "GlassOnRack",
    "PlateOnRack",
    "SingleInsertion",
    "DoubleInsertion",
    "FMB-1",
    "FMB-2",
    "FruitBowl",
    "StorageBin",
    "HandOverBanana",
    "HandOverPen",
    "MugOnPlate",
)
"""The twelve of appendix B."""

RECIPE = Recipe(
    name="aloha",
    task="policy",
    model=Model(
        dim=768, layers=12, heads=12, patch_size=16, encoding="cayley", encoding_options={"rope.learnable": True}
    ),
    data=Data(source="demos", train=",".join(f"data/{task}" for task in TASKS), image_size=256),
    augment=Augment(shift=8, colour=0.2),
    policy=Policy(
        chunk=50, execute=25, dim=512, heads=8, encoder_layers=4, decoder_layers=6, sample_steps=16, trials=10
    ),
    optim=Optim(lr=1e-4, beta1=0.95, weight_decay=1e-6, warmup_steps=1000, ema=0.9999, ema_power=0.75),
    loop=Loop(
        batch_size=256,
        steps=1_000_000,
        precision="bf16",
        log_every=100,
        eval_every=10_000,
        eval_batch=64,
        save_every=10_000,
    ),
)
