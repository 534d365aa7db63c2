import pytest
import torch

from cloud_files import write_clouds
from stringpe import recipes
from stringpe.data.cache import forget_all
from stringpe.data.order import Place
from stringpe.recipes.overrides import override
from stringpe.tasks import create
from stringpe.training import train
from stringpe.training.comparison_runs import row_changes


@pytest.fixture
def recipe(tmp_path):
    forget_all()
    own = [f"data.train={write_clouds(tmp_path / 'shapes.npz')}", f"data.cache={tmp_path / 'cache'}"]
    small = ["data.num_classes=3", "data.groups=8", "data.group_size=6", "model.dim=24", "model.layers=1"]
    small += ["model.heads=2", "model.drop_path=0", "loop.batch_size=16", "loop.steps=3", "loop.compile=false"]
    small += ["loop.precision=no", "optim.warmup_steps=5", "loop.eval_every=0", "loop.eval_batch=16"]
    return recipes.load("modelnet10", [*own, *small])


def test_poses_are_new_in_every_step_and_do_not_depend_on_the_start_or_the_processes(recipe):
    task = create(recipe)
    whole = [batch for batch, _ in zip(task.batches(0, Place()), range(4), strict=False)]
    again = next(task.batches(3, Place()))
    halves = [next(task.batches(3, Place(rank, 2))) for rank in range(2)]
    for name in ("points", "centres", "label"):
        assert torch.equal(whole[3][name], again[name])
        assert torch.equal(torch.cat([half[name] for half in halves]), again[name])
    still = next(create(override(recipe, ["augment.turn=none"])).batches(0, Place()))
    assert torch.equal(still["label"], whole[0]["label"])
    assert (still["points"] - whole[0]["points"]).abs().max() > 0.1
    torch.testing.assert_close(still["points"].norm(dim=-1), whole[0]["points"].norm(dim=-1))


def test_a_model_learns_shapes_in_any_pose(recipe, tmp_path):
    outcome = train(override(recipe, ["loop.steps=60", "optim.lr=0.004"]), tmp_path / "run", quiet=True)["metrics"]
    assert outcome["top1"] > 0.7  # guessing names one in three
    assert outcome["turned"] > 0.7
    assert outcome["moved"] == outcome["top1"]  # Cayley-STRING sees relative positions only
    assert outcome["count"] == 30


def test_the_small_recipe_stretches_clouds_in_their_own_frame_and_has_no_poses_to_change(recipe, tmp_path):
    own = [f"data.{key}={getattr(recipe.data, key)}" for key in ("train", "cache", "num_classes", "groups")]
    small = recipes.load("modelnet10_small", [*own, "data.group_size=6", "loop.batch_size=16", "loop.steps=60"])
    batch, again = (next(create(small).batches(3, Place())) for _ in range(2))
    halves = [next(create(small).batches(3, Place(rank, 2))) for rank in range(2)]
    assert torch.equal(batch["points"], again["points"])
    assert torch.equal(torch.cat([half["points"] for half in halves]), batch["points"])
    still = next(create(override(small, ["augment.stretch=0"])).batches(3, Place()))
    ratio = batch["centres"] / still["centres"]
    assert ratio.amin() >= 0.85 - 1e-5
    assert ratio.amax() <= 1.15 + 1e-5
    assert ratio.amax() > 1.05
    outcome = train(small, tmp_path / "run", quiet=True)["metrics"]
    assert outcome["top1"] > 0.7  # guessing names one in three
    assert "turned" not in outcome


@pytest.mark.parametrize("name", ["modelnet10", "modelnet10_small"])
def test_the_design_builds_every_row(recipe, name):
    for row in recipes.load_design(name).rows:
        create(override(recipe, ["model.dim=48", *row_changes(row)])).model()


def test_what_is_shown_to_people(recipe):
    shown = create(recipe).samples(2)
    assert [sample.caption for sample in shown] == ["class 0", "class 1"]
    assert shown[0].image.shape == (96, 96, 3)
    assert (shown[0].image < 255).any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.train=nowhere.npz", "there is no file nowhere.npz"),
        ("data.num_classes=2", "has labels from 0 to 2: set data.num_classes, now 2"),
        ("data.groups=41", "data.groups=41 of data.group_size=6 points need as many points per cloud"),
        ("augment.turn=sideways", "augment.turn is one of 'none', 'upright', 'any', 'half'"),
        ("data.pose=upside-down", "data.pose is one of 'stored', 'principal'"),
        ("model.pool=map", r"pool of a point transformer must be one of mean, mean\+max, got 'map'"),
        ("model.encoding=absolute", "points have no grid for a learned table"),
        ("model.patch_size=4", "model.patch_size=4 would change nothing"),
    ],
)
def test_mistakes_are_answered_in_words(recipe, change, said):
    with pytest.raises(ValueError, match=said):
        create(override(recipe, [change]))
