"""A recipe's keys: what a task declares to read is what a run reads, and everything else is refused."""

import dataclasses
import json
import sys
from contextlib import contextmanager
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from PIL import Image
from policy_toy import ENERGY
from policy_toy import RECIPE as REACH
from stand_in import demonstration
from training_toy import TOY

from captioned_files import depth as depth_map
from captioned_files import picture, shard, words
from detection_toy import toy_recipe
from stringpe import recipes, scenes, tasks
from stringpe.data import omni3d, sources
from stringpe.data.stream import BUFFER
from stringpe.recipes.overrides import keys, override
from stringpe.recipes.schema import Data, Loss, Model, Recipe, Text, is_read
from stringpe.robots.data.writer import Writer
from stringpe.training import run_result, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*image encoder starts at random",
        "ignore::ResourceWarning",  # a stream that is left leaves its file open
        "ignore::pytest.PytestUnraisableExceptionWarning",
    ),
]

GROUPS = {f.name: type(getattr(Recipe(), f.name)) for f in fields(Recipe) if dataclasses.is_dataclass(f.default)}
_NOT_READERS = (dataclasses.__file__, run_result.__file__, sources.__file__, "<string>")
_CHECKS = ("check_model", "check_named_options", "_leaves")
"""Copies, comparisons, digests and checks look at everything."""
_SEEDS = "loop.seeds"  # looked at by the loop of every task, and refused where it is not 1 and not declared


@contextmanager
def recorded():
    """The keys of every recipe that are read inside."""
    found = set()

    def patch(owner, prefix):
        names = {f.name for f in fields(owner)} - set(GROUPS)

        def read(self, name):
            caller = sys._getframe(1).f_code
            if name in names and caller.co_filename not in _NOT_READERS and caller.co_name not in _CHECKS:
                found.add(prefix + name)
            return object.__getattribute__(self, name)

        owner.__getattribute__ = read

    for name, owner in GROUPS.items():
        patch(owner, f"{name}.")
    patch(Recipe, "")
    try:
        yield found
    finally:
        for owner in (*GROUPS.values(), Recipe):
            del owner.__getattribute__


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
    path = str(shard(folder / "more.tar", samples))
    stream = replace(asked, data=replace(data, source="stream", train=path, val=path))
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
SOURCES = {
    "classification": {"synthetic", "shards", "folder", "stream"},  # huggingface reads what folder does
    "objects": {"scenes"},
    "retrieval": {"scenes", "shards", "folder", "stream"},
    "detection2d": {"coco", "scenes"},
    "detection3d": {"scenes", "one_object", "omni3d"},
    "policy": {"demos"},
    "relations": {"points"},
    "shapes": {"clouds"},
}


LOOKED_AT = {
    # Looked at in code that several sources share, without any effect for this one.
    ("classification", "synthetic"): {"data.in_memory", "data.train", "data.val"},
    ("classification", "folder"): {"data.cache"},
    ("retrieval", "scenes"): {"data.in_memory", "data.train"},
    ("retrieval", "shards"): {"data.in_memory"},
    ("retrieval", "folder"): {"data.in_memory"},
    ("detection2d", "scenes"): {"data.workers"},
    ("detection3d", "scenes"): {"augment.crop"},
    ("detection3d", "one_object"): {"augment.crop"},
    ("detection3d", "omni3d"): {"augment.crop"},
}
UNREAD = {
    # Augmentations of classification that one way of loading has and another has not.
    ("classification", "synthetic"): {"augment.randaugment", "augment.magnitude"},
    ("classification", "stream"): {"augment.colour"},
    ("policy", "diffusion"): {"policy.trials"},  # needs policy.simulate
    ("policy", "energy"): {"policy.trials"},
    ("relations", "points"): {"loop.epochs", "optim.ema_power"},  # of runs without loop.steps, and with optim.ema
}


@pytest.mark.parametrize("task", tasks.names())
def test_what_is_declared_is_what_is_read(task, tmp_path):
    declared, read = {}, {}
    for number, recipe in enumerate(FAMILIES[task](tmp_path)):
        kind = recipe.policy.kind if task == "policy" else recipe.data.source
        with recorded() as found:
            train(recipe, tmp_path / f"run{number}", quiet=True)
        patterns = tasks.task_class(task).keys(recipe)
        declared[kind] = {key for key in keys() if is_read(key, patterns)}
        read[kind] = read.get(kind, set()) | found
    assert set(read) == SOURCES[task] or task == "policy"
    clean = {kind: set() for kind in read}
    more = {kind: read[kind] - declared[kind] - LOOKED_AT.get((task, kind), set()) - {_SEEDS} for kind in read}
    assert more == clean, "read, not declared"
    fewer = {kind: declared[kind] - read[kind] - UNREAD.get((task, kind), set()) for kind in read}
    assert fewer == clean, "declared, not read"


def test_every_task_is_tested():
    assert set(FAMILIES) == set(tasks.names())
    for task in tasks.names():
        assert set(sources.SERVES[task]) - {"huggingface"} == SOURCES[task]


@pytest.mark.parametrize("name", recipes.names())
def test_shipped_recipes_hold_nothing_that_is_not_read(name):
    tasks.check(recipes.load(name))
