import math
import re
from dataclasses import replace

import pytest
import torch

from processes import in_two
from stringpe import box3d, scenes
from stringpe.coords import backproject
from stringpe.data.boxes3d import load_boxes3d
from stringpe.data.order import Place
from stringpe.recipes import override
from stringpe.tasks import check, create
from stringpe.tasks.detection3d import choose_objects, mirror
from stringpe.tasks.load import load_run
from stringpe.training import evaluate, train
from stringpe.training.comparison import compare


@pytest.fixture
def recipe(recipe3d):
    return recipe3d


@pytest.fixture
def run(run3d):
    return run3d


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
        some, own = choose_objects(label, box, torch.rand(3, 20), 12)
        assert some.shape == (3, 12)
        assert len(set(some[0].tolist())) == 12
        assert sorted(some[1].tolist()) == [-1] * 8 + [0, 1, 2, 3]
        assert torch.equal(own[..., 0][some >= 0].long(), some[some >= 0])
        other, _ = choose_objects(label, box, torch.rand(3, 20), 12)
        assert not torch.equal(some[0], other[0])

    def test_a_mirror_keeps_boxes_on_their_pixels(self, recipe):
        kept = load_boxes3d(recipe.data, "train", True)
        batch = kept.batch(torch.arange(4), torch.device("cpu"))
        out = mirror(batch, torch.tensor([True, False, True, False]), torch.tensor([32, 32, 32, 32]))
        assert torch.equal(out["image"][0], batch["image"][0].flip(-1))
        assert torch.equal(out["depth"][2], batch["depth"][2].flip(-1))
        assert torch.equal(out["box"][1], batch["box"][1])
        there = batch["label"][0] >= 0
        before, after = batch["box"][0][there].double(), out["box"][0][there].double()
        flip = torch.tensor([-1.0, 1, 1]).double()
        # As sets, the corners are those of the mirrored box; the rotation is still a rotation.
        expected = (box3d.corners(before) * flip)[:, [4, 5, 6, 7, 0, 1, 2, 3]]
        torch.testing.assert_close(box3d.corners(after), expected)
        torch.testing.assert_close(torch.linalg.det(box3d.rotation(after)), torch.ones(len(after)).double())

    def test_a_mirror_takes_points_with_it(self, recipe):
        """The mirrored camera sees the mirrored picture: every patch lies at the mirrored point."""
        kept = load_boxes3d(recipe.data, "train", True)
        batch = kept.batch(torch.arange(2), torch.device("cpu"))
        batch["intrinsics"][:, 0, 2] += 3  # a camera whose axis is not in the middle
        out = mirror(batch, torch.tensor([True, False]), torch.tensor([32, 32]))
        before, after = (backproject(b["depth"], b["intrinsics"]) for b in (batch, out))
        torch.testing.assert_close(after[0], before[0].flip(1) * torch.tensor([-1.0, 1, 1]))
        torch.testing.assert_close(after[1], before[1])

    def test_a_mirror_leaves_padding_where_it_is(self, recipe):
        kept = load_boxes3d(recipe.data, "train", True)
        batch = kept.batch(torch.arange(1), torch.device("cpu"))
        out = mirror(batch, torch.tensor([True]), torch.tensor([20]))
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

    @pytest.mark.slow
    def test_two_processes_count_what_one_counts(self, recipe, tmp_path):
        task = create(recipe)
        whole = task.evaluate(Oracle(task, noise=0.1), Place())
        first, second = in_two(_share, tmp_path, recipe)
        assert first == second == pytest.approx(whole, abs=1e-6)

    def test_groups_are_means_over_their_own_objects(self, recipe):
        task = create(recipe)
        found = self.measured(task, Oracle(task, noise=0.1))
        kept = task.val_set
        objects = (kept.label >= 0).sum(1)
        share = [int(objects[kept.group == g].sum()) for g in range(4)]
        mean = sum(found[f"iou_{f}"] * n for f, n in zip(kept.groups, share, strict=True)) / sum(share)
        assert found["iou"] == pytest.approx(mean)

    def test_the_papers_estimate_of_the_iou_on_request(self, recipe):
        task = create(replace(recipe, loop=replace(recipe.loop, eval_points=2000)))
        found = self.measured(task, Oracle(task, noise=0.1))
        assert found["iou_monte_carlo"] == pytest.approx(found["iou"], abs=0.01)
        assert found["iou_monte_carlo"] != found["iou"]
        assert "iou_monte_carlo" not in self.measured(create(recipe), Oracle(task, noise=0.1))

    def test_evaluation_of_a_checkpoint(self, run):
        folder, outcome = run
        again = evaluate(folder)
        assert again["iou"] == pytest.approx(outcome["metrics"]["iou"], abs=1e-6)
        assert "interval" not in again

    def test_centres_relative_to_points_need_depth(self, recipe):
        with pytest.raises(ValueError, match=r"model.box_centre=point needs depth to place patches"):
            check(override(recipe, ["model.depth=none", "model.box_centre=point"]))
        with pytest.raises(ValueError, match=r"model.box_centre is absolute or point, got 'patch'"):
            check(override(recipe, ["model.box_centre=patch"]))

    def test_a_model_without_depth_takes_rgb_alone(self, recipe):
        rgb = replace(recipe, model=replace(recipe.model, depth="none"))
        task = create(rgb)
        model = task.model()
        batch = next(task.batches(0, Place()))
        task.loss(model, batch).backward()
        assert model.image.lift is None

    def test_half_precision_trains(self, recipe, tmp_path):
        half = replace(recipe, loop=replace(recipe.loop, precision="bf16", steps=1))
        assert math.isfinite(train(half, tmp_path, quiet=True)["metrics"]["iou"])

    @pytest.mark.slow
    def test_comparison_shows_the_figure(self, recipe, tmp_path):
        short = replace(recipe, loop=replace(recipe.loop, steps=1))
        found = compare(short, ["absolute", "rope:model.depth=none"], 1, tmp_path, jobs=1, quiet=True)
        assert (tmp_path / "figure.png").exists()
        assert "<h2>Predictions</h2>" in found.report.read_text()
        assert "mean 3D IoU" in found.text

    def test_samples_say_how_many_objects_they_show(self, recipe):
        task = create(recipe)
        sample = task.samples(2)[0]
        assert sample.image.dtype == torch.uint8
        assert re.fullmatch(r"(1 object|\d+ objects), living", sample.caption)
        assert task.counters() == {}

    def test_nothing_to_ask_for_is_refused(self, recipe):
        with pytest.raises(ValueError, match=r"data.queries must be at least 1, got 0"):
            create(replace(recipe, data=replace(recipe.data, queries=0)))

    @staticmethod
    def measured(task, model):
        found = task.evaluate(model, Place())
        found.pop("count")
        return found


