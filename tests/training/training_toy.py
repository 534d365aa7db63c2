"""The small recipe that the training tests share."""

from stringpe.recipes.schema import Data, Loop, Model, Optim, Recipe

TOY = Recipe(
    name="toy",
    model=Model(dim=16, layers=2, heads=2, patch_size=4, encoding="rope_mixed", dropout=0.1, drop_path=0.1),
    data=Data(image_size=16, num_classes=4, train_size=96, val_size=50),
    optim=Optim(lr=3e-3, warmup_steps=3, weight_decay=0.1),
    loop=Loop(batch_size=16, steps=12, log_every=4, eval_every=6, save_every=5),
)
