"""Boxes in 2D: the same pictures with the same boxes from memory and from workers."""

import json
from dataclasses import replace

import pytest
import torch

from detection_toy import pictures, toy_recipe
from stringpe.data.boxes2d import load_boxes2d, load_squares, validation_squares
from stringpe.data.order import Place
from stringpe.tasks.detection2d import Detection2D
from stringpe.training import train


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return toy_recipe(tmp_path_factory.mktemp("rectangles"))


@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_workers_give_equal_batches(recipe, workers):
    lazy = replace(recipe, data=replace(recipe.data, in_memory=False, workers=workers))
    for place in (Place(), Place(1, 2)):
        left, right = Detection2D(recipe).batches(1, place), Detection2D(lazy).batches(1, place)
        for _ in range(3):
            a, b = next(left), next(right)
            assert set(a) == set(b)
            assert all(torch.equal(a[name], b[name]) for name in a)
    kept = [validation_squares(load_boxes2d(r.data, "val"), 4, Place()) for r in (recipe, lazy)]
    for a, b in zip(*kept, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_picture_of_another_size_than_its_annotations_say_is_left_out(recipe, tmp_path):
    pictures(tmp_path, "train", 4, 0)
    content = json.loads((tmp_path / "train.json").read_text())
    content["images"][1] |= {"width": 400}
    (tmp_path / "train.json").write_text(json.dumps(content))
    data = replace(recipe.data, train=str(tmp_path / "train.tar"))
    with pytest.warns(RuntimeWarning, match=r"0001.png: it has 40 × 64 pixels, but its annotations say 400 × 64"):
        found = load_boxes2d(data, "train")
    assert [p.id for p in found.coco.pictures] == [100, 102, 103]
    assert len(found.problems) == 1


def test_workers_put_the_next_picture_with_its_own_number_in_place_of_a_bad_one(recipe, tmp_path):
    pictures(tmp_path, "val", 4, 0, corrupt=(1, 2))
    data = replace(recipe.data, val=str(tmp_path / "val.tar"), in_memory=False)
    split = load_boxes2d(data, "val")
    with pytest.warns(RuntimeWarning, match=r"2 pictures or annotations of .*val.tar cannot be used"):
        pixels, numbers = next(load_squares(split, [torch.tensor([0, 1, 2, 3])], Place()))
    assert numbers.tolist() == [0, 3, 3, 3]
    assert torch.equal(pixels[1], pixels[3])
    _, _, weight = next(validation_squares(split, 4, Place()))
    assert weight.tolist() == [1, 0, 0, 1]


@pytest.fixture
def two(recipe, tmp_path):
    """The recipe on two data sets: one whose classes are the toy's, and one of LVIS's kind with another class more."""
    for name, lvis, seed in (("first", False, 0), ("second", True, 5)):
        pictures(tmp_path, name, 12 if lvis else 8, seed, lvis=lvis)
    content = json.loads((tmp_path / "second.json").read_text())
    content["categories"][2]["name"] = "Yellow_Duck"  # in place of the blue pen
    (tmp_path / "second.json").write_text(json.dumps(content))
    data = replace(recipe.data, train=f"{tmp_path}/first.tar + {tmp_path}/second.tar")
    return replace(recipe, data=data)


def test_several_data_sets_are_one_with_classes_by_name(two):
    found = load_boxes2d(two.data, "train")
    assert found.coco.names == ("red ball", "green box", "blue pen", "yellow duck")
    assert found.sizes == (8, 12)
    assert found.covers.tolist() == [[True, True, True, False], [True, True, False, True]]
    assert found.sets(torch.tensor([0, 7, 8, 19])).tolist() == [0, 0, 1, 1]
    labels = found.pictures.labels
    assert 3 not in labels[:8][found.pictures.valid[:8]]
    assert 2 not in labels[8:][found.pictures.valid[8:]]
    assert not found.negative[:8].any()
    assert found.negative[8:, 0].all()
    boxes = [load_boxes2d(replace(two.data, train=part), "train") for part in two.data.train.split(" + ")]
    assert torch.equal(found.loader.columns["pixels"][8:], boxes[1].loader.columns["pixels"])
    lazy = load_boxes2d(replace(two.data, in_memory=False), "train")
    for number in (3, 8, 15):
        row = lazy.loader.examples.read(number)["pixels"]
        assert torch.equal(row, found.loader.columns["pixels"][number])


def test_an_image_is_asked_about_its_own_data_set(two):
    task = Detection2D(replace(two, data=replace(two.data, mix="0.5 0.5", negatives=1)))
    stream = task.batches(0, Place())
    sets = []
    for _ in range(6):
        batch = next(stream)
        classes = batch["query"] // 7
        own = [[2 in row[m].tolist(), 3 in row[m].tolist()] for row, m in zip(classes, batch["mask"], strict=True)]
        for (first, second), mask in zip(own, batch["mask"], strict=True):  # both only where no other class is left
            assert not (first and second) or int(mask.sum()) == 4
        assert batch["exhaustive"][(classes == 1) & batch["mask"]].any() or not (classes == 1).any()
        sets += own
    assert any(a for a, _ in sets)
    assert any(b for _, b in sets)


def test_what_only_another_set_annotates_is_not_held_against_a_token(two):
    task = Detection2D(replace(two, data=replace(two.data, negatives=4)))  # all classes are asked for
    batch = next(task.batches(0, Place()))
    classes = batch["query"] // 7
    for row, exhaustive in zip(classes, batch["exhaustive"], strict=True):
        known = dict(zip(row.tolist(), exhaustive.tolist(), strict=True))
        assert known[0]
        assert known[2] != known[3]


def test_lists_that_do_not_fit_are_refused(two, recipe):
    def changed(**data):
        return Detection2D(replace(two, data=replace(two.data, **data)))

    for mix in ("0.5", "0.9 0.2", "0.5 half", "1 0"):
        with pytest.raises(ValueError, match=r"data.mix holds the shares of the data sets .* for 2"):
            changed(mix=mix)
    with pytest.raises(ValueError, match=r"data.mix .* for 1"):
        Detection2D(replace(recipe, data=replace(recipe.data, mix="1")))
    with pytest.raises(ValueError, match=r"data.train names 2 data sets and data.train_boxes 1 files"):
        changed(train_boxes="one.json")
    task = changed(val=two.data.train)
    with pytest.raises(ValueError, match=r"validation takes one: evaluate others with stringpe eval RUN"):
        _ = task.val_set


def test_rare_names_are_left_out_of_training_alone(two, tmp_path):
    content = json.loads((tmp_path / "second.json").read_text())
    for category, group in zip(content["categories"], "frc", strict=True):  # the green box is rare
        category["frequency"] = group
    (tmp_path / "lvis.json").write_text(json.dumps(content))
    data = replace(two.data, without=str(tmp_path / "lvis.json"))
    before, after = load_boxes2d(two.data, "train"), load_boxes2d(data, "train")
    assert after.coco.names == ("red ball", "blue pen", "yellow duck")
    assert len(after) == len(before)
    rare = (before.pictures.labels == 1) & before.pictures.valid
    assert rare.any()
    assert int(after.pictures.valid.sum()) == int((before.pictures.valid & ~rare).sum())
    kept = before.pictures.boxes[before.pictures.valid & ~rare]
    assert torch.equal(after.pictures.boxes[after.pictures.valid], kept)
    assert "green box" in load_boxes2d(data, "val").coco.names
    train(replace(two, data=data, loop=replace(two.loop, steps=1)), tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match=r"second.json calls no category rare: data.without takes an LVIS file"):
        load_boxes2d(replace(data, without=str(tmp_path / "second.json")), "train")
