"""Frames with boxes in 3D: of the procedural world, and of Omni3D files."""

import json
import math
import warnings
from dataclasses import replace

import pytest
import torch
from PIL import Image

from stringpe import scenes
from stringpe.data import omni3d
from stringpe.data.boxes3d import load_boxes3d
from stringpe.data.order import Place
from stringpe.recipes.schema import Data
from stringpe.scenes import one_object
from stringpe.tasks import create
from stringpe.training import evaluate, train


@pytest.fixture
def recipe(recipe3d):
    return recipe3d


class TestRendered:
    def test_objects_are_those_that_are_seen(self, recipe):
        kept = load_boxes3d(recipe.data, "train", True)
        assert kept.names == scenes.kinds()
        assert kept.groups == scenes.FAMILIES
        assert set(kept.group.tolist()) == {0, 1, 2, 3}
        there = kept.label >= 0
        assert there.any(1).all()
        assert (there.sum(1) == there.cumprod(1).sum(1)).all()  # seen ones first
        frames = scenes.render(scenes.sample(0, kept.ids), (32, 32))
        enough = (frames.pixels >= 0.0015 * 32 * 32) & (frames.visibility >= 0.25)
        assert torch.equal(there.sum(1), enough.sum(1))
        torch.testing.assert_close(kept.box[0, 0], frames.box3d[0][enough[0]][0])
        assert kept.label[0, 0] == frames.kind[0][enough[0]][0]
        torch.testing.assert_close(kept.intrinsics, frames.intrinsics)

    def test_splits_share_no_room(self, recipe):
        a, b = (load_boxes3d(recipe.data, split, True) for split in ("train", "val"))
        assert not torch.equal(a.rgb[0], b.rgb[0])

    def test_another_source_is_refused(self, recipe):
        with pytest.raises(ValueError, match=r"data.source=folder does not serve the task detection3d"):
            create(replace(recipe, data=replace(recipe.data, source="folder")))
        with pytest.raises(ValueError, match=r"data.source=omni3d needs data.train=…"):
            create(replace(recipe, data=replace(recipe.data, source="omni3d", cache="")))


