"""Boxes in 2D: the same pictures with the same boxes from memory and from workers."""

import json
from dataclasses import replace

import pytest
import torch

from detection_toy import pictures, toy_recipe
from stringpe.data.boxes2d import load_boxes2d, load_squares, validation_squares
from stringpe.data.place import Place
from stringpe.tasks.detection2d import Detection2D


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
    with pytest.warns(RuntimeWarning, match=r"0001.png: it has 40 × 64 pixels, but the annotations say 400 × 64"):
        found = load_boxes2d(data, "train")
    assert [p.id for p in found.coco.pictures] == [100, 102, 103]
    assert len(found.problems) == 1


def test_workers_put_the_next_picture_with_its_own_number_in_place_of_a_bad_one(recipe, tmp_path):
    pictures(tmp_path, "val", 4, 0, corrupt=(1, 2))
    data = replace(recipe.data, val=str(tmp_path / "val.tar"), in_memory=False)
    split = load_boxes2d(data, "val")
    with pytest.warns(RuntimeWarning, match=r"2 pictures or annotations of .*val.json cannot be used"):
        pixels, numbers = next(load_squares(split, [torch.tensor([0, 1, 2, 3])], Place()))
    assert numbers.tolist() == [0, 3, 3, 3]
    assert torch.equal(pixels[1], pixels[3])
    _, _, weight = next(validation_squares(split, 4, Place()))
    assert weight.tolist() == [1, 0, 0, 1]
