"""The towers of the paper's OWL-ViT in 2D: ViT-B/32 and a text tower, trained on captions with CLIP's loss.

    accelerate launch --num_processes 64 -m stringpe train owlvit_towers 'data.train=pairs/{000000..059999}.tar' \\
        data.val=pairs-val.tar text.tokenizer=tokenizer.json model.encoding=cayley --out runs/towers/cayley
    … loss.kind=siglip                                      # with the other loss

Data: a stream of captioned images (docs/howto/streams.md). RGB at 224 px, a class token, text of 12 layers × 512. The
paper says only that it followed OWL-ViT's pipeline for B/32 with the CLIP loss, in which the towers are CLIP's: these
are CLIP's published settings (batch 32,768, 32 epochs of 400 million pairs, Adam 0.9, 0.98, lr 5e-4, 2,000 warm-up
steps, decay 0.2). An encoding other than CLIP's learned table needs towers that were trained with it, so every row of a
comparison has its own. Different from CLIP: texts of 64 tokens that attend in both directions, GELU and not its
approximation, a scale that starts at 10.
Time and expected number: not known, because the recipe has not been run in full.
"""

from .design import Design
from .schema import Data, Loop, Loss, Model, Optim, Recipe, Text

RECIPE = Recipe(
    name="owlvit_towers",
    task="retrieval",
    model=Model(dim=768, layers=12, heads=12, patch_size=32, pool="cls"),
    text=Text(dim=512, layers=12, heads=8, pool="last", width=512, vocab=49_408, context=64),
    data=Data(source="stream", image_size=224, train_size=400_000_000, workers=16),
    loss=Loss(kind="clip", chunk=1024),
    optim=Optim(lr=5e-4, beta1=0.9, beta2=0.98, eps=1e-6, weight_decay=0.2, clip=1.0, warmup_steps=2_000),
    loop=Loop(
        batch_size=32_768,
        epochs=32,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=5_000,
        eval_batch=512,
        save_every=1_000,
    ),
)

DESIGN = Design(rows=("absolute", "rope", "rope_mixed", "circulant", "cayley"))
