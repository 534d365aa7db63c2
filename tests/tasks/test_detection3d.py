import json
import math
import warnings
from dataclasses import replace

import pytest
import torch

from stringpe import box3d, scenes
from stringpe.tasks import create
from stringpe.tasks.boxes3d import box_set
from stringpe.tasks.detection3d import chosen, load, mirrored
from stringpe.tasks.figure3d import figure, main, spread
from stringpe.tasks.predict import Asked, predict, predictor
from stringpe.training.comparison import compare
from stringpe.training.launch import evaluate, train
from stringpe.training.recipe import Augment, Data, Loop, Model, Optim, Recipe, Text
from stringpe.training.task import Place
from stringpe.vision import omni3d

TEXT = Text(dim=16, layers=1, heads=2, width=16, vocab=400, context=16)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return Recipe(
        name="toy3d",
        task="detection3d",
        model=Model(dim=32, layers=1, heads=2, patch_size=8, encoding="cayley", depth="lift+channel"),
        text=TEXT,
        data=Data(
            source="scenes",
            image_size=32,
            train_size=12,
            val_size=10,
            queries=5,
            cache=str(tmp_path_factory.mktemp("frames")),
        ),
        augment=Augment(flip=True),
        optim=Optim(lr=3e-3),
        loop=Loop(batch_size=4, steps=4, eval_batch=4, save_every=4, log_every=2, tensorboard=False),
    )


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "cayley"
    return out, train(recipe, out, quiet=True)


class TestSet:
    def test_objects_are_those_that_are_seen(self, recipe):
        kept = box_set(recipe.data, "train", True)
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
        a, b = (box_set(recipe.data, split, True) for split in ("train", "val"))
        assert not torch.equal(a.rgb[0], b.rgb[0])

    def test_another_source_is_refused(self, recipe):
        with pytest.raises(ValueError, match="is scenes or omni3d, got 'folder'"):
            create(replace(recipe, data=replace(recipe.data, source="folder")))
        with pytest.raises(ValueError, match=r"needs data.train, .* there is no file ''"):
            create(replace(recipe, data=replace(recipe.data, source="omni3d")))


class TestBatches:
    def test_shapes_and_values(self, recipe):
        batch = next(create(recipe).batches(0, Place()))
        assert batch["image"].shape == (4, 3, 32, 32)
        assert batch["image"].abs().max() <= 1
        assert batch["depth"].shape == (4, 32, 32)
        assert batch["label"].shape == (4, 5)
        assert batch["box"].shape == (4, 5, 12)

    def test_a_step_is_a_function_of_its_number_and_not_of_the_processes(self, recipe):
        task = create(recipe)
        batches = task.batches(0, Place())
        next(batches)
        second = next(batches)
        again = next(create(recipe).batches(1, Place()))
        parts = [next(task.batches(1, Place(rank, 2))) for rank in range(2)]
        for name, value in second.items():
            assert torch.equal(value, again[name])
            assert torch.equal(value, torch.cat([part[name] for part in parts]))

    def test_twelve_of_many_objects_drawn_anew(self):
        label = torch.arange(20).repeat(3, 1)
        label[1, 4:] = -1
        box = torch.arange(20.0)[None, :, None].expand(3, 20, 12)
        some, own = chosen(label, box, torch.rand(3, 20), 12)
        assert some.shape == (3, 12)
        assert len(set(some[0].tolist())) == 12
        assert sorted(some[1].tolist()) == [-1] * 8 + [0, 1, 2, 3]
        assert torch.equal(own[..., 0][some >= 0].long(), some[some >= 0])
        other, _ = chosen(label, box, torch.rand(3, 20), 12)
        assert not torch.equal(some[0], other[0])

    def test_a_mirror_keeps_boxes_on_their_pixels(self, recipe):
        kept = box_set(recipe.data, "train", True)
        batch = kept.batch(torch.arange(4), torch.device("cpu"))
        out = mirrored(batch, torch.tensor([True, False, True, False]), torch.tensor([32, 32, 32, 32]))
        assert torch.equal(out["image"][0], batch["image"][0].flip(-1))
        assert torch.equal(out["depth"][2], batch["depth"][2].flip(-1))
        assert torch.equal(out["box"][1], batch["box"][1])
        there = batch["label"][0] >= 0
        before, after = batch["box"][0][there].double(), out["box"][0][there].double()
        mirror = torch.tensor([-1.0, 1, 1]).double()
        # As sets, the corners are those of the mirrored box; the rotation is still a rotation.
        expected = (box3d.corners(before) * mirror)[:, [4, 5, 6, 7, 0, 1, 2, 3]]
        torch.testing.assert_close(box3d.corners(after), expected)
        torch.testing.assert_close(torch.linalg.det(box3d.rotation(after)), torch.ones(len(after)).double())

    def test_a_mirror_leaves_padding_where_it_is(self, recipe):
        kept = box_set(recipe.data, "train", True)
        batch = kept.batch(torch.arange(1), torch.device("cpu"))
        out = mirrored(batch, torch.tensor([True]), torch.tensor([20]))
        assert torch.equal(out["image"][..., :20], batch["image"][..., :20].flip(-1))
        assert torch.equal(out["depth"][..., 20:], batch["depth"][..., 20:])


