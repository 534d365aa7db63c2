import numpy as np
import pytest
import torch

from stringpe import recipes
from stringpe.data.cache import forget_all
from stringpe.data.clouds import draw_rotations, load_clouds, turn
from stringpe.data.place import Place
from stringpe.recipes.overrides import override
from stringpe.tasks import create
from stringpe.training import train

KINDS = 3


def shape(kind, points, dice):
    """A sphere, a rod or a disc, of some size, at some place: (points, 3)."""
    x = dice.normal(size=(points, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x *= [np.ones(3), [0.1, 0.1, 1.0], [1.0, 1.0, 0.1]][kind]
    turned = x @ np.linalg.qr(dice.normal(size=(3, 3)))[0]
    return dice.uniform(0.1, 50) * turned + dice.normal(size=3)


def write_clouds(path, train=48, test=30, points=40, **more):
    dice, parts = np.random.default_rng(0), {}
    for split, count in (("train", train), ("test", test)):
        label = np.arange(count) % KINDS
        parts[f"{split}_points"] = np.stack([shape(k, points, dice) for k in label]).astype(np.float32)
        parts[f"{split}_label"] = label.astype(np.uint8)
    np.savez(path, **(parts | more))
    return path


@pytest.fixture
def recipe(tmp_path):
    forget_all()
    own = [f"data.train={write_clouds(tmp_path / 'shapes.npz')}", f"data.cache={tmp_path / 'cache'}"]
    small = ["data.num_classes=3", "data.groups=8", "data.group_size=6", "model.dim=24", "model.layers=1"]
    small += ["model.heads=2", "model.drop_path=0", "loop.batch_size=16", "loop.steps=3", "loop.compile=false"]
    small += ["loop.precision=no", "optim.warmup_steps=5", "loop.eval_every=0", "loop.eval_batch=16"]
    return recipes.load("modelnet10", [*own, *small])


def test_clouds_are_centred_and_of_one_size_and_cut_into_groups(recipe):
    clouds = load_clouds(recipe.data, "train")
    assert clouds["points"].shape == (48, 8, 6, 3)
    assert clouds["centres"].shape == (48, 8, 3)
    assert clouds["points"].norm(dim=-1).amax() <= 1 + 1e-5
    assert clouds["centres"].norm(dim=-1).amax(1).allclose(torch.ones(48), atol=1e-5)  # the farthest is the first
    spread = (clouds["points"] - clouds["centres"][:, :, None]).norm(dim=-1)
    assert spread.amin(-1).abs().max() < 1e-6  # a centre belongs to its own group
    assert len(load_clouds(override(recipe, ["data.val_size=4"]).data, "val")["label"]) == 4


def test_groups_are_found_once(recipe, monkeypatch):
    first = load_clouds(recipe.data, "train")
    forget_all()
    monkeypatch.setattr("stringpe.data.clouds.group_points", None)
    assert torch.equal(load_clouds(recipe.data, "train")["points"], first["points"])


@pytest.mark.parametrize("kind", ["upright", "any"])
def test_rotations_are_rotations(kind):
    made = draw_rotations(2000, kind, torch.Generator().manual_seed(0)).double()
    assert (made @ made.mT - torch.eye(3)).abs().max() < 1e-5
    assert torch.linalg.det(made).allclose(torch.ones(2000).double())
    up = made[:, :, 2]
    assert (up[:, 2] == 1).all() == (kind == "upright")
    assert up.mean(0).abs().max() < 0.1 or kind == "upright"


def test_turning_keeps_offsets_and_centres_together():
    points, centres = torch.randn(2, 3, 4, 3), torch.randn(2, 3, 3)
    rotation = draw_rotations(2, "any", torch.Generator().manual_seed(0))
    p, c = turn(points, centres, rotation)
    torch.testing.assert_close(p[1, 2, 3], rotation[1] @ points[1, 2, 3])
    torch.testing.assert_close(c[1, 2], rotation[1] @ centres[1, 2])


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


def test_the_design_builds_every_row(recipe):
    from stringpe.training.runs import row_changes

    for row in recipes.load_design("modelnet10").rows:
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
        ("augment.turn=sideways", "augment.turn is one of 'none', 'upright', 'any'"),
        ("model.encoding=absolute", "points have no grid for a learned table"),
        ("model.patch_size=4", "model.patch_size=4 would change nothing"),
    ],
)
def test_mistakes_are_answered_in_words(recipe, change, said):
    with pytest.raises(ValueError, match=said):
        create(override(recipe, [change]))


def test_files_that_hold_something_else_are_refused(recipe, tmp_path):
    np.savez(tmp_path / "other.npz", points=np.zeros((2, 4, 3)))
    with pytest.raises(ValueError, match="but not train_points and train_label"):
        create(override(recipe, [f"data.train={tmp_path / 'other.npz'}"]))
    write_clouds(tmp_path / "bad.npz", train_points=np.full((48, 40, 3), np.nan, np.float32))
    with pytest.raises(ValueError, match="not finite"):
        create(override(recipe, [f"data.train={tmp_path / 'bad.npz'}"]))
    write_clouds(tmp_path / "flat.npz", train_points=np.zeros((48, 40, 2), np.float32))
    with pytest.raises(ValueError, match=r"must be \(n, p, 3\)"):
        create(override(recipe, [f"data.train={tmp_path / 'flat.npz'}"]))
