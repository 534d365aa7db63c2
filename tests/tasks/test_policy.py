import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
from policy_toy import ENERGY
from stand_in import demonstration

from stringpe import tasks
from stringpe.data.order import Place
from stringpe.recipes.overrides import override
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.pack import pack
from stringpe.robots.data.writer import Writer
from stringpe.robots.policies.base import PolicySpec
from stringpe.tasks.policy import load_policy, new_policy
from stringpe.training import evaluate, train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*image encoder starts at random")]


@pytest.fixture
def folder(reach_folder):
    return reach_folder


@pytest.fixture
def recipe(reach_recipe):
    return reach_recipe


def test_trains_evaluates_and_acts(recipe, tmp_path):
    outcome = train(recipe, tmp_path / "run", quiet=True)
    assert 0 <= outcome["metrics"]["near"] <= 1
    assert outcome["metrics"]["error"] > 0
    again = evaluate(tmp_path / "run")
    for name in ("near", "error", "loss"):  # the averaged weights, with the same noise
        assert again[name] == pytest.approx(outcome["metrics"][name], rel=1e-4)
    policy = load_policy(tmp_path / "run")
    assert policy.spec == PolicySpec(("top",), 2, 2, 16, 10.0, ("reach 0", "reach 1"))
    action = policy.select_action({k: v[0] for k, v in demonstration(3).items() if k != "action"})
    demos = tasks.create(recipe).demos
    assert (action >= demos.action.amin(0).numpy() - 1e-5).all()
    assert (action <= demos.action.amax(0).numpy() + 1e-5).all()
    config = json.loads((tmp_path / "run/checkpoints/000006/pretrained_model/config.json").read_text())
    assert config["policy"]["kind"] == "diffusion"


@pytest.mark.parametrize("changes", [ENERGY, ["model.depth=lift+normals", "model.encoding=circulant"]])
def test_other_kinds_train_through_the_same_loop(recipe, tmp_path, changes):
    short = override(recipe, [*changes, "loop.steps=2", "loop.eval_every=0"])
    assert train(short, tmp_path / "run", quiet=True)["metrics"]["count"] == 8


def test_success_in_simulation_is_a_curve_over_training(recipe, tmp_path):
    simulated = override(recipe, ["policy.simulate=stand_in:Reach", "policy.trials=3", "loop.eval_every=3"])
    plain = train(recipe, tmp_path / "plain", quiet=True)
    found = train(simulated, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    curve = {line["step"]: line["val/success"] for line in lines if "val/success" in line}
    assert list(curve) == [3, 6]
    assert all(round(3 * share, 6) in (0, 1, 2, 3) for share in curve.values())
    assert found["metrics"]["loss"] == plain["metrics"]["loss"]  # trials take nothing from training
    assert "success" not in plain["metrics"]
    several = override(simulated, ["policy.simulate=stand_in:Reach, stand_in:Touch", "loop.eval_every=0"])
    both = train(several, tmp_path / "both", quiet=True)["metrics"]
    assert both["success_stand_in:Reach"] == found["metrics"]["success"]
    assert both["success"] == (both["success_stand_in:Reach"] + both["success_stand_in:Touch"]) / 2
    with pytest.raises(ValueError, match=r"policy.trials must be at least 1, got 0"):
        tasks.create(override(simulated, ["policy.trials=0"]))


def test_held_out_episodes_are_not_trained_on(recipe):
    task = tasks.create(recipe)
    episode = task.demos.episode[task.demos.seen]
    trained, validated = set(episode[task.train].tolist()), set(episode[task.held_out].tolist())
    assert len(validated) == 2
    assert trained | validated == set(range(8))
    assert not trained & validated
    other = tasks.create(replace(recipe, seed=5))
    torch.testing.assert_close(other.held_out, task.held_out)  # the same for every seed of a comparison


def test_batches_depend_on_the_step_alone(recipe):
    task = tasks.create(override(recipe, ["augment.shift=2", "augment.colour=0.2"]))
    stream = task.batches(0, Place())
    batches = [next(stream) for _ in range(3)]
    later = next(task.batches(2, Place()))
    halves = [next(task.batches(2, Place(rank, 2))) for rank in range(2)]
    assert batches[2].keys() == {"observation.state", "observation.images.top", "action", "task"}
    for key, value in batches[2].items():
        torch.testing.assert_close(later[key], value)
        torch.testing.assert_close(torch.cat([h[key] for h in halves]), value)


def test_a_pack_trains_as_its_folder(recipe, folder, tmp_path):
    path = pack(Dataset(folder), tmp_path / "reach.safetensors", size=16)
    first = next(tasks.create(recipe).batches(0, Place()))
    packed = next(tasks.create(override(recipe, [f"data.train={path}"])).batches(0, Place()))
    for key, value in first.items():
        torch.testing.assert_close(packed[key], value)
    both = tasks.create(override(recipe, [f"data.train={path},{folder}"]))
    assert int(both.demos.episode.max()) == 15
    assert both.demos.tasks == ("reach 0", "reach 1")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("policy.cameras=wrist", "no cameras wrist; it has top"),
        ("data.train=", "needs data.train=…, robot demonstrations, a data set's folder or a pack"),
        ("data.train=nowhere", "there is no data set at nowhere"),
        ("data.source=scenes", "data.source=scenes does not serve the task policy: It takes demos"),
        ("policy.held_out=0", "0 < policy.held_out < 1"),
    ],
)
def test_wrong_recipes_say_what_to_do(recipe, change, text):
    with pytest.raises(ValueError, match=text):
        tasks.create(override(recipe, [change]))