class TestTask:
    def test_trains_and_evaluates(self, run):
        _, outcome = run
        assert outcome["metric"] == "iou"
        metrics = outcome["metrics"]
        assert {"iou", "ap", "ap15", "ap25", "ap50", *(f"iou_{f}" for f in scenes.FAMILIES)} < set(metrics)
        assert all(0 <= metrics[name] <= 1 for name in metrics if name != "count")

    def test_perfect_predictions_have_an_iou_and_ap_of_one(self, recipe):
        task = create(recipe)
        for number, name in self.measured(task, Oracle(task)).items():
            assert name == pytest.approx(1, abs=1e-6), number

    def test_counts_every_object_once_for_any_batch(self, recipe):
        task = create(recipe)
        whole = self.measured(task, Oracle(task, noise=0.1))
        assert 0 < whole["ap50"] < whole["ap15"]
        for size in (3, 7):
            other = create(replace(recipe, loop=replace(recipe.loop, eval_batch=size)))
            assert self.measured(other, Oracle(other, noise=0.1)) == pytest.approx(whole)

    def test_two_processes_count_what_one_counts(self, recipe, tmp_path):
        task = create(recipe)
        whole = {name: float(v) for name, v in task.evaluate(Oracle(task, noise=0.1), Place()).items()}
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(_share, (recipe, tmp_path / "meet", results), nprocs=2)
        parts = dict(results.get() for _ in range(2))
        assert {name: parts[0][name] + parts[1][name] for name in whole} == pytest.approx(whole, abs=1e-6)

    def test_groups_are_means_over_their_own_objects(self, recipe):
        task = create(recipe)
        found = self.measured(task, Oracle(task, noise=0.1))
        kept = task.val_set
        objects = (kept.label >= 0).sum(1)
        share = [int(objects[kept.group == g].sum()) for g in range(4)]
        mean = sum(found[f"iou_{f}"] * n for f, n in zip(kept.groups, share, strict=True)) / sum(share)
        assert found["iou"] == pytest.approx(mean)

    def test_evaluation_of_a_checkpoint(self, run):
        folder, outcome = run
        again = evaluate(folder)
        assert again["iou"] == pytest.approx(outcome["metrics"]["iou"], abs=1e-6)
        assert "interval" not in again

    def test_rgb_alone(self, recipe):
        rgb = replace(recipe, model=replace(recipe.model, depth="none"))
        task = create(rgb)
        model = task.model()
        batch = next(task.batches(0, Place()))
        task.loss(model, batch).backward()
        assert model.image.lift is None

    def test_half_precision(self, recipe, tmp_path):
        half = replace(recipe, loop=replace(recipe.loop, precision="bf16", steps=1))
        assert math.isfinite(train(half, tmp_path, quiet=True)["metrics"]["iou"])

    def test_comparison_shows_the_figure(self, recipe, tmp_path):
        short = replace(recipe, loop=replace(recipe.loop, steps=1))
        found = compare(short, ["absolute", "rope:model.depth=none"], 1, tmp_path, jobs=1, quiet=True)
        assert (tmp_path / "figure.png").exists()
        assert "What the models say" in found.report.read_text()
        assert "mean 3D IoU" in found.text

    def test_samples_and_counters(self, recipe):
        task = create(recipe)
        sample = task.samples(2)[0]
        assert sample.image.dtype == torch.uint8
        assert "objects, " in sample.caption
        assert task.counters() == {}

    def test_nothing_to_ask_for_is_refused(self, recipe):
        with pytest.raises(ValueError, match=r"data.queries is the number of objects .* got 0"):
            create(replace(recipe, data=replace(recipe.data, queries=0)))

    @staticmethod
    def measured(task, model):
        sums = task.evaluate(model, Place())
        count = sums.pop("count")
        return {name: float(value / count) for name, value in sums.items()}


