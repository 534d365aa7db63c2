import pytest
import torch

import stringpe
from stringpe import recipes
from stringpe.data.order import Place
from stringpe.models.blocks import Block
from stringpe.recipes.design import row_changes
from stringpe.tasks import create
from stringpe.tasks.relations import POINTS, SeedTransformers, draw_points, nearest_label
from stringpe.training import train

ROWS = recipes.load_design("relations").rows
SMALL = ["loop.batch_size=6", "loop.steps=3", "data.val_size=10", "model.dim=32", "model.heads=2"]


def small(*changes):
    return recipes.load("relations", [*SMALL, *changes])


def batch(count, seed=0):
    made = [draw_points(count, torch.Generator().manual_seed(seed + i)) for i in range(2)]
    return tuple(torch.stack(parts, 1) for parts in zip(*made, strict=True))


def test_the_nearest_in_a_stretched_metric_worked_by_hand():
    coords = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.5]])
    labels = torch.tensor([5, 6, 7])
    assert nearest_label(labels, coords, torch.eye(2)).tolist() == [6, 5, 5]
    stretched = torch.diag(torch.tensor([1.0, 0.5]))  # the second axis counts half
    assert nearest_label(labels, coords, stretched).tolist() == [7, 5, 5]


def test_larger_sets_have_as_many_points_per_volume():
    labels, coords = draw_points(20, torch.Generator().manual_seed(0), growth=2)
    assert labels.shape == (20, 8 * POINTS)
    assert coords.shape == (20, 8 * POINTS, 3)
    assert 15.5 < coords.max() < 16
    assert coords.min() < 0.5


def test_the_nearest_of_many_points_is_found_without_loss_of_digits():
    """Distances by products of coordinates, as torch takes them from 26 points on, confuse near points far away."""
    coords = torch.rand(4, 128, 3, generator=torch.Generator().manual_seed(0)) * 16 + 1000
    labels = torch.arange(128).expand(4, -1)
    exact = coords.double()
    distance = (exact[:, :, None] - exact[:, None]).norm(dim=-1)
    distance.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    assert torch.equal(nearest_label(labels, coords, torch.eye(3)), distance.argmin(-1))


def test_larger_sets_are_scored_beside_those_of_training():
    metrics = {}
    for size in ("10", "40"):
        task = create(small(f"data.val_size={size}", "loop.seeds=2"))
        metrics[size] = task.evaluate(task.model(), Place())
        assert metrics[size]["count"] == int(size) * POINTS
    assert 0 < metrics["40"]["larger"] < 0.5
    assert metrics["40"]["larger"] == pytest.approx(
        sum(metrics["40"][f"seed{seed}/larger"] for seed in (0, 1)) / 2, abs=1e-12
    )


def test_answers_do_not_change_when_everything_moves():
    task = create(small())
    labels, coords = draw_points(50, torch.Generator().manual_seed(0))
    assert torch.equal(nearest_label(labels, coords, task.axes), nearest_label(labels, coords + 64, task.axes))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("row", ROWS)
