"""The ALOHA policy of section 4.3: a diffusion transformer over four cameras, each seen by SigLIP B/16 at 256 px.

    stringpe data demos MugOnPlate --episodes 500 --size 256 256 --out data/mug            # likewise for other tasks
    stringpe train aloha data.train=data/mug,data/pen policy.encoder=siglip:siglip-base-patch16-256 --out runs/aloha
    stringpe eval runs/aloha --env MugOnPlate --trials 50

As the paper and ALOHA Unleashed state it: chunks of 50 absolute joint targets, noise prediction, an encoder-decoder
transformer; rows are model.encoding=absolute (SigLIP as it is), rope and cayley, attached so that they start as the
same function. The paper learns all frequencies. Here cayley does; plain rope keeps its frequencies fixed at base 10,000
and learns only the gate with which it is attached, so the paper's row needs options, after a colon in --encodings:

    stringpe compare aloha data.train=data/mug policy.encoder=siglip:siglip-base-patch16-256 --out runs/aloha \\
        --encodings absolute "rope:learnable=true,base=100" cayley

Not stated there and set here: T = 100 with a squared-cosine schedule and 16 DDIM steps, AdamW 1e-4 (0.95, 0.999) with
decay 1e-6, EMA power 0.75, 200,000 steps of 256. Unlike there, demonstrations come from scripted experts at 10 actions
per second, so a chunk is 5 s and not 1 s long.
Time and expected number: no full run has been made; what it gives belongs in results/.
"""

from .schema import Augment, Data, Loop, Model, Optim, Policy, Recipe

RECIPE = Recipe(
    name="aloha",
    task="policy",
    model=Model(dim=768, layers=12, heads=12, patch_size=16, encoding="cayley"),
    data=Data(source="demos", image_size=256),
    augment=Augment(shift=8, colour=0.2),
    policy=Policy(chunk=50, execute=25, dim=512, heads=8, encoder_layers=4, decoder_layers=6, sample_steps=16),
    optim=Optim(lr=1e-4, beta1=0.95, weight_decay=1e-6, warmup_steps=1000, ema=0.9999, ema_power=0.75),
    loop=Loop(
        batch_size=256, steps=200_000, precision="bf16", log_every=100, eval_every=5000, eval_batch=64, save_every=5000
    ),
)
