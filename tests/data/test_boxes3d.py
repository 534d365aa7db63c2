"""What is drawn, predicted and exchanged of detection in 3D."""

import json
import math
import warnings
from dataclasses import replace

import pytest
import torch

from stringpe import scenes
from stringpe.cli.main import main
from stringpe.data import omni3d
from stringpe.data.boxes3d import load_boxes3d
from stringpe.data.order import Place
from stringpe.tasks import create
from stringpe.tasks.detection3d_figures import draw_figure, name_run, spread_frames
from stringpe.tasks.predict import Query, load_predictor, predict
from stringpe.training import evaluate, train


@pytest.fixture
def recipe(recipe3d):
    return recipe3d


@pytest.fixture
def run(run3d):
    return run3d


class TestFigure:
    def test_columns_are_runs_and_rows_frames(self, run, recipe, tmp_path):
        from PIL import Image

        folder, _ = run
        path = draw_figure({"one": folder, "two": folder}, tmp_path / "a.png", rows=3)
        with Image.open(path) as picture:
            assert picture.width > 2 * 96
            assert picture.height > 3 * 96
            colours = {c for _, c in picture.getcolors(1 << 20)}
        assert any(g > 150 > max(r, b) + 40 for r, g, b in colours)  # green
        assert any(b > 150 > max(r, g) for r, g, b in colours)  # blue
        assert draw_figure({"one": folder}, tmp_path / "b.png", frames=[1], threshold=0.001).exists()

    def test_frames_of_every_family(self, recipe):
        kept = load_boxes3d(recipe.data, "val", True)
        assert set(kept.group[spread_frames(kept, 4)].tolist()) == {0, 1, 2, 3}

    def test_command(self, run, tmp_path, capsys):
        main(["figure", str(run[0]), f"mine={run[0]}", "--rows", "1", "--out", str(tmp_path / "c.png")])
        assert "wrote" in capsys.readouterr().out
        assert name_run(str(run[0]))[0] == "cayley, RGB-D"
        with pytest.raises(SystemExit, match="frames 0 to 9, got"):
            main(["figure", str(run[0]), "--frames", "99"])


class TestPredict:
    def test_writes_json_and_picture(self, run, tmp_path):
        from PIL import Image

        Image.new("RGB", (64, 40), (90, 120, 60)).save(tmp_path / "a.jpg")
        Image.new("I;16", (32, 20), 1500).save(tmp_path / "depth.png")
        asked = Query(("a mug", "a lamp"), threshold=0.0, top=5, depth=tmp_path / "depth.png")
        (written, drawn), found = predict(run[0], tmp_path / "a.jpg", asked, tmp_path / "out")
        record = json.loads(written.read_text())
        assert drawn.exists()
        assert 1 <= len(found) <= 5
        one = record["found"][0]
        assert one["text"] in asked.texts
        assert len(one["box"]) == 12
        assert len(one["bbox3D"]) == 8
        torch.testing.assert_close(
            torch.tensor(one["bbox3D"]), omni3d.corners(torch.tensor(one["box"])), atol=1e-4, rtol=0
        )

    def test_the_step_of_depth_is_that_of_the_data_set(self, run, tmp_path):
        """`stringpe data scenes` writes steps of 0.2 mm, and says so in the JSON file beside the map."""
        from PIL import Image

        model, picture = load_predictor(run[0]), Image.new("RGB", (64, 40), (90, 120, 60))

        def boxes(value, **options):
            Image.new("I;16", (64, 40), value).save(tmp_path / "7.depth.png")
            found = model(picture, Query(("a mug",), threshold=0.0, top=3, depth=tmp_path / "7.depth.png", **options))
            return torch.tensor([one["box"] for one in found])

        metres = boxes(1500)
        torch.testing.assert_close(boxes(7500, depth_step=0.0002), metres)
        (tmp_path / "7.json").write_text(json.dumps({"depth_step": 0.0002}))
        torch.testing.assert_close(boxes(7500), metres)
        assert not torch.allclose(boxes(1500), metres)

    def test_bad_input(self, run, tmp_path):
        from PIL import Image

        model, picture = load_predictor(run[0]), Image.new("RGB", (64, 40))
        with pytest.raises(ValueError, match="asked for by text"):
            model(picture, Query(query_image=tmp_path / "q.jpg"))
        with pytest.raises(ValueError, match="text 1 of 2 is empty"):
            model(picture, Query(("", "mug")))
        Image.new("L", (64, 40)).save(tmp_path / "grey.png")
        with pytest.raises(ValueError, match="not 16-bit"):
            model(picture, Query(("mug",), depth=tmp_path / "grey.png"))
        Image.new("I;16", (40, 64), 1500).save(tmp_path / "tall.png")
        with pytest.raises(ValueError, match="40 × 64"):
            model(picture, Query(("mug",), depth=tmp_path / "tall.png"))
        Image.new("I;16", (64, 40), 1).save(tmp_path / "unit.png")
        with pytest.raises(ValueError, match="median depth"):
            model(picture, Query(("mug",), depth=tmp_path / "unit.png"))
        with pytest.raises(ValueError, match="fx and fy above 0"):
            model(picture, Query(("mug",), intrinsics=(0, 1, 1, 1)))


def exported(tmp_path, recipe, count=6, depth=True):
    """Frames of the world as an Omni3D file with pictures, 48 × 32."""
    from PIL import Image

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


class TestOmni3D:
    def test_reads_trains_and_writes_results(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe)
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

    def test_what_is_wrong_is_counted_and_named_and_ends_no_run(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe)
        (tmp_path / "images" / "0.png").write_bytes(b"no picture")
        (tmp_path / "images" / "1.depth.png").unlink()
        content["annotations"][-1]["dimensions"] = [0, 1, 1]
        (tmp_path / "images.json").write_text(json.dumps(content))
        with pytest.warns(RuntimeWarning, match="3 images or annotations of .* cannot be used") as told:
            task = create(own)
        text = str(told[0].message)
        assert "annotation" in text
        assert "image 100 (0.png)" in text
        assert "1.depth.png: there is no such file" in text
        assert len(task.train_set) == 4
        assert task.counters() == {"problems": 3.0}

    def test_an_image_of_another_size_than_the_file_says(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe)
        content["images"][0]["width"] = 99
        (tmp_path / "images.json").write_text(json.dumps(content))
        with pytest.warns(RuntimeWarning, match="48 × 32 pixels, but its annotations say 99 × 32"):
            assert len(load_boxes3d(own.data, "train", False)) == 5

    def test_images_without_objects_train_too(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe, depth=False)
        own = replace(own, model=replace(own.model, depth="none"))
        content["annotations"] = [a for a in content["annotations"] if a["image_id"] == 105]
        (tmp_path / "images.json").write_text(json.dumps(content))
        task = create(own)
        loss = task.loss(task.model(), next(task.batches(0, Place())))
        assert math.isfinite(loss.item())

    def test_sets_of_other_categories_are_refused(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe)
        content["categories"].append({"id": 999, "name": "unicorn"})
        (tmp_path / "other.json").write_text(json.dumps(content))
        task = create(replace(own, data=replace(own.data, val_boxes=str(tmp_path / "other.json"))))
        with pytest.raises(ValueError, match="only one has unicorn"), warnings.catch_warnings():
            task.val_set  # noqa: B018
