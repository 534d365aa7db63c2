"""Retrieval on WebLI-3D as in the paper: ViT-B/16 at 256 px, SigLIP, batch 8192, 20 epochs, lr 1e-3, 5 % warm-up.

    stringpe data depth images/ webli3d/ --model depth-anything-v2-metric-indoor-small
    accelerate launch --num_processes 64 -m stringpe train webli3d 'data.train=webli3d/{000000..059999}.tar' \\
        data.val=webli3d-val/000000.tar text.tokenizer=tokenizer.json model.encoding=cayley --out runs/webli3d-cayley
    python -m stringpe compare webli3d …                # the paper's rows, which are this recipe's
    python -m stringpe compare webli3d … --encodings 'circulant:block_size={4,8,16,32,64}'            # its sweep

The baseline (absolute, model.depth=none) sees RGB, the others RGB-D with depth as third coordinate. Blocks of
Circulant-STRING have 32 channels, as the paper found best for retrieval. WebLI is not public; any captioned images can
replace it. Data: a stream of shards (data.source=shards reads a set that fits in memory); data.train_size is what the
paper's 155k steps take. The text tower is SigLIP's B: 12 layers, 768 wide, 64 tokens, 32,000 words; weight decay is
SigLIP's 1e-4.
Expected, from the paper, mean recall: ViT 68.77, RoPE 69.86, RoPE-Mixed 69.85, Circulant 70.21, Cayley 70.48 %.
Time and number of this recipe: not known, because it has not been run in full.
"""

from .design import ROTARY, STRING, Contrast, Design
from .schema import Data, Loop, Loss, Model, Optim, Recipe, Text

BLOCKS = {"circulant.block_size": 32}

RECIPE = Recipe(
    name="webli3d",
    task="retrieval",
    model=Model(dim=768, layers=12, heads=12, patch_size=16, depth="lift", pool="map", encoding_options=BLOCKS),
    text=Text(dim=768, layers=12, heads=12, width=768, vocab=32_000, context=64),
    data=Data(source="stream", image_size=256, train_size=63_500_000, workers=16),
    loss=Loss(kind="siglip", pair_bias="-10", chunk=1024),
    optim=Optim(lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=1e-4, clip=1.0, warmup_steps=7_750),
    loop=Loop(
        batch_size=8192,
        epochs=20,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=5_000,
        eval_batch=512,
        save_every=1_000,
    ),
)

BASELINE = "absolute:model.depth=none"

DESIGN = Design(
    rows=(BASELINE, "rope", "rope_mixed", "circulant", "cayley"),
    contrasts=(Contrast("rotary with depth − absolute without", ROTARY.plus, (BASELINE,)), STRING),
)