def exported(tmp_path, recipe, count=6, depth=True):
    """Frames of the world as an Omni3D file with pictures, 48 × 32."""
    frames = scenes.render(scenes.sample(5, range(count)), (32, 48))
    pictures = []
    for i in range(count):
        image = (frames.rgb[i] * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(image.numpy()).save(tmp_path / "images" / f"{i}.png")
        if depth:
            millimetres = (frames.depth[i] * 1000).round().to(torch.uint16)
            Image.fromarray(millimetres.numpy()).save(tmp_path / "images" / f"{i}.depth.png")
        seen = (frames.pixels[i] > 2).nonzero()[:4, 0]
        pictures.append(
            omni3d.Picture(
                id=100 + i,
                path=f"{i}.png",
                width=48,
                height=32,
                intrinsics=frames.intrinsics[i].double(),
                boxes=frames.box3d[i][seen].double(),
                labels=frames.kind[i][seen],
                ignore=torch.zeros(len(seen), dtype=torch.bool),
            )
        )
    content = omni3d.dataset(pictures, scenes.kinds(), range(10, 10 + len(scenes.kinds())))
    (tmp_path / "images.json").write_text(json.dumps(content))
    where = str(tmp_path / "images")
    data = replace(recipe.data, source="omni3d", train=where, val=where, train_size=0, val_size=0, cache="")
    return replace(recipe, data=data), content


def test_a_set_of_omni3d_is_read_and_trains_and_its_results_are_written(tmp_path, recipe3d):
    own, content = exported(tmp_path, recipe3d)
    kept = load_boxes3d(own.data, "train", True)
    assert len(kept) == 6
    assert kept.ids.tolist() == [100, 101, 102, 103, 104, 105]
    assert (kept.rgb[0, :, 22:] == 128).all()  # padding: 48 × 32 became 32 × 21
    assert kept.depth[0, :21].min() > 0
    assert (kept.depth[0, 22:] == 0).all()
    assert kept.width.tolist() == [32] * 6
    assert kept.camera[0, 0, 0] / kept.intrinsics[0, 0, 0] == pytest.approx(48 / 32)
    outcome = train(own, tmp_path / "run", quiet=True)
    assert outcome["metrics"]["count"] == len(content["annotations"])
    evaluate(tmp_path / "run", out=tmp_path / "evaluation")
    entries = json.loads((tmp_path / "evaluation" / "results.json").read_text())
    assert {e["image_id"] for e in entries} == set(range(100, 106))
    assert {e["category_id"] for e in entries} <= set(range(10, 10 + len(scenes.kinds())))


def test_what_is_wrong_in_a_set_is_counted_and_named_and_ends_no_run(tmp_path, recipe3d):
    own, content = exported(tmp_path, recipe3d)
    (tmp_path / "images" / "0.png").write_bytes(b"no picture")
    (tmp_path / "images" / "1.depth.png").unlink()
    content["annotations"][-1]["dimensions"] = [0, 1, 1]
    (tmp_path / "images.json").write_text(json.dumps(content))
    with pytest.warns(RuntimeWarning, match="3 images or annotations of .* cannot be used") as told:
        task = create(own)
    text = str(told[0].message)
    assert "annotation" in text
    assert "image 100 (0.png)" in text
    assert "1.depth.png: file not found" in text
    assert len(task.train_set) == 4
    assert task.counters() == {"problems": 3.0}


def test_an_image_of_another_size_than_the_file_says(tmp_path, recipe3d):
    own, content = exported(tmp_path, recipe3d)
    content["images"][0]["width"] = 99
    (tmp_path / "images.json").write_text(json.dumps(content))
    with pytest.warns(RuntimeWarning, match="48 × 32 pixels, but its annotations say 99 × 32"):
        assert len(load_boxes3d(own.data, "train", False)) == 5


def test_images_without_objects_train_too(tmp_path, recipe3d):
    own, content = exported(tmp_path, recipe3d, depth=False)
    own = replace(own, model=replace(own.model, depth="none"))
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] == 105]
    (tmp_path / "images.json").write_text(json.dumps(content))
    task = create(own)
    loss = task.loss(task.model(), next(task.batches(0, Place())))
    assert math.isfinite(loss.item())


def test_sets_of_other_categories_are_refused(tmp_path, recipe3d):
    own, content = exported(tmp_path, recipe3d)
    content["categories"].append({"id": 999, "name": "unicorn"})
    (tmp_path / "other.json").write_text(json.dumps(content))
    task = create(replace(own, data=replace(own.data, val_boxes=str(tmp_path / "other.json"))))
    with pytest.raises(ValueError, match="only one has unicorn"), warnings.catch_warnings():
        task.val_set  # noqa: B018


def test_a_set_of_one_object_per_frame_names_its_kinds_and_its_splits_share_no_room(tmp_path):
    data = Data(source="one_object", image_size=32, train_size=9, val_size=5, cache=str(tmp_path))
    train, val = (load_boxes3d(data, split, True) for split in ("train", "val"))
    assert (len(train), len(val)) == (9, 5)
    assert train.names == val.names == one_object.KINDS
    assert train.groups == ("all",)
    assert train.label.shape[1] == 1
    rooms = scenes.render(one_object.sample_one_object(0, torch.arange(9)), (32, 32))
    assert [one_object.KINDS[i] for i in train.label[:, 0]] == [scenes.kinds()[i] for i in rooms.kind[:, 0]]
    torch.testing.assert_close(train.box[:, 0], rooms.box3d[:, 0])
    assert not (train.box[:5] == val.box).all(-1).any()
    with pytest.raises(ValueError, match=r"needs data.train_size and data.val_size"):
        load_boxes3d(Data(source="one_object", image_size=32, train_size=0, val_size=5), "train", True)