def test_seeds_in_one_step_are_seeds_alone(row, attention):
    """Each of two stacked models gives what it gives alone, gradients included."""
    model = small(*row_changes(row), f"model.attention={attention}").model
    labels, coords = batch(3)
    stacked = SeedTransformers(model, [0, 1])
    stacked(labels, coords).square().sum().backward()
    for i in range(2):
        alone = SeedTransformers(model, [i])
        out = alone(labels[:, i : i + 1], coords[:, i : i + 1])
        torch.testing.assert_close(out[:, 0], stacked(labels, coords)[:, i], rtol=1e-4, atol=1e-5)
        out.square().sum().backward()
        ours, theirs = stacked.gradients_by_seed()[i], alone.gradients_by_seed()[0]
        assert len(ours) == len(theirs) == sum(p.grad is not None for p in alone.parameters())
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["rope", "rope_mixed", "circulant", "cayley"])
def test_the_model_is_the_library_s_own_attention(name):
    """The stacked layer against `stringpe.Attention` inside a block, with the same weights."""
    model = SeedTransformers(small(f"model.encoding={name}", "model.layers=1").model, [3])
    weights, encoding = model.blocks[0], model.encodings[0][0]
    if name == "cayley":
        torch.nn.init.normal_(encoding.basis.weight, std=0.3)
    attention = stringpe.Attention(32, 2, encoding=encoding, bias=False)
    block = Block(32, attention, 32, 0.0, 0.0)
    block.mlp[1] = torch.nn.ReLU()
    with torch.no_grad():
        attention.qkv.weight.copy_(torch.cat([weights["query_key"][0], weights["value"][0]]))
        attention.out.weight.copy_(weights["out"][0])
        for layer, key in ((block.mlp[0], "up"), (block.mlp[3], "down")):
            layer.weight.copy_(weights[key][0])
            layer.bias.zero_()
    labels, coords = draw_points(4, torch.Generator().manual_seed(0))
    tokens = block(model.label[0][labels], coords)
    wanted = torch.nn.functional.layer_norm(tokens, (32,), eps=1e-6) @ model.head[0].T
    torch.testing.assert_close(model(labels[:, None], coords[:, None])[:, 0], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("row", ROWS)
def test_rows_of_one_seed_share_their_common_start(row):
    one = SeedTransformers(small(*row_changes("absolute")).model, [4]).state_dict()
    other = SeedTransformers(small(*row_changes(row)).model, [3, 4]).state_dict()
    common = [name for name in one if name in other]
    assert len(common) == 2 + 2 * 5
    assert all(torch.equal(one[name][0], other[name][1]) for name in common)
    assert not torch.equal(other["head"][0], other["head"][1])


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("row", [row for row in ROWS if row != "absolute"])
def test_rotary_rows_do_not_see_a_shift_and_absolute_ones_do(row, attention):
    labels, coords = batch(5)
    for name, invariant in ((row, True), ("absolute", False)):
        model = SeedTransformers(small(*row_changes(name), f"model.attention={attention}").model, [0, 1])
        gap = (model(labels, coords + 32) - model(labels, coords)).abs().max()
        assert (gap < 1e-3) == invariant, name


def test_frozen_projections_stay_as_they_start(tmp_path):
    from stringpe.io.checkpoint import read_model

    recipe = small("model.freeze=qk", "loop.seeds=2", "model.encoding=cayley")
    start = create(recipe).model().state_dict()
    train(recipe, tmp_path, quiet=True)
    _, weights = read_model(tmp_path)
    for name, tensor in start.items():
        same = "query_key" in name or name.endswith(".index")
        assert torch.equal(tensor, weights[name]) == same, name


def test_training_seeds_together_is_training_them_apart(tmp_path):
    """Clipping, decay and the schedule act on each seed alone."""
    strict = ["optim.clip=0.05", "optim.weight_decay=0.5", "model.encoding=cayley"]  # every step is clipped
    both = train(small(*strict, "loop.seeds=2", "loop.steps=6"), tmp_path / "both", quiet=True)
    for seed in range(2):
        alone = train(small(*strict, f"seed={seed}", "loop.steps=6"), tmp_path / f"{seed}", quiet=True)
        assert alone["metrics"]["loss"] == pytest.approx(both["metrics"][f"seed{seed}/loss"], abs=1e-4)
    assert both["parameters"] == alone["parameters"]


def test_metrics_are_means_over_seeds_and_come_by_seed():
    task = create(small("loop.seeds=3", "seed=5", "model.encoding=rope"))
    model = task.model()
    with torch.no_grad():
        found = task.evaluate(model, Place())
    assert {f"seed{s}/{m}" for s in (5, 6, 7) for m in ("top1", "moved", "loss")} < set(found)
    assert found["top1"] == pytest.approx(sum(found[f"seed{s}/top1"] for s in (5, 6, 7)) / 3)
    assert found["top1"] * task.recipe.data.val_size * POINTS * 3 == pytest.approx(
        round(found["top1"] * task.recipe.data.val_size * POINTS * 3)
    )
    assert found["moved"] == found["top1"]


@pytest.mark.slow
def test_an_encoding_learns_the_tilted_metric_and_one_along_the_axes_does_not(tmp_path):
    scores = {}
    for row in ("rope", "rope_mixed"):
        recipe = recipes.load("relations", [*row_changes(row), "loop.steps=80", "data.val_size=100"])
        scores[row] = train(recipe, tmp_path / row, quiet=True)["metrics"]["top1"]
    assert scores["rope_mixed"] > 0.5 > scores["rope"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["data.source=scenes"], "data.source=scenes does not serve the task relations"),
        (["model.attention=relu"], "model.attention of relations is softmax or linear"),
        (["model.freeze=v"], "model.freeze of relations is '' or 'qk'"),
        (["loop.seeds=0"], "loop.seeds"),
        (["model.encoding=cayly"], "did you mean 'cayley'"),
    ],
)
def test_mistakes_are_answered_in_words(changes, said):
    with pytest.raises(ValueError, match=said):
        create(small(*changes)).model()


def test_other_tasks_train_one_seed_per_run():
    with pytest.raises(ValueError, match=r"loop\.seeds"):
        create(recipes.load("tiny_imagenet100", ["loop.seeds=2", "data.source=synthetic", "data.train_size=8"]))
