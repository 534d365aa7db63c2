import itertools
import json
from dataclasses import replace

import pytest
import torch

from detection_toy import pictures, toy_recipe
from processes import in_two
from stringpe.data.boxes2d import load_boxes2d
from stringpe.data.order import Place
from stringpe.data.queries import CLIP_TEMPLATES
from stringpe.models.owl import Detections
from stringpe.recipes.overrides import override
from stringpe.recipes.schema import Data, Loop, Model, Recipe, Text
from stringpe.tasks import create, detection2d
from stringpe.tasks.detection2d import Detection2D, mark_duplicates, pick_best, to_results
from stringpe.training import evaluate, train


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return toy_recipe(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def task(recipe):
    return Detection2D(recipe)


@pytest.mark.slow
def test_it_learns_to_find_what_it_is_asked_for(recipe, tmp_path):
    """Rectangles that only their colour names, in pictures it has seen."""
    changes = ["augment.crop=1", "augment.mosaic=", "augment.colour=0", "augment.flip=false", "loop.batch_size=12"]
    changes += ["loop.steps=100", "optim.lr=4e-3", "loop.log_every=100", f"data.val={recipe.data.train}"]
    outcome = train(override(recipe, changes), tmp_path, quiet=True)
    assert outcome["metrics"]["AP50"] > 0.15
    assert outcome["metrics"]["AP50"] >= outcome["metrics"]["AP"] > 0.03
    again = evaluate(tmp_path)
    assert again["AP"] == pytest.approx(outcome["metrics"]["AP"], abs=1e-6)
    assert "interval" not in again  # AP is not a share of cases


def test_batches_depend_on_seed_and_step_alone(task):
    whole = task.batches(0, Place())
    steps = [next(whole) for _ in range(3)]
    halves = [next(task.batches(2, Place(r, 2))) for r in range(2)]
    assert torch.equal(torch.cat([h["image"] for h in halves]), steps[2]["image"])
    for name in ("query", "mask", "exhaustive"):
        assert torch.equal(torch.cat([h[name] for h in halves]), steps[2][name])
    assert steps[0]["image"].shape == (4, 3, 64, 64)
    assert steps[0]["image"].abs().max() <= 1


def test_a_step_can_be_captured_where_no_shape_ever_changes(recipe, monkeypatch):
    def shapes(task):
        steps = itertools.islice(task.batches(0, Place()), 8)
        return {tuple((name, part.shape) for name, part in batch.items()) for batch in steps}

    single, mosaics = Detection2D(override(recipe, ["augment.mosaic="])), Detection2D(recipe)
    assert (single.capturable, len(shapes(single))) == (True, 1)
    assert not mosaics.capturable
    assert len(shapes(mosaics)) > 1
    assert not Detection2D(override(recipe, ["augment.mosaic=", "data.negatives=1"])).capturable
    monkeypatch.setattr(detection2d, "_ENCODE_ALL", 5)
    assert not Detection2D(override(recipe, ["augment.mosaic="])).capturable


def test_prompts_that_are_chosen_come_in_few_sizes_and_change_nothing(task, monkeypatch):
    """Compiled layers are compiled for each size anew."""
    torch.manual_seed(0)
    model = task.model().eval()
    batch = next(task.batches(0, Place()))
    whole, sizes = task.loss(model, batch), []
    model.text.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    monkeypatch.setattr(detection2d, "_ENCODE_ALL", 1)
    for step in (1, 7, 64):
        monkeypatch.setattr(detection2d, "_PROMPTS_STEP", step)
        torch.testing.assert_close(task.loss(model, batch), whole)
    chosen = len(batch["query"].unique())
    assert sizes == [-(-chosen // step) * step for step in (1, 7, 64)]


def test_loss_is_the_mean_of_parts_of_the_batch(task):
    """So that accumulating gradients changes nothing."""
    torch.manual_seed(0)
    model = task.model().eval()
    batch = next(task.batches(0, Place()))
    parts = [task.loss(model, {k: v[i : i + 2] for k, v in batch.items()}) for i in (0, 2)]
    assert torch.allclose(torch.stack(parts).mean(), task.loss(model, batch), atol=1e-5)


def test_prompts_that_are_read_by_need_give_the_same_loss(task, monkeypatch):
    torch.manual_seed(0)
    model = task.model().eval()
    batch = next(task.batches(0, Place()))
    wanted = task.loss(model, batch)
    monkeypatch.setattr(detection2d, "_ENCODE_ALL", 0)
    assert torch.allclose(task.loss(model, batch), wanted, atol=1e-5)


def test_pictures_read_when_they_are_wanted_give_the_same_batches(task, recipe):
    lazy = Detection2D(replace(recipe, data=replace(recipe.data, in_memory=False)))
    one, two = next(task.batches(1, Place())), next(lazy.batches(1, Place()))
    for name in one:
        assert torch.equal(one[name], two[name])
    model = task.model().eval()
    assert lazy.predictions(model, Place()) == task.predictions(model, Place())
    busy = Detection2D(replace(recipe, data=replace(recipe.data, in_memory=False, workers=1)))
    assert torch.equal(next(busy.batches(1, Place()))["image"], one["image"])


def test_results_are_the_same_in_batches_of_any_size(task, recipe):
    model = task.model().eval()
    other = Detection2D(replace(recipe, loop=replace(recipe.loop, eval_batch=7)))
    assert len(task.predictions(model, Place())) == 9 * 64 * 3
    one, two = ({(r["image_id"], r["category_id"]) for r in t.predictions(model, Place())} for t in (task, other))
    assert one == two == {(100 + i, c) for i in range(9) for c in (4, 14, 24)}  # the first class is one


def _with_large_boxes(task):
    """A model that finds something untrained: boxes of two patches a side."""
    torch.manual_seed(5)
    model = task.model().eval()
    model.box_head.layers[2].bias.data[2:] = 0.85
    return model


def _share(rank, recipe):
    task = Detection2D(recipe)
    with torch.no_grad():
        return task.evaluate(_with_large_boxes(task), Place(rank, 2))


@pytest.mark.slow
def test_two_processes_count_what_one_counts(task, recipe, tmp_path):
    with torch.no_grad():
        whole = task.evaluate(_with_large_boxes(task), Place())
    first, second = in_two(_share, tmp_path, recipe)
    assert whole["AP50"] > 0
    assert first == second == pytest.approx(whole, abs=1e-9)


def test_results_are_in_pixels_of_the_picture_without_padding(task):
    found = Detections(
        torch.tensor([[[5.0, -5.0], [-5.0, 4.0]]]),
        torch.tensor([[[0.5, 0.25, 0.5, 0.25], [0.5, 0.5, 1.0, 1.0]]]),
        torch.zeros(1, 2, 1),
    )
    wide = task.val_set.coco.pictures[0]
    assert (wide.width, wide.height) == (64, 40)
    results = to_results(pick_best(found, torch.tensor([0]), top=2), task.val_set.coco.pictures, (4, 14))
    assert [r["category_id"] for r in results] == [4, 14]
    assert results[0]["bbox"] == [16, 8, 32, 16]
    assert results[1]["bbox"] == [0, 0, 64, 40]  # not 64: below lies padding
    assert results[0]["score"] == pytest.approx(0.99331, abs=1e-5)


def test_worse_boxes_of_the_same_class_are_suppressed_where_the_recipe_says_so(task, recipe):
    box, other = [0.4, 0.4, 0.2, 0.2], [0.8, 0.8, 0.1, 0.1]
    boxes = torch.tensor([box, [0.41, 0.4, 0.2, 0.2], other, box])
    classes, score = torch.tensor([0.0, 0, 0, 1]), torch.tensor([0.9, 0.8, 0.7, 0.6])
    rows = torch.cat([torch.stack([torch.zeros(4), classes, score], -1), boxes], -1)[None].double()
    kept = mark_duplicates(rows, 0.5)
    torch.testing.assert_close(kept[0, :, 2].float(), torch.tensor([0.9, -1, 0.7, 0.6]))
    assert mark_duplicates(rows, 1.0) is rows
    assert len(to_results(kept, task.val_set.coco.pictures, (4, 14))) == 3

    model = _with_large_boxes(task)
    with torch.no_grad():
        all_of_them = task.predictions(model, Place())
        few = Detection2D(override(recipe, ["loop.eval_nms=0.3"])).predictions(model, Place())
    assert 0 < len(few) < len(all_of_them)


def test_more_positives_change_the_loss(task, recipe):
    torch.manual_seed(0)
    model, batch = task.model(), next(task.batches(0, Place()))
    more = Detection2D(override(recipe, ["loss.positives=3"]))
    assert task.loss(model, batch) != more.loss(model, batch)


def test_results_go_to_the_file_that_the_caller_names(recipe, tmp_path):
    task = Detection2D(recipe)
    model = task.model().eval()
    task.results = tmp_path / "results.json"
    task.evaluate(model, Place())
    assert json.loads((tmp_path / "results.json").read_text()) == task.predictions(model, Place())


def test_evaluation_averages_logits_over_templates(task):
    torch.manual_seed(1)
    model = task.model().eval()
    image = torch.rand(1, 3, 64, 64)
    queries = task._queries(model, image)
    tokens = task._tokens(image.device).unflatten(0, (3, len(CLIP_TEMPLATES)))
    each = torch.stack([model(image, tokens[:, t]).logits for t in range(len(CLIP_TEMPLATES))])
    assert torch.allclose(model(image, queries=queries).logits, each.mean(0), atol=1e-5)


def test_lvis_says_which_classes_are_annotated_in_full(recipe, tmp_path):
    pictures(tmp_path, "train", 8, 0, lvis=True)
    pictures(tmp_path, "val", 4, 1, lvis=True)
    data = replace(recipe.data, train=str(tmp_path / "train.tar"), val=str(tmp_path / "val.tar"))
    task = Detection2D(replace(recipe, data=data))
    batch = next(task.batches(0, Place()))
    asked = batch["query"] // len(CLIP_TEMPLATES)
    assert torch.equal(batch["exhaustive"], asked != 1)
    model = task.model().eval()
    assert {"APr", "APc", "APf"} <= set(task.evaluate(model, Place()))


def test_corrupt_pictures_are_left_out_and_counted(recipe, tmp_path):
    pictures(tmp_path, "train", 8, 0, corrupt=(2, 5))
    pictures(tmp_path, "val", 4, 1)
    data = replace(recipe.data, train=str(tmp_path / "train.tar"), val=str(tmp_path / "val.tar"))
    with pytest.warns(RuntimeWarning, match=r"2 of 8 pictures of .* cannot be used and are left out: .*0002.png"):
        task = Detection2D(replace(recipe, data=data))
    assert task.examples == 6
    assert task.counters()["left_out"] == 2
    lazy = Detection2D(replace(recipe, data=replace(data, in_memory=False)))
    with pytest.warns(RuntimeWarning, match=r"[12] pictures .* cannot be used and are left out: .*png"):
        batches = list(itertools.islice(lazy.batches(0, Place()), 3))
    assert all(batch["image"].isfinite().all() for batch in batches)
    assert lazy.counters()["left_out"] >= 1


def test_boxes_of_the_procedural_world_enclose_their_objects(tmp_path):
    recipe = Recipe(
        task="detection2d",
        model=Model(dim=16, layers=1, heads=2, patch_size=8, encoding="absolute"),
        text=Text(dim=16, layers=1, heads=2, width=16, vocab=300, context=24),
        data=Data(source="scenes", image_size=32, train_size=12, val_size=6, cache=str(tmp_path), negatives=5),
        loop=Loop(batch_size=4, steps=2, log_every=1),
    )
    split = load_boxes2d(recipe.data, "train")
    from stringpe.data.scene_frames import load_frames

    kept = load_frames(recipe.data, "train")
    picture = split.coco.pictures[0]
    for (x0, y0, x1, y1), label in zip(picture.boxes, picture.labels, strict=True):
        slot = kept["kind"][0].tolist().index(label)
        mask = kept["instance"][0] == slot + 1
        if kept["kind"][0].tolist().count(label) == 1:
            inside = mask[int(y0) : int(y1), int(x0) : int(x1)]
            assert inside.sum() == mask.sum()
            assert inside[0].any()
            assert inside[:, -1].any()
    outcome = train(recipe, tmp_path / "run", quiet=True)
    assert 0 <= outcome["metrics"]["AP"] <= 1


def test_samples_name_what_they_show(task):
    samples = task.samples(5)
    assert samples[0].image.shape == (64, 64, 3)
    assert samples[0].caption == "nothing"
    assert samples[1].caption in ("red ball", "green box", "blue pen")


def test_wrong_recipes_say_what_to_do(recipe):
    def changed(**data):
        return create(replace(recipe, data=replace(recipe.data, **data)))

    with pytest.raises(ValueError, match=r"data.source=folder does not serve the task detection2d"):
        changed(source="folder")
    with pytest.raises(ValueError, match=r"sees RGB alone: set model.depth=none, got 'lift'"):
        create(replace(recipe, model=replace(recipe.model, depth="lift")))
    with pytest.raises(ValueError, match=r"data.negatives must be at least 0, got -1"):
        changed(negatives=-1)
    with pytest.raises(ValueError, match=r"there is no .*ain.json beside .*: give data.train_boxes"):
        changed(train=recipe.data.train.replace("train.tar", "*ain.tar"))


def test_the_text_tower_learns_at_its_own_rate(task, recipe):
    model = task.model()
    optim = replace(recipe.optim, lr=1e-3, text_lr_scale=0.1, weight_decay=0.1)
    groups = Detection2D(replace(recipe, optim=optim)).parameter_groups(model)
    text = {id(p) for p in model.text.parameters()}
    for group in groups:
        assert len({id(p) in text for p in group["params"]}) == 1
        slow = id(group["params"][0]) in text
        assert group["lr"] == pytest.approx(1e-4 if slow else 1e-3)
    wanted = {id(p) for p in model.parameters() if p.numel()}
    assert {id(p) for group in groups for p in group["params"] if p.numel()} == wanted
