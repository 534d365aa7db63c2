"""Small recipes of every task, with every data source that it has and every way of loading it."""

import json
from dataclasses import replace

import numpy as np
import torch
from PIL import Image
from policy_toy import ENERGY
from policy_toy import RECIPE as REACH
from training_toy import TOY

from captioned_files import depth as depth_map
from captioned_files import picture, shard, words
from detection_toy import toy_recipe
from stringpe import recipes, scenes
from stringpe.data import omni3d
from stringpe.data.stream import BUFFER
from stringpe.recipes.overrides import override
from stringpe.recipes.schema import Data, Loss, Model, Text
from stringpe.robots.data.writer import Writer

SMALL = Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope")
TEXT = Text(dim=16, layers=1, heads=2, width=16, vocab=300, context=16)
LOOP = replace(TOY.loop, batch_size=4, steps=0, epochs=1, eval_batch=4, eval_every=0)
OPTIM = replace(TOY.optim, ema=0.5)  # ema_power is only read with an average
BASE = replace(TOY, model=SMALL, optim=OPTIM, loop=LOOP)


def classified(folder):
    samples = {f"{i}": {"png": picture(10 * i), "cls": str(i % 2).encode()} for i in range(4)}
    shard(folder / "a.tar", samples)
    for kind in ("0", "1"):
        (folder / "folder" / kind).mkdir(parents=True)
        for i in range(2):
            (folder / "folder" / kind / f"{i}.png").write_bytes(picture(90 * i))
    made = Data(image_size=16, num_classes=2, train_size=4, val_size=4)
    files = replace(made, source="shards", train=str(folder / "a.tar"), val=str(folder / "a.tar"))
    pictures = replace(made, source="folder", train=str(folder / "folder"), val=str(folder / "folder"))
    augment = replace(TOY.augment, randaugment=1, mixup=0.2, colour=0.1, flip=True, crop=0.5)
    small = replace(files, source="stream", val_size=0)
    for data in (made, files, pictures, small, replace(small, train_size=BUFFER + 1)):
        for in_memory in (True, False) if data.source in ("shards", "folder") else (True,):
            yield replace(BASE, augment=augment, data=replace(data, in_memory=in_memory))


def rendered(folder, task, **groups):
    data = Data(source="scenes", image_size=16, train_size=4, val_size=4, cache=str(folder / "frames"))
    return replace(BASE, task=task, data=data, **groups)


def paired(folder):
    loss = Loss(kind="siglip")
    yield rendered(folder, "retrieval", text=TEXT, loss=loss, model=replace(SMALL, depth="lift"))
    samples = {f"{i}": {"png": picture(9 * i), "json": words(f"a {i}"), "depth.png": depth_map()} for i in range(4)}
    path = str(shard(folder / "pairs.tar", samples))
    model = replace(SMALL, depth="lift")
    data = Data(source="shards", image_size=16, train=path, val=path, train_size=4, val_size=4)
    yield (asked := replace(BASE, task="retrieval", text=TEXT, loss=loss, model=model, data=data))
    yield replace(asked, data=replace(data, in_memory=False))
    folder = folder / "pairs"
    folder.mkdir()
    for name, files in samples.items():
        for kind, content in files.items():
            (folder / f"{name}.{kind}").write_bytes(content)
    yield (files := replace(asked, data=replace(data, source="folder", train=str(folder), val=str(folder))))
    yield replace(files, data=replace(files.data, in_memory=False))
    from stringpe.models.tokenizer import Tokenizer

    Tokenizer.train(["a 1"], vocab=300).save(folder / "tokenizer.json")
    text = replace(TEXT, tokenizer=str(folder / "tokenizer.json"))
    stream = replace(asked, data=replace(data, source="stream"))
    yield stream
    yield replace(stream, text=text, data=replace(stream.data, train_size=BUFFER + 1))


def boxed(folder):
    yield rendered(folder, "detection2d", text=TEXT)
    asked = toy_recipe(folder)
    asked = replace(asked, optim=OPTIM, loop=LOOP, data=replace(asked.data, train_size=4, val_size=4))
    for in_memory in (True, False):
        yield replace(asked, data=replace(asked.data, in_memory=in_memory))


def boxed3d(folder):
    model = replace(SMALL, depth="lift")
    asked = rendered(folder, "detection3d", text=TEXT, model=model)
    yield asked
    yield replace(asked, data=replace(asked.data, source="one_object"))
    pictures = []
    (folder / "images").mkdir()
    frames = scenes.render(scenes.sample(5, range(4)), (16, 16))
    for i in range(4):
        pixels = (frames.rgb[i] * 255).to(torch.uint8).permute(1, 2, 0).contiguous().numpy()
        Image.fromarray(pixels).save(folder / f"images/{i}.png")
        Image.fromarray((frames.depth[i] * 1000).to(torch.uint16).numpy()).save(folder / f"images/{i}.depth.png")
        some = (frames.pixels[i] > 2).nonzero()[:2, 0]
        labels, boxes, camera = frames.kind[i][some], frames.box3d[i][some].double(), frames.intrinsics[i].double()
        pictures.append(omni3d.Picture(i, f"{i}.png", 16, 16, camera, boxes, labels, torch.zeros(len(some)).bool()))
    content = omni3d.dataset(pictures, scenes.kinds(), range(len(scenes.kinds())))
    (folder / "images.json").write_text(json.dumps(content))
    where, boxes = str(folder / "images"), str(folder / "images.json")
    yield replace(asked, data=Data("omni3d", where, where, image_size=16, train_boxes=boxes, val_boxes=boxes))


def demonstrated(folder):
    from stand_in import demonstration  # needs gymnasium, which no other family does

    with Writer(folder / "reach", fps=10) as writer:
        for seed in range(4):
            writer.add(demonstration(seed, depth=True), task="reach", seed=seed)
    data = replace(REACH.data, train=str(folder / "reach"), cache=str(folder / "packs"), val_size=4)
    loop = replace(LOOP, batch_size=32)
    asked = replace(REACH, data=data, loop=loop)
    yield asked
    yield replace(asked, data=replace(data, val=str(folder / "reach")))
    yield override(asked, ENERGY)


def related(folder):
    small = ["data.train_size=8", "data.val_size=4", "loop.steps=2", "loop.batch_size=4", "loop.seeds=2"]
    yield recipes.load("relations", small)


def named(folder):
    asked = rendered(folder, "objects", model=replace(SMALL, encoding="absolute"))
    yield asked  # its run is the first, run0
    frozen = replace(SMALL, encoding="rope_mixed", depth="lift", start=str(folder / "run0"), freeze="backbone")
    yield replace(asked, model=frozen)


def shaped(folder):
    dice = np.random.default_rng(0)
    parts = {f"{split}_points": dice.normal(size=(4, 9, 3)) for split in ("train", "test")}
    np.savez(folder / "clouds.npz", **parts, train_label=[0, 1, 0, 1], test_label=[0, 1, 0, 1])
    own = [f"data.train={folder / 'clouds.npz'}", f"data.cache={folder}", "data.groups=3", "data.group_size=2"]
    small = ["loop.epochs=1", "loop.batch_size=4", "loop.compile=false", "loop.precision=no", "model.layers=1"]
    yield override(recipes.load("modelnet10", [*own, *small]), ["optim.ema=0.5"])


FAMILIES = {
    "classification": classified,
    "objects": named,
    "retrieval": paired,
    "detection2d": boxed,
    "detection3d": boxed3d,
    "policy": demonstrated,
    "relations": related,
    "shapes": shaped,
}
"""By task, a function that writes files into a folder and yields recipes."""
