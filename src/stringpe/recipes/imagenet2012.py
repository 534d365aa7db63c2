"""ImageNet2012 as in the paper: ViT-B/16 at 224 px, batch 4096, 300 epochs, cosine, lr 1e-3, 10,000 warm-up steps.

    accelerate launch --num_processes 8 -m stringpe train imagenet2012 data.train=/data/imagenet/train \\
        data.val=/data/imagenet/val model.encoding=cayley --out runs/imagenet-cayley

Data: one folder per class; or shards (data.source=shards 'data.train=/data/train-{0000..1023}.tar'); or shards read as
a stream (data.source=stream data.train_size=1281167; docs/scale.md); or Hugging Face (data.source=huggingface
data.train=ILSVRC/imagenet-1k:train data.val=ILSVRC/imagenet-1k:validation).
What the paper does not state follows scenic's public ViT recipe: weight decay 0.1, clip 1.0, dropout 0.1, stochastic
depth 0.1, RandAugment(2, 15), mixup 0.5, inception crop, values in [−1, 1], sigmoid loss with head bias −6.9.
Expected, from the paper: ViT 80.04, RoPE 80.18, RoPE-Mixed 80.86, Circulant 81.22, Cayley 81.09 % top-1.
Time and number of this recipe: not known, because it has not been run in full.
"""

from .schema import Augment, Data, Loop, Loss, Model, Optim, Recipe

RECIPE = Recipe(
    name="imagenet2012",
    task="classification",
    model=Model(dim=768, layers=12, heads=12, patch_size=16, dropout=0.1, drop_path=0.1),
    data=Data(source="folder", image_size=224, num_classes=1000, in_memory=False, workers=16),
    augment=Augment(crop=0.05, flip=True, randaugment=2, magnitude=15.0, mixup=0.5),
    loss=Loss(kind="sigmoid", head_bias=-6.9),
    optim=Optim(lr=1e-3, beta1=0.9, beta2=0.999, weight_decay=0.1, clip=1.0, warmup_steps=10_000),
    loop=Loop(
        batch_size=4096,
        epochs=300,
        precision="bf16",
        compile=True,
        log_every=50,
        eval_every=3128,
        eval_batch=512,
        save_every=1564,
    ),
)