class Oracle(torch.nn.Module):
    """Knows the validation set by its images; token j says object j, `noise` metres off."""

    def __init__(self, task, noise=0.0):
        super().__init__()
        self.kept, self.noise = task.val_set, noise
        self.images = self.kept.batch(torch.arange(len(self.kept)), torch.device("cpu"))["image"]

    def forward(self, image, depth, queries):
        from stringpe.vision.owl3d import Found

        rows = [int((self.images == one).flatten(1).all(1).nonzero()[0, 0]) for one in image]
        label, box = self.kept.label[rows], self.kept.box[rows].clone()
        box[..., 0] += self.noise
        logits = torch.full((len(rows), label.shape[1], len(self.kept.names)), -20.0)
        logits.scatter_(2, label.clamp(min=0)[..., None], torch.where(label >= 0, 20.0, -20.0)[..., None])
        return Found(logits, box)


def _share(rank, recipe, path, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    task = create(recipe)
    sums = task.evaluate(Oracle(task, noise=0.1), Place(rank, 2))
    results.put((rank, {name: float(value) for name, value in sums.items()}))
    torch.distributed.destroy_process_group()


class TestStart:
    def test_towers_of_a_retrieval_run(self, recipe, tmp_path):
        pairs = replace(
            recipe,
            task="retrieval",
            loss=replace(recipe.loss, kind="siglip"),
            data=replace(recipe.data, train_size=8, val_size=8),
            loop=replace(recipe.loop, steps=1, save_every=1),
        )
        train(pairs, tmp_path / "cayley-0", quiet=True)
        started = replace(recipe, model=replace(recipe.model, start=str(tmp_path / "{encoding}-{seed}")))
        task = create(started)
        model = task.model()
        from stringpe.training.checkpoint import read_model

        weights = read_model(tmp_path / "cayley-0")[1]
        name = "image.blocks.0.mlp.0.weight"
        assert torch.equal(model.state_dict()[name], weights[name])
        assert torch.equal(model.class_head.project.weight, weights["projection.weight"])
        task.loss(model, next(task.batches(0, Place())))

    def test_of_an_earlier_run_of_its_own(self, recipe, run):
        folder, _ = run
        started = create(replace(recipe, model=replace(recipe.model, start=str(folder)))).model()
        model, tokenizer, own = load(folder)
        assert torch.equal(started.box_head.mlp[-1].weight, model.box_head.mlp[-1].weight)
        assert own.task == "detection3d"
        assert len(tokenizer) > 100

    def test_other_runs_are_refused(self, recipe, tmp_path):
        from stringpe.recipes import load as recipe_named

        train(recipe_named("scenes", ["data.train_size=8", "data.val_size=8", "loop.steps=1"]), tmp_path, quiet=True)
        with pytest.raises(ValueError, match="which finds no boxes in 3D"):
            load(tmp_path)


class TestFigure:
    def test_columns_are_runs_and_rows_frames(self, run, recipe, tmp_path):
        from PIL import Image

        folder, _ = run
        path = figure({"one": folder, "two": folder}, tmp_path / "a.png", rows=3)
        with Image.open(path) as picture:
            assert picture.width > 2 * 96
            assert picture.height > 3 * 96
            colours = {c for _, c in picture.getcolors(1 << 20)}
        assert any(g > 150 > max(r, b) + 40 for r, g, b in colours)  # green
        assert any(b > 150 > max(r, g) for r, g, b in colours)  # blue
        assert figure({"one": folder}, tmp_path / "b.png", frames=[1], threshold=0.001).exists()

    def test_frames_of_every_family(self, recipe):
        kept = box_set(recipe.data, "val", True)
        assert set(kept.group[spread(kept, 4)].tolist()) == {0, 1, 2, 3}

    def test_command(self, run, tmp_path, capsys):
        main([str(run[0]), f"mine={run[0]}", "--rows", "1", "--out", str(tmp_path / "c.png")])
        assert "wrote" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="frames 0 to 9, got"):
            main([str(run[0]), "--frames", "99"])


