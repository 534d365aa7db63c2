"""Images on their way to the device, and those that do not arrive."""

import random

import pytest
import torch
from PIL import Image

from stringpe.data.images import central, inception_crop, to_tensor, training_picture
from stringpe.data.labelled import CorruptImage, FolderSet, ShardSet, expand, image_set
from stringpe.data.loader import Memory, decode_all, feed, loaded, shares
from stringpe.data.place import Place
from stringpe.data.randaugment import OPERATIONS, randaugment
from stringpe.data.transforms import augment, to_unit, uniforms
from stringpe.data.workers import Workers
from stringpe.recipes.schema import Augment, Data, Loop, Model, Recipe
from stringpe.training import train


def recipe(train_path, val_path, **changes):
    data = {"source": "shards", "train": str(train_path), "val": str(val_path), "image_size": 16, "num_classes": 3}
    loop = Loop(batch_size=4, steps=3, log_every=1, tensorboard=False)
    augment = changes.pop("augment", Augment())
    model = Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope")
    return Recipe(model=model, data=Data(**data | changes), loop=loop, augment=augment)


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("labels", ["cls", "json"])
def test_shards_are_read_at_random(shard, name, labels):
    found = ShardSet(str(shard(name, labels=labels)))
    assert len(found) == 12
    assert [found.label(i) for i in (0, 4, 11)] == [0, 1, 2]
    assert found.decode(7).getpixel((3, 3)) == (70, 185, 7)
    assert found.name(7) == f"{name}/000007"


def test_patterns_name_shards(shard, tmp_path):
    for i in range(3):
        shard(f"s-{i:03d}.tar", count=4, first=4 * i)
    assert len(ShardSet(str(tmp_path / "s-{000..002}.tar"))) == 12
    assert len(ShardSet(str(tmp_path / "s-*.tar"))) == 12
    assert len(expand(f"{tmp_path}/s-000.tar,{tmp_path}/s-002.tar")) == 2
    with pytest.raises(ValueError, match=r"no such shards: .*s-003\.tar"):
        expand(str(tmp_path / "s-{000..003}.tar"))


def test_a_sample_without_a_label_is_refused(shard):
    with pytest.raises(ValueError, match=r"sample 000000 has neither a \.cls nor a \.json"):
        ShardSet(str(shard(labels="txt")))


def test_folders_number_classes_by_name(tmp_path):
    for name in ("cat", "ant"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / name / "x.png")
    found = FolderSet(str(tmp_path))
    assert [(found.label(i), found.name(i).split("/")[-2]) for i in range(2)] == [(0, "ant"), (1, "cat")]
    with pytest.raises(ValueError, match="has no images"):
        FolderSet(str(tmp_path / "cat"))


def test_missing_paths_and_packages_are_named(monkeypatch):
    with pytest.raises(ValueError, match=r"data.source=shards needs data.train"):
        image_set("shards", "")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        image_set("huggingface", "x:train")
    with pytest.raises(ValueError, match="synthetic, shards, folder, huggingface or stream, got 'web'"):
        feed(recipe("a", "b", source="web"))


def test_hugging_face_columns_are_read(monkeypatch):
    import types

    rows = [{"image": Image.new("L", (4, 4), 9), "label": 2}]

    class Table(list):
        def __getitem__(self, key):
            return [r[key] for r in self] if isinstance(key, str) else super().__getitem__(key)

    asked = []
    fake = types.SimpleNamespace(load_dataset=lambda name, split: asked.append((name, split)) or Table(rows))
    monkeypatch.setitem(__import__("sys").modules, "datasets", fake)
    found = image_set("huggingface", "org/set:validation")
    assert asked == [("org/set", "validation")]
    assert (len(found), found.label(0), found.decode(0).getpixel((0, 0))) == (1, 2, (9, 9, 9))


def test_a_corrupt_image_is_counted_and_left_out_of_memory(shard):
    found = ShardSet(str(shard(corrupt=(2, 5))))
    with pytest.raises(CorruptImage, match="000002"):
        found.decode(2)
    with pytest.warns(RuntimeWarning, match=r"2 of 12 images cannot be decoded and are left out: train.tar/000002"):
        images, labels, bad = decode_all(found, 16)
    assert (len(images), bad) == (10, 2)
    assert labels.tolist() == [i % 3 for i in range(12) if i not in (2, 5)]
    assert images[3, :, 0, 0].tolist() == [40, 215, 7]