class Oracle(torch.nn.Module):
    """Knows the validation set by its images; token j says object j, `noise` metres off."""

    def __init__(self, task, noise=0.0):
        super().__init__()
        self.kept, self.noise = task.val_set, noise
        self.images = self.kept.batch(torch.arange(len(self.kept)), torch.device("cpu"))["image"]

    def forward(self, image, depth, queries):
        from stringpe.models.owl3d import Predictions3D

        rows = [int((self.images == one).flatten(1).all(1).nonzero()[0, 0]) for one in image]
        label, box = self.kept.label[rows], self.kept.box[rows].clone()
        box[..., 0] += self.noise
        logits = torch.full((len(rows), label.shape[1], len(self.kept.names)), -20.0)
        logits.scatter_(2, label.clamp(min=0)[..., None], torch.where(label >= 0, 20.0, -20.0)[..., None])
        return Predictions3D(logits, box)


def _share(rank, recipe):
    task = create(recipe)
    return task.evaluate(Oracle(task, noise=0.1), Place(rank, 2))


class TestStart:
    def test_towers_of_a_retrieval_run(self, recipe, tmp_path):
        pairs = replace(
            recipe,
            task="retrieval",
            loss=replace(recipe.loss, kind="siglip"),
            data=replace(recipe.data, train_size=8, val_size=8, queries=8),
            loop=replace(recipe.loop, steps=1, save_every=1),
        )
        train(pairs, tmp_path / "cayley-0", quiet=True)
        started = replace(recipe, model=replace(recipe.model, start=str(tmp_path / "{encoding}-{seed}")))
        task = create(started)
        model = task.model()
        from stringpe.io.checkpoint import read_model

        weights = read_model(tmp_path / "cayley-0")[1]
        name = "image.blocks.0.mlp.0.weight"
        assert torch.equal(model.state_dict()[name], weights[name])
        assert torch.equal(model.class_head.project.weight, weights["projection.weight"])
        task.loss(model, next(task.batches(0, Place())))

    def test_of_an_earlier_run_of_its_own(self, recipe, run):
        folder, _ = run
        started = create(replace(recipe, model=replace(recipe.model, start=str(folder)))).model()
        model, own, parts = load_run(folder)
        assert torch.equal(started.box_head.mlp[-1].weight, model.box_head.mlp[-1].weight)
        assert own.task == "detection3d"
        assert len(parts.tokenizer) > 100

    def test_other_runs_are_refused(self, recipe, tmp_path):
        from stringpe.recipes import load as recipe_named

        train(recipe_named("scenes", ["data.train_size=8", "data.val_size=8", "loop.steps=1"]), tmp_path, quiet=True)
        with pytest.raises(ValueError, match="a run of the task 'objects': a run of 'detection3d' is needed"):
            load_run(tmp_path, "detection3d")