class TestPredict:
    def test_writes_json_and_picture(self, run, tmp_path):
        from PIL import Image

        Image.new("RGB", (64, 40), (90, 120, 60)).save(tmp_path / "a.jpg")
        Image.new("I;16", (32, 20), 1500).save(tmp_path / "depth.png")
        asked = Asked(("a mug", "a lamp"), threshold=0.0, top=5, depth=tmp_path / "depth.png")
        written, drawn, found = predict(run[0], tmp_path / "a.jpg", asked, tmp_path / "out")
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

    def test_bad_input(self, run, tmp_path):
        from PIL import Image

        model, picture = predictor(run[0]), Image.new("RGB", (64, 40))
        with pytest.raises(ValueError, match="asked for by text"):
            model(picture, Asked(query_image=tmp_path / "q.jpg"))
        with pytest.raises(ValueError, match="text 0 of 2 is empty"):
            model(picture, Asked(("", "mug")))
        Image.new("L", (64, 40)).save(tmp_path / "grey.png")
        with pytest.raises(ValueError, match="not 16-bit"):
            model(picture, Asked(("mug",), depth=tmp_path / "grey.png"))
        Image.new("I;16", (40, 64), 1500).save(tmp_path / "tall.png")
        with pytest.raises(ValueError, match="40 × 64"):
            model(picture, Asked(("mug",), depth=tmp_path / "tall.png"))
        Image.new("I;16", (64, 40), 1).save(tmp_path / "unit.png")
        with pytest.raises(ValueError, match="median depth"):
            model(picture, Asked(("mug",), depth=tmp_path / "unit.png"))
        with pytest.raises(ValueError, match="fx and fy above 0"):
            model(picture, Asked(("mug",), intrinsics=(0, 1, 1, 1)))


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
    data = replace(recipe.data, source="omni3d", train=where, val=where, train_size=0, val_size=0)
    return replace(recipe, data=data), content


class TestOmni3D:
    def test_reads_trains_and_writes_results(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe)
        results = tmp_path / "results.json"
        own = replace(own, data=replace(own.data, results=str(results)))
        kept = box_set(own.data, "train", True)
        assert len(kept) == 6
        assert kept.ids.tolist() == [100, 101, 102, 103, 104, 105]
        assert (kept.rgb[0, :, 22:] == 128).all()  # padding: 48 × 32 became 32 × 21
        assert kept.depth[0, :21].min() > 0
        assert (kept.depth[0, 22:] == 0).all()
        assert kept.width.tolist() == [32] * 6
        assert kept.camera[0, 0, 0] / kept.intrinsics[0, 0, 0] == pytest.approx(48 / 32)
        outcome = train(own, tmp_path / "run", quiet=True)
        assert outcome["metrics"]["count"] == len(content["annotations"])
        entries = json.loads(results.read_text())
        assert {e["image_id"] for e in entries} == set(range(100, 106))
        assert {e["category_id"] for e in entries} <= set(range(10, 10 + len(scenes.kinds())))

    def test_what_is_wrong_is_counted_and_named_and_ends_no_run(self, tmp_path, recipe):
        own, content = exported(tmp_path, recipe)
        (tmp_path / "images" / "0.png").write_bytes(b"no picture")
        (tmp_path / "images" / "1.depth.png").unlink()
        content["annotations"][-1]["dimensions"] = [0, 1, 1]
        (tmp_path / "images.json").write_text(json.dumps(content))
        with pytest.warns(RuntimeWarning, match="3 images or annotations cannot be used") as told:
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
        with pytest.warns(RuntimeWarning, match="48 × 32 pixels, the file says 99 × 32"):
            assert len(box_set(own.data, "train", False)) == 5

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