def test_a_shard_of_nothing_but_corrupt_images_is_refused(shard):
    found = ShardSet(str(shard(count=2, corrupt=(0, 1))))
    with pytest.warns(RuntimeWarning), pytest.raises(ValueError, match="none of the images can be decoded"):
        decode_all(found, 16)


@pytest.mark.parametrize("in_memory", [True, False])
def test_training_goes_on_past_a_corrupt_image(shard, tmp_path, in_memory):
    loaded.cache_clear()
    asked = recipe(shard("t.tar", corrupt=(1, 2, 7)), shard("v.tar", count=5, corrupt=(3,)), in_memory=in_memory)
    with pytest.warns(RuntimeWarning, match="cannot be decoded"):
        outcome = train(asked, tmp_path / "run", quiet=True)
    assert outcome["metrics"]["count"] == 4  # the corrupt validation image counts neither once nor twice
    assert outcome["counters"]["corrupt"] == 4  # three steps of four are one epoch


def test_workers_give_the_same_batches_from_any_step_and_for_any_share(shard):
    asked = recipe(
        shard("t.tar"), shard("v.tar"), in_memory=False, workers=1,
        augment=Augment(crop=0.3, flip=True, randaugment=2),
    )  # fmt: skip
    whole = Workers(asked).train(0, Place())
    steps = [next(whole) for _ in range(4)]
    later = next(Workers(asked).train(3, Place()))
    assert torch.equal(later["image"], steps[3]["image"])
    halves = [next(Workers(asked).train(3, Place(r, 2))) for r in range(2)]
    assert torch.equal(torch.cat([h["image"] for h in halves]), steps[3]["image"])
    assert steps[0]["image"].shape == (4, 3, 16, 16)
    assert -1 <= steps[0]["image"].min() < steps[0]["image"].max() <= 1


def test_memory_gives_the_same_batches_from_any_step_and_for_any_share(shard):
    asked = recipe(shard("t.tar"), shard("v.tar"), augment=Augment(crop=0.3, flip=True, colour=0.3))
    whole = Memory(asked).train(0, Place())
    steps = [next(whole) for _ in range(4)]
    halves = [next(Memory(asked).train(3, Place(r, 2))) for r in range(2)]
    assert torch.equal(torch.cat([h["image"] for h in halves]), steps[3]["image"])
    assert torch.equal(torch.cat([h["label"] for h in halves]), steps[3]["label"])


def test_validation_shares_cover_everything_once_and_equally_often():
    for size, batch, world in [(10, 4, 1), (10, 4, 3), (3, 8, 2), (12, 3, 2)]:
        parts = [list(shares(size, batch, Place(r, world))) for r in range(world)]
        assert len({len(p) for p in parts}) == 1
        kept = [i for p in parts for index, weight in p for i in index[weight > 0].tolist()]
        assert sorted(kept) == list(range(size))


