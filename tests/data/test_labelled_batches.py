"""Batches for classification: the same from memory, workers and small streams; images that cannot be read."""

import itertools
import json
import tarfile
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from captioned_files import shard as write_shard
from data_fixtures import noise, train_in_order
from stringpe.data.addresses import PIPES
from stringpe.data.cache import forget_all
from stringpe.data.images import to_tensor
from stringpe.data.labelled_batches import LabelledBatches, load_labelled
from stringpe.data.order import Place
from stringpe.data.stream import BUFFER
from stringpe.data.transforms import to_unit
from stringpe.io.pictures import decode_picture
from stringpe.recipes.schema import Augment, Data, Loop, Model, Recipe
from stringpe.training import train

STRONG = Augment(crop=0.2, flip=True, colour=0.4, randaugment=2, shift=3)


def recipe(train_path, val_path, **changes):
    data = {"source": "shards", "train": str(train_path), "val": str(val_path), "image_size": 16, "num_classes": 3}
    loop = Loop(batch_size=4, steps=3, log_every=1)
    augment = changes.pop("augment", Augment())
    model = Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope")
    return Recipe(model=model, data=Data(**data | changes), loop=loop, augment=augment)


def with_data(asked, **changes):
    return replace(asked, data=replace(asked.data, **changes))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Two tars of noise in sizes of all kinds: large, small, wide and tall."""
    folder = tmp_path_factory.mktemp("noise")
    sizes = [(16, 16), (17, 18), (40, 20), (20, 60), (9, 12), (64, 64), (16, 21), (90, 16)]
    for name, first, count in (("t-0.tar", 0, 12), ("t-1.tar", 12, 12), ("v.tar", 50, 7)):
        samples = {
            f"{i:03d}": {"png": noise(i, sizes[i % len(sizes)]), "cls": str(i % 3).encode()}
            for i in range(first, first + count)
        }
        write_shard(folder / name, samples)
    return folder


LARGE = BUFFER + 1  # as data.train_size: a stream that is not kept
HOW = [Augment(), Augment(shift=4), Augment(crop=0.3, flip=True), Augment(flip=True, colour=0.3, shift=2), STRONG]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_workers_give_equal_batches(shards, how, workers):
    asked = recipe(shards / "t-{0..1}.tar", shards / "v.tar", augment=how)
    memory, other = LabelledBatches(asked), LabelledBatches(with_data(asked, in_memory=False, workers=workers))
    assert memory.examples == other.examples == 24
    for place in (Place(), Place(1, 2)):
        left, right = memory.train(2, place), other.train(2, place)
        for _ in range(6):  # into the second epoch
            a, b = next(left), next(right)
            assert torch.equal(a["label"], b["label"])
            assert torch.equal(a["image"], b["image"])
    for a, b in zip(memory.val(Place(), 3), other.val(Place(), 3), strict=True):
        assert all(torch.equal(a[name], b[name]) for name in ("image", "label", "weight"))


@pytest.mark.parametrize("how", [Augment(crop=0.3, flip=True), STRONG])
@pytest.mark.parametrize("shards_of", ["{}", "pipe:cat {}"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_small_stream_gives_the_batches_of_memory(shards, monkeypatch, how, shards_of, workers):
    monkeypatch.setenv(PIPES, "1")
    asked = recipe(shards / "t-{0..1}.tar", shards / "v.tar", augment=how)
    where = shards_of.format(asked.data.train)
    memory = LabelledBatches(asked)
    stream = LabelledBatches(with_data(asked, source="stream", train=where, train_size=24, workers=workers))
    assert stream.examples == 24
    for start, place in ((0, Place()), (5, Place()), (2, Place(1, 2))):
        for _, a, b in zip(range(8), memory.train(start, place), stream.train(start, place), strict=False):
            assert torch.equal(a["label"], b["label"])
            assert torch.equal(a["image"], b["image"])


def test_a_small_stream_takes_the_first_samples_as_other_sources_do(shards):
    asked = recipe(shards / "t-{0..1}.tar", shards / "v.tar", train_size=10)
    memory, stream = LabelledBatches(asked), LabelledBatches(with_data(asked, source="stream"))
    assert memory.examples == stream.examples == 10
    for _, a, b in zip(range(6), memory.train(0, Place()), stream.train(0, Place()), strict=False):
        assert torch.equal(a["image"], b["image"])


@pytest.mark.parametrize("how", [Augment(crop=0.3, flip=True), STRONG])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_large_stream_makes_of_an_example_what_memory_makes_of_it_at_the_same_place(shards, how, workers):
    """The order of a large stream is its own: it is read off the stream and given to memory."""
    asked = recipe(shards / "t-{0..1}.tar", shards / "v.tar", augment=how)
    streamed = with_data(asked, source="stream", train_size=LARGE, workers=workers)
    plain = LabelledBatches(replace(streamed, augment=Augment()))
    memory = LabelledBatches(asked)
    whole = LabelledBatches(replace(asked, augment=Augment()))
    known = torch.cat([b["image"] for b in _first_epoch(whole)])
    numbers = torch.cat([b["number"] for b in _numbered(whole)])
    orders = []
    for step, batch in zip(range(8), plain.train(0, Place()), strict=False):
        same = (batch["image"][:, None] == known[None]).flatten(2).all(2)
        assert same.any(1).all(), step
        orders.append(numbers[same.float().argmax(1)])
    assert sorted(torch.cat(orders[:6]).tolist()) == list(range(24)) or workers == 2  # an epoch has every image once
    memory_batches = train_in_order(memory, orders, "stringpe.data.labelled_batches")
    for a, b in zip(memory_batches, LabelledBatches(streamed).train(0, Place()), strict=False):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["label"], b["label"])
    assert torch.equal(next(plain.val(Place(), 7))["image"], next(whole.val(Place(), 7))["image"])


def _first_epoch(batches):
    found = batches.train(0, Place())
    return [next(found) for _ in range(batches.examples // 4)]


def _numbered(batches):
    from stringpe.data.order import Order

    order = Order(batches.examples, 4, batches.recipe.seed)
    return [{"number": order(step)} for step in range(batches.examples // 4)]


@pytest.mark.parametrize("in_memory", [True, False])
def test_batches_are_a_function_of_seed_and_step_for_any_share(shards, in_memory):
    asked = recipe(shards / "t-0.tar", shards / "v.tar", augment=STRONG, in_memory=in_memory)
    whole = LabelledBatches(asked).train(0, Place())
    steps = [next(whole) for _ in range(4)]
    assert torch.equal(next(LabelledBatches(asked).train(3, Place()))["image"], steps[3]["image"])
    halves = [next(LabelledBatches(asked).train(3, Place(r, 2))) for r in range(2)]
    assert torch.equal(torch.cat([h["image"] for h in halves]), steps[3]["image"])
    assert torch.equal(torch.cat([h["label"] for h in halves]), steps[3]["label"])
    assert steps[0]["image"].shape == (4, 3, 16, 16)
    assert -1 <= steps[0]["image"].min() < steps[0]["image"].max() <= 1
    other = next(LabelledBatches(replace(asked, seed=1)).train(0, Place()))
    assert not torch.equal(other["image"], steps[0]["image"])


def test_validation_shows_the_middle_of_a_large_image_and_all_of_a_small_one(tmp_path):
    large = Image.new("RGB", (64, 32), (0, 0, 0))
    large.paste((255, 255, 255), (17, 1, 47, 31))
    large.save(tmp_path / "large.png")
    small = noise(3, (16, 16))
    samples = {"large": (tmp_path / "large.png").read_bytes(), "small": small}
    path = write_shard(tmp_path / "v.tar", {n: {"png": content, "cls": b"0"} for n, content in samples.items()})
    batch = next(LabelledBatches(recipe(path, path)).val(Place(), 2))
    assert batch["image"][0].min() > 0.8  # the white middle; the margin around it is cut off
    assert torch.equal(batch["image"][1], to_unit(to_tensor(decode_picture(small, "small"))))


@pytest.mark.parametrize("in_memory", [True, False])
def test_training_goes_on_past_a_corrupt_image(shard, tmp_path, in_memory):
    asked = recipe(shard("t.tar", corrupt=(1, 2, 7)), shard("v.tar", count=5, corrupt=(3,)), in_memory=in_memory)
    with pytest.warns(RuntimeWarning, match=r"images of .*\.tar cannot be used and are left out: .*0000"):
        outcome = train(asked, tmp_path / "run", quiet=True)
    assert outcome["metrics"]["count"] == 4  # the corrupt validation image counts neither once nor twice
    assert outcome["counters"]["corrupt"] == 4  # three steps of four are one epoch


def test_a_set_of_nothing_but_corrupt_images_is_refused(shard):
    path = shard("c.tar", count=2, corrupt=(0, 1))
    with pytest.raises(ValueError, match=r"nothing can be read \(2 of 2 images of .*c\.tar .*c\.tar/000000: .*\)"):
        LabelledBatches(recipe(path, path))
    lazy = LabelledBatches(recipe(path, path, in_memory=False))
    with pytest.raises(ValueError, match=r"100 examples in a row cannot be read, the last: c\.tar/00000"):
        next(lazy.train(0, Place()))


def test_streams_take_every_image_once_and_skip_corrupt_ones(shard, tmp_path):
    shard("s-0.tar", count=8, corrupt=(2,))
    shard("s-1.tar", count=8, first=8)
    asked = recipe(tmp_path / "s-{0..1}.tar", shard("v.tar"), source="stream", train_size=LARGE)
    stream = LabelledBatches(asked)
    batches = stream.train(0, Place())
    with pytest.warns(RuntimeWarning, match=r"1 images of .*s-.* cannot be used and are left out: 000002: "):
        steps = [next(batches) for _ in range(4)]
    assert stream.corrupt == 1
    assert len(torch.cat([s["image"][:, 0, 0, 0] for s in steps])[:15].unique()) == 15
    assert next(stream.val(Place(), 4))["weight"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_streams_resume_at_any_step(shard, tmp_path, workers):
    for i in range(4):
        shard(f"s-{i}.tar", count=6, first=6 * i)
    options = {"source": "stream", "train_size": LARGE, "workers": workers, "augment": Augment(crop=0.5, flip=True)}
    asked = recipe(tmp_path / "s-{0..3}.tar", shard("v.tar"), **options)
    batches = LabelledBatches(asked).train(0, Place())
    steps = [next(batches) for _ in range(8)]  # beyond the first epoch
    for start in (3, 7):
        again = next(LabelledBatches(asked).train(start, Place()))
        assert torch.equal(again["image"], steps[start]["image"])
        assert torch.equal(again["label"], steps[start]["label"])


@pytest.mark.parametrize("what", ["junk", "empty", "corrupt"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_without_a_usable_sample_ends_and_names_its_shards(shard, tmp_path, what, workers):
    path = tmp_path / "s-0.tar"
    if what == "junk":
        path.write_bytes(b"junk" * 999)
    elif what == "empty":
        tarfile.open(path, "w").close()
    else:
        shard("s-0.tar", count=3, corrupt=(0, 1, 2))
    stream = LabelledBatches(recipe(path, shard("v.tar"), source="stream", train_size=LARGE, workers=workers))
    with pytest.raises(ValueError, match=r"the stream has no usable sample in .*s-0\.tar.*: check data.train"):
        next(stream.train(0, Place()))


@pytest.mark.parametrize("cut", [12288, 12289, 12900])  # between two files, in a header, in a file
@pytest.mark.parametrize("size", [8, LARGE])
def test_of_a_stream_that_is_cut_off_the_samples_before_the_cut_are_used(shard, tmp_path, cut, size):
    content = shard("whole.tar", count=8).read_bytes()
    (tmp_path / "s.tar").write_bytes(content[:cut])
    asked = recipe(tmp_path / "s.tar", tmp_path / "whole.tar", source="stream", train_size=size)
    damaged = r"s\.tar is damaged \(.*\): only the (samples|\d+ files) before the damage are used"
    with pytest.warns(RuntimeWarning, match=damaged):
        steps = list(itertools.islice(LabelledBatches(asked).train(0, Place()), 3))
    seen = torch.cat([step["image"][:, 0, 0, 0] for step in steps]).unique()
    assert 3 <= len(seen) < 8


def test_streams_that_cannot_work_are_refused(shard, tmp_path):
    asked = recipe(shard("s-0.tar"), shard("v.tar"), source="stream", train_size=LARGE)
    with pytest.raises(ValueError, match=r"1 shards cannot be shared by 2 workers"):
        next(LabelledBatches(asked).train(0, Place(0, 2)))
    with pytest.raises(ValueError, match=r"set data.train_size"):
        LabelledBatches(with_data(asked, train_size=0))
    with pytest.raises(ValueError, match=r"the shard .*missing\.tar was not found"):
        LabelledBatches(with_data(asked, train=str(tmp_path / "missing.tar")))


def test_classes_that_do_not_fit_are_said_in_words(shard, tmp_path):
    path = shard("t.tar")
    with pytest.raises(
        ValueError, match=r"t\.tar/000002 is of class 2, but data.num_classes=2 .*: set data.num_classes"
    ):
        LabelledBatches(recipe(path, path, num_classes=2))
    stream = LabelledBatches(recipe(path, shard("v.tar", count=2), source="stream", train_size=LARGE, num_classes=2))
    with pytest.raises(ValueError, match=r"is of class 2, but data.num_classes=2: set data.num_classes"):
        next(stream.train(0, Place()))
    for split, names in (("train", ("ant", "bee", "cat")), ("val", ("ant", "cat"))):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / "x.png")
    folders = recipe(tmp_path / "train", tmp_path / "train", source="folder")
    assert LabelledBatches(folders).examples == 3
    with pytest.raises(ValueError, match=r"there are 3 class folders \(ant, bee, cat\), but data.num_classes=9"):
        LabelledBatches(with_data(folders, num_classes=9))
    with pytest.raises(ValueError, match=r"class folders of data.train and data.val differ \(bee\)"):
        LabelledBatches(with_data(folders, val=str(tmp_path / "val")))


def test_decoded_shards_are_kept_on_disk_until_they_change(shard, tmp_path, monkeypatch):
    data = recipe(shard(corrupt=(3,)), shard("val.tar"), cache=str(tmp_path / "cache")).data
    with pytest.warns(RuntimeWarning, match="1 of 12 images .* cannot be used"):
        columns, reasons = load_labelled(data, "train")
    forget_all()
    with monkeypatch.context() as patch:
        patch.setattr("stringpe.data.labelled_batches.read_all", None)  # whatever is read now comes from the file
        again, same = load_labelled(data, "train")
    assert all(torch.equal(a, b) for a, b in zip(again["image"], columns["image"], strict=True))
    assert torch.equal(again["label"], columns["label"])
    assert reasons == same
    assert "000003" in reasons[0]
    forget_all()
    shard(count=6)  # written anew
    assert len(load_labelled(data, "train")[0]["label"]) == 6
    assert len(list((tmp_path / "cache").iterdir())) == 2


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=5), st.integers(0, 99))
def test_images_of_any_size_train_and_validate(sizes, seed):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        samples = {str(i): {"png": noise(i, size), "cls": b"0"} for i, size in enumerate(sizes)}
        path = write_shard(Path(folder) / "s.tar", samples)
        asked = replace(recipe(path, path, augment=STRONG), seed=seed)
        batches = LabelledBatches(asked)
        for batch in (next(batches.train(seed, Place())), next(batches.val(Place(), 4))):
            assert batch["image"].shape[1:] == (3, 16, 16)
            assert batch["image"].abs().max() <= 1


def test_spots_are_made_without_any_file():
    asked = recipe("", "", source="synthetic", train_size=8, val_size=4)
    batches = LabelledBatches(asked)
    assert batches.examples == 8
    assert json.dumps(next(batches.val(Place(), 4))["label"].tolist())
    assert next(batches.train(0, Place()))["image"].shape == (4, 3, 16, 16)