def test_broken_episodes_are_counted_in_the_run(folder, recipe, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    sorted(copy.glob("data/*/*.parquet"))[1].write_bytes(b"PAR1")
    with pytest.warns(RuntimeWarning, match="are left out|were left out"):
        task = tasks.create(override(recipe, [f"data.train={copy}"]))
    assert task.counters() == {"broken_episodes": 1.0}


def test_samples_show_every_camera(recipe):
    shown = tasks.create(recipe).samples(3)
    assert len(shown) == 3
    assert shown[0].image.shape == (16, 16, 3)
    assert shown[0].caption.startswith("reach")


def test_first_frames_are_scored_by_themselves(recipe):
    """A policy that is right at the beginning of every episode and off by the whole range everywhere else."""
    task = tasks.create(recipe)
    episode = task.demos.episode[task.demos.seen]
    for i in task.first.tolist():
        assert i == 0 or episode[i - 1] != episode[i]
    assert set(episode[task.first].tolist()) == set(episode[task.held_out].tolist())
    beginnings = task.demos.state[task.demos.seen[task.first]]
    spread = task.demos.action.amax(0) - task.demos.action.amin(0)

    def half_right(batch, predict=False):
        if not predict:
            return torch.zeros(())
        begins = (batch["observation.state"][:, None] == beginnings).all(-1).any(-1)
        return batch["action"] + torch.where(begins, 0.0, 1.0)[:, None, None] * spread

    found = task.evaluate(half_right, Place(0, 1, torch.device("cpu")))
    assert found["near_first"] == pytest.approx(1.0)
    assert found["error_first"] == pytest.approx(0.0, abs=1e-6)
    assert 0.5 < found["error"] < 1


def test_a_share_of_a_batch_comes_from_first_frames(recipe):
    demos = tasks.create(recipe).demos
    begins = [0, *(i for i in range(1, len(demos.episode)) if demos.episode[i] != demos.episode[i - 1])]
    begin = {tuple(row) for row in demos.state[begins].tolist()}
    place, shares = Place(0, 1, torch.device("cpu")), {}
    for first in (0.0, 0.5, 1.0):
        task = tasks.create(override(recipe, [f"policy.first={first}", "loop.batch_size=200"]))
        states = next(task.batches(0, place))["observation.state"].tolist()
        shares[first] = sum(tuple(state) in begin for state in states) / len(states)
    assert shares[0.0] < 0.2 < 0.4 < shares[0.5] < 0.7
    assert shares[1.0] == 1


def test_pretraining_on_many_tasks_then_tuning_on_one(recipe, folder, tmp_path):
    other = tmp_path / "other"
    with Writer(other, fps=10) as writer:
        for seed in range(20, 24):
            writer.add(demonstration(seed, depth=True), task="reach it again", seed=seed)
    many = override(recipe, [f"data.train={folder},{other}", "loop.steps=2", "loop.eval_every=0"])
    train(many, tmp_path / "many", quiet=True)
    first = load_policy(tmp_path / "many")
    assert first.spec.tasks == ("reach 0", "reach 1", "reach it again")
    tuning = override(recipe, [f"data.train={other}", f"model.start={tmp_path / 'many'}", "loop.steps=1"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # its encoder does not start at random
        started = tasks.create(tuning).model()
    assert started.spec.tasks == ("reach it again",)
    for name, value in first.state_dict().items():
        if name != "about":
            torch.testing.assert_close(started.state_dict()[name], value, msg=name)
    train(tuning, tmp_path / "one", quiet=True)
    shutil.rmtree(tmp_path / "many")
    assert evaluate(tmp_path / "one")["count"] > 0  # what it started from may be gone


def test_what_a_policy_cannot_start_from_is_refused(recipe, folder, tmp_path):
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    start = f"model.start={tmp_path / 'run'}"
    for changes, text in (
        (["policy.dim=64"], "are not those of its recipe"),
        (["model.encoding=rope"], "model.encoding=cayley there, rope here"),
        (["data.image_size=32"], "was trained with image_size=16, but these demonstrations have 32"),
    ):
        with pytest.raises(ValueError, match=text):
            tasks.create(override(recipe, [start, *changes])).model()


def test_a_started_policy_keeps_its_scale_and_widens_its_range(recipe, tmp_path):
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    old, task = load_policy(tmp_path / "run"), tasks.create(override(recipe, [f"model.start={tmp_path / 'run'}"]))
    task.demos.action[0, 0] = 3.0
    task.demos.state.add_(5.0)
    new = task.model()
    task.demos.action[0, 0] = 0.0  # the set is shared by the tests of this process
    task.demos.state.sub_(5.0)
    torch.testing.assert_close(new.state_mean, old.state_mean)
    assert new.action_high[0] == 3
    assert new.action_high[1] == old.action_high[1]


def test_an_unknown_kind_is_refused(recipe):
    with pytest.raises(ValueError, match=r"policy.kind is one of 'diffusion', 'energy', got 'flow'"):
        new_policy(override(recipe, ["policy.kind=flow"]), PolicySpec(("top",), 2, 2, 16, 10.0))