# webdataset leaves closing its files to the garbage collector
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_streams_take_every_image_once_and_skip_corrupt_ones(shard, tmp_path):
    pytest.importorskip("webdataset")
    from stringpe.data.stream import Stream

    shard("s-0.tar", count=8, corrupt=(2,))
    shard("s-1.tar", count=8, first=8)
    asked = recipe(tmp_path / "s-{0..1}.tar", shard("v.tar"), source="stream", train_size=16)
    stream = Stream(asked)
    batches = stream.train(0, Place())
    with pytest.warns(RuntimeWarning, match="1 images in the stream cannot be decoded"):
        steps = [next(batches) for _ in range(4)]
    assert stream.corrupt == 1
    assert len(torch.cat([s["image"][:, 0, 0, 0] for s in steps])[:15].unique()) == 15
    assert next(stream.val(Place(), 4))["weight"].tolist() == [1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_streams_resume_at_any_step(shard, tmp_path, workers):
    pytest.importorskip("webdataset")
    from stringpe.data.stream import Stream

    for i in range(4):
        shard(f"s-{i}.tar", count=6, first=6 * i)
    augment = Augment(crop=0.5, flip=True)
    options = {"source": "stream", "train_size": 24, "workers": workers, "augment": augment}
    asked = recipe(tmp_path / "s-{0..3}.tar", shard("v.tar"), **options)
    batches = Stream(asked).train(0, Place())
    steps = [next(batches) for _ in range(8)]  # beyond the first epoch
    for start in (3, 7):
        again = next(Stream(asked).train(start, Place()))
        assert torch.equal(again["image"], steps[start]["image"])
        assert torch.equal(again["label"], steps[start]["label"])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_streams_that_cannot_work_are_refused(shard, tmp_path):
    pytest.importorskip("webdataset")
    from stringpe.data.stream import Stream

    asked = recipe(shard("s-0.tar"), shard("v.tar"), source="stream", train_size=12)
    with pytest.raises(ValueError, match=r"1 shards do not go round 2 workers"):
        next(Stream(asked).train(0, Place(0, 2)))
    with pytest.raises(ValueError, match=r"say how many with data.train_size"):
        Stream(recipe("x", "y", source="stream"))


def test_central_crops_keep_the_aspect():
    image = Image.new("RGB", (40, 20), (0, 0, 0))
    image.paste((255, 255, 255), (10, 0, 30, 20))
    square = to_tensor(central(image, 10))
    assert square.shape == (3, 10, 10)
    assert square[:, 1:-1, 1:-1].min() > 200  # the white middle, not squeezed
    assert central(image, 10, margin=1.5).size == (10, 10)


def test_inception_crops_stay_inside_and_are_as_large_as_asked():
    image = Image.effect_noise((60, 40), 50).convert("RGB")
    dice = random.Random(0)
    assert {inception_crop(image, 16, 0.05, dice).size for _ in range(20)} == {(16, 16)}
    assert inception_crop(image, 16, 1.0, dice).size == (16, 16)
    first = training_picture(image, 16, Augment(crop=0.1, flip=True, randaugment=2), random.Random(5))
    again = training_picture(image, 16, Augment(crop=0.1, flip=True, randaugment=2), random.Random(5))
    assert torch.equal(first, again)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_the_size_and_changes_something(name):
    image = Image.effect_noise((24, 24), 20).convert("RGB")
    image.paste((200, 40, 40), (4, 4, 12, 20))
    changed = OPERATIONS[name](image, 0.5, 1.0)
    assert (changed.size, changed.mode) == (image.size, "RGB")
    assert changed.tobytes() != image.tobytes()


def test_randaugment_refuses_a_magnitude_out_of_range():
    with pytest.raises(ValueError, match="from 0 to 30, got 31"):
        randaugment(Image.new("RGB", (4, 4)), 2, 31, random.Random(0))


def test_augmentation_does_nothing_where_it_is_told_nothing():
    image = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    u = uniforms(0, 0, 2, Place())
    assert torch.equal(augment(image, u, Augment()), to_unit(image))


def test_flips_mirror_half_of_the_images():
    image = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8)
    out = augment(image, uniforms(0, 0, 64, Place()), Augment(flip=True))
    same = (out - to_unit(image)).abs().amax((1, 2, 3)) < 1e-4
    mirrored = (out - to_unit(image).flip(-1)).abs().amax((1, 2, 3)) < 1e-4
    assert (same | mirrored).all()
    assert 16 < same.sum() < 48


def test_crops_show_parts_of_the_image():
    ramp = torch.arange(32).float().mul(8).to(torch.uint8).expand(50, 3, 32, 32)
    out = augment(ramp, uniforms(0, 1, 50, Place()), Augment(crop=0.25))
    width = (out.amax((1, 2, 3)) - out.amin((1, 2, 3))) / (to_unit(ramp).max() - to_unit(ramp).min())
    assert width.min() > 0.4
    assert width.max() <= 1.001
    assert width.std() > 0.05
    coloured = augment(ramp, uniforms(0, 1, 50, Place()), Augment(colour=0.5))
    assert coloured.mean((1, 2, 3)).std() > 0.05


def test_decoded_shards_are_kept_until_they_change(shard, tmp_path, monkeypatch):
    data = recipe(shard(corrupt=(3,)), shard("val.tar"), cache=str(tmp_path / "cache")).data
    with pytest.warns(RuntimeWarning, match="1 of 12 images cannot be decoded"):
        images, labels, corrupt = loaded(data, "train")
    loaded.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr("stringpe.data.loader.decode_all", None)  # whatever is read now comes from the file
        again = loaded(data, "train")
    assert torch.equal(again[0], images)
    assert torch.equal(again[1], labels)
    assert (again[2], corrupt) == (1, 1)
    loaded.cache_clear()
    shard(count=6)  # written anew
    assert len(loaded(data, "train")[0]) == 6
    assert len(list((tmp_path / "cache").iterdir())) == 2
