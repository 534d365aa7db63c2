"""stringpe with the real LeRobot: data both ways, training, saving, reloading, evaluation. Run by make test-lerobot."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature, PreTrainedConfig
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.policies import make_policy, make_pre_post_processors
from lerobot.utils.import_utils import register_third_party_plugins

from stringpe.robots.data import demos
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.migrate import migrate
from stringpe.robots.data.writer import Writer

register_third_party_plugins()  # as LeRobot's commands do

BIN = Path(sys.executable).parent
SIZE = 32
TINY = [
    *("model.dim=32", "model.layers=1", "model.heads=2", "model.patch_size=8", "model.stem=patch"),
    *("policy.dim=32", "policy.heads=2", "policy.encoder_layers=1", "policy.decoder_layers=1"),
    *("policy.chunk=8", "policy.execute=4", f"data.image_size={SIZE}"),
]
KINDS = {"diffusion": ["policy.sample_steps=3"], "energy": ["policy.negatives=4", "policy.langevin_steps=2"]}


def run(*words):
    """Run a command to its end."""
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Demonstrations of KUKA pick with depth, as stringpe data demos writes them."""
    folder = tmp_path_factory.mktemp("data") / "pick"
    settings = demos.DemoSettings("KukaPick", size=(SIZE, SIZE), cameras=("front",), depth=True)
    assert demos.write(folder, 2, settings)[0] == 2
    return folder


@pytest.fixture(scope="session")
def trained(recorded, tmp_path_factory):
    """The run of a policy that stringpe trained for three steps."""
    folder = tmp_path_factory.mktemp("ours")
    recipe = [*TINY, *KINDS["diffusion"], f"data.train={recorded}", "policy.held_out=0.5", f"data.cache={folder}"]
    loop = ["loop.steps=3", "loop.batch_size=4", "loop.precision=no", "loop.compile=false"]
    run(BIN / "stringpe", "train", "kuka_small", *recipe, *loop, "--out", folder / "run")
    return folder / "run"


def make_frames(steps, unit="mm"):
    """Frames of an episode in LeRobot's form, smooth enough for a video."""
    rng = np.random.default_rng(steps)
    ys, xs = np.mgrid[0:64, 0:96]
    for t in range(steps):
        depth = 700 + 3 * xs + 2 * ys + 10 * t
        yield {
            "observation.state": rng.normal(size=3).astype(np.float32),
            "action": rng.normal(size=2).astype(np.float32),
            "observation.images.top": np.stack([xs * 2 + t, ys * 3, xs + ys], -1).astype(np.uint8),
            "observation.images.top_depth": (depth.astype(np.uint16) if unit == "mm" else np.float32(depth / 1000))[
                ..., None
            ],
        }


def write_theirs(folder, kind, unit):
    """Two episodes written by LeRobot; returns the frames."""
    names = ["height", "width", "channels"]
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": None},
        "action": {"dtype": "float32", "shape": (2,), "names": None},
        "observation.images.top": {"dtype": kind, "shape": (64, 96, 3), "names": names},
        "observation.images.top_depth": {
            "dtype": kind,
            "shape": (64, 96, 1),
            "names": names,
            "info": {"is_depth_map": True},
        },
    }
    data = LeRobotDataset.create("some/thing", fps=10, features=features, root=folder, use_videos=kind == "video")
    episodes = [list(make_frames(steps, unit)) for steps in (6, 8)]
    for number, episode in enumerate(episodes):
        for frame in episode:
            data.add_frame(frame | {"task": f"task {number}"})
        data.save_episode()
    data.finalize()
    return episodes


def test_lerobot_reads_our_demonstrations(recorded):
    ours, theirs = Dataset(recorded), LeRobotDataset("some/thing", root=recorded)
    assert (theirs.num_episodes, theirs.fps) == (2, 10)
    assert theirs.meta.depth_keys == ["observation.images.front_depth"]
    row = 0
    for number in range(2):
        episode = ours[number]
        for t in range(len(episode["action"])):
            frame = theirs[row]
            assert frame["task"] == ours.episodes[number].task
            assert (frame["index"], frame["episode_index"], frame["frame_index"]) == (row, number, t)
            for key in ("action", "observation.state"):
                np.testing.assert_array_equal(frame[key], episode[key][t])
            image = (255 * frame["observation.images.front"]).round().permute(1, 2, 0)
            np.testing.assert_array_equal(image, episode["observation.images.front"][t])
            depth = frame["observation.images.front_depth"][0]
            np.testing.assert_allclose(depth / 1000, episode["observation.depth.front"][t], atol=1e-6)
            row += 1
    assert row == len(theirs)
    deep = theirs.meta.stats["observation.images.front_depth"]
    assert deep["q01"] <= deep["q50"] <= deep["q99"]
    assert 300 < deep["mean"].item() < 5000  # millimetres, as the pictures


def test_lerobot_reads_poses_and_what_is_known_of_cameras(tmp_path):
    rng = np.random.default_rng(0)
    pose = rng.random((5, 4, 4)).astype(np.float32)
    frames = {
        "observation.state": rng.random((5, 2)).astype(np.float32),
        "action": rng.random((5, 2)).astype(np.float32),
        "observation.images.top": rng.integers(0, 255, (5, 16, 16, 3), np.uint8),
        "observation.camera.top.pose": pose,
    }
    with Writer(tmp_path / "new", fps=10, quality=0, cameras={"top": {"intrinsics": [[1.0]]}}) as writer:
        writer.add(frames, task="look")
    theirs = LeRobotDataset("some/thing", root=tmp_path / "new")
    np.testing.assert_array_equal(theirs[3]["observation.camera.top.pose"], pose[3])
    assert theirs.meta.features["observation.images.top"]["info"]["intrinsics"] == [[1.0]]


def test_lerobots_viewer_shows_an_episode(recorded, tmp_path):
    run(
        *(BIN / "lerobot-dataset-viz", "--repo-id", "some/thing", "--root", recorded, "--episode-index", 1),
        *("--save", 1, "--output-dir", tmp_path, "--num-workers", 0),
    )
    (film,) = tmp_path.glob("*.rrd")
    steps = Dataset(recorded).episodes[1].length
    assert film.stat().st_size > 2 * SIZE * SIZE * steps  # the pictures and the depth of every step


@pytest.mark.parametrize("unit", ["mm", "m"])
@pytest.mark.parametrize("kind", ["image", "video"])
def test_we_read_what_lerobot_wrote(tmp_path, kind, unit):
    episodes = write_theirs(tmp_path / "theirs", kind, unit)
    ours, theirs = Dataset(tmp_path / "theirs"), LeRobotDataset("some/thing", root=tmp_path / "theirs")
    assert (ours.cameras, ours.depths) == (["top"], ["top"])
    assert [(e.length, e.task) for e in ours.episodes] == [(6, "task 0"), (8, "task 1")]
    for number, episode in enumerate(episodes):
        found = ours[number]
        for t, frame in enumerate(episode):
            same = theirs[ours.episodes[number].first + t]
            np.testing.assert_array_equal(found["action"][t], frame["action"])
            image = (255 * same["observation.images.top"]).round().permute(1, 2, 0)
            np.testing.assert_array_equal(found["observation.images.top"][t], image)
            depth = same["observation.images.top_depth"][0] / 1000  # LeRobot rounds to whole millimetres
            np.testing.assert_allclose(found["observation.depth.top"][t], depth, atol=0.501e-3)
    assert migrate(tmp_path / "theirs", tmp_path / "ours", quality=0) == (2, 0)
    again = LeRobotDataset("some/thing", root=tmp_path / "ours")
    for row in range(14):
        for key in ("action", "observation.images.top"):
            np.testing.assert_array_equal(again[row][key], theirs[row][key])


def new_config(kind="diffusion", depth="lift", **more):
    """The configuration of a tiny policy for two cameras."""
    config = PreTrainedConfig.get_choice_class("string")(
        kind=kind, depth=depth, changes=[*TINY, *KINDS[kind]], device="cpu", push_to_hub=False, **more
    )
    visual = FeatureType.VISUAL
    config.input_features = {"observation.state": PolicyFeature(FeatureType.STATE, (3,))}
    for name in ("top", "wrist"):
        config.input_features[f"observation.images.{name}"] = PolicyFeature(visual, (3, 48, 64))
        config.input_features[f"observation.images.{name}_depth"] = PolicyFeature(visual, (1, 48, 64))
    config.output_features = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
    return config


def new_batch(count=2):
    generator = torch.Generator().manual_seed(0)
    batch = {
        "observation.state": torch.randn(count, 3, generator=generator),
        "action": torch.rand(count, 8, 2, generator=generator),
        "task": ["pick", "place"][:count],
    }
    for name in ("top", "wrist"):
        batch[f"observation.images.{name}"] = torch.rand(count, 3, 48, 64, generator=generator)
        batch[f"observation.images.{name}_depth"] = 1000 * torch.rand(count, 1, 48, 64, generator=generator)
    return batch


@pytest.mark.parametrize("depth", ["none", "lift", "channel", "normals"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:the policy's image encoder starts at random")
def test_policies_learn_act_save_and_reload(tmp_path, kind, depth):
    from lerobot_policy_string.modeling_string import StringPolicy

    policy = StringPolicy(new_config(kind, depth, noise_seed=7))
    optimizer = torch.optim.AdamW(policy.get_optim_params(), lr=1e-2)
    for _ in range(4):  # gates that start at zero open one after the other
        optimizer.zero_grad()
        policy.forward(new_batch())[0].backward()
        optimizer.step()
    assert any(p.grad.abs().sum() > 0 for p in policy.model.observer.encoder.parameters())
    policy.eval()
    policy.save_pretrained(tmp_path)
    again = StringPolicy.from_pretrained(tmp_path)
    chunks = []
    for each in (policy, again):
        each.reset()
        chunks.append(each.predict_action_chunk(new_batch()))
        assert chunks[-1].shape == (2, 8, 2)
    torch.testing.assert_close(*chunks, rtol=0, atol=0)
    fresh = StringPolicy.from_pretrained(tmp_path)
    acted = [fresh.select_action(new_batch()) for _ in range(4)]
    torch.testing.assert_close(torch.stack(acted, 1), chunks[0][:, :4], rtol=0, atol=0)
    changed = new_batch()
    for name in ("top", "wrist"):
        changed[f"observation.images.{name}_depth"] *= torch.linspace(0.5, 2, 64)
    seen = [policy.model.observe(policy._observation(batch)) for batch in (new_batch(), changed)]
    assert torch.equal(*seen) == (depth == "none")


@pytest.mark.filterwarnings("ignore:the policy's image encoder starts at random")
def test_processors_normalise_and_the_policy_does_not(recorded, tmp_path):
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

    meta = LeRobotDatasetMetadata("some/thing", root=recorded)
    config = PreTrainedConfig.get_choice_class("string")(changes=[*TINY, *KINDS["diffusion"]], device="cpu")
    policy = make_policy(config, ds_meta=meta)
    before, after = make_pre_post_processors(config, dataset_stats=meta.stats)
    frame = LeRobotDataset("some/thing", root=recorded)[3]
    batch = before(frame)
    mean, std = (torch.from_numpy(meta.stats["observation.state"][name]) for name in ("mean", "std"))
    state = ((frame["observation.state"] - mean) / std)[std > 1e-4]
    torch.testing.assert_close(batch["observation.state"][0][std > 1e-4], state.float(), rtol=1e-4, atol=1e-4)
    assert batch["observation.state"].abs().max() < 50  # no joint that stays is blown up
    chunk = policy.predict_action_chunk(batch)
    assert chunk.abs().max() <= 1
    action = after(chunk[:, 0])
    low, high = (torch.from_numpy(meta.stats["action"][name]) for name in ("min", "max"))
    assert ((action[0] >= low - 1e-5) & (action[0] <= high + 1e-5)).all()
    assert policy.config.tasks == ["pick up the green block"]
    assert set(policy.config.input_features) == {
        "observation.state",
        "observation.images.front",
        "observation.images.front_depth",
    }


def test_wrong_settings_are_told_in_words():
    from lerobot_policy_string.modeling_string import StringPolicy

    with pytest.raises(ValueError, match="did you mean 'circulant'"):
        new_config(encoding="circulent")
    with pytest.raises(ValueError, match=r"augment\.shift would change nothing"):
        PreTrainedConfig.get_choice_class("string")(changes=["augment.shift=2"], device="cpu")
    config = new_config()
    del config.input_features["observation.images.wrist_depth"]
    with pytest.raises(ValueError, match=r"depth=lift in the camera frame needs observation\.images\.wrist_depth"):
        StringPolicy(config)
    with pytest.raises(ValueError, match="no camera side; there are top, wrist"):
        StringPolicy(new_config(cameras=["side"]))


def test_a_policy_is_trained_and_evaluated_by_lerobots_commands(recorded, tmp_path):
    out = tmp_path / "run"
    run(
        *(BIN / "lerobot-train", "--policy.type=string", "--policy.depth=lift", "--policy.device=cpu"),
        *("--policy.push_to_hub=false", f"--policy.changes={json.dumps([*TINY, *KINDS['diffusion']])}"),
        *("--dataset.repo_id=some/thing", f"--dataset.root={recorded}", f"--output_dir={out}"),
        *("--steps=4", "--batch_size=4", "--num_workers=0", "--save_freq=4", "--log_freq=1", "--env_eval_freq=0"),
        *("--wandb.enable=false", "--seed=0"),
    )
    saved = out / "checkpoints" / "last" / "pretrained_model"
    assert (saved / "model.safetensors").exists()
    found = evaluate_by_lerobot(saved, tmp_path / "eval", episodes=1)
    assert len(found) == 1
    assert found[0]["seed"] == 1_000_000


def test_a_policy_in_the_world_frame_is_trained_and_evaluated(recorded, tmp_path):
    from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

    meta = LeRobotDatasetMetadata("some/thing", root=recorded)
    changes = [*TINY, *KINDS["diffusion"], "policy.frame=world"]
    with pytest.warns(UserWarning, match="starts at random"):
        policy = make_policy(
            PreTrainedConfig.get_choice_class("string")(depth="none", changes=changes, device="cpu"), ds_meta=meta
        )
    before, after = make_pre_post_processors(policy.config, dataset_stats=meta.stats)
    batch = before(LeRobotDataset("some/thing", root=recorded)[3])
    seen = policy.model.observe(policy._observation(batch))
    moved = dict(batch)
    moved["observation.camera.front.pose"] = batch["observation.camera.front.pose"].clone()
    moved["observation.camera.front.pose"][..., 2, 3] += 0.3
    assert not torch.equal(seen, policy.model.observe(policy._observation(moved)))
    for each in (policy, before, after):
        each.save_pretrained(tmp_path / "saved")
    found = evaluate_by_lerobot(tmp_path / "saved", tmp_path / "eval", 1, "--env.calibration=true")
    assert len(found) == 1


def evaluate_by_lerobot(policy, out, episodes, *more):
    """Trials of lerobot-eval on the seeds of stringpe eval: what eval_info.json says of each."""
    run(
        *(BIN / "lerobot-eval", f"--policy.path={policy}", "--policy.device=cpu", f"--output_dir={out}", *more),
        *("--env.type=string", "--env.task=KukaPick", f"--env.size={SIZE}", '--env.cameras=["front"]'),
        *('--env.options=["max_steps=12"]', f"--eval.n_episodes={episodes}", "--eval.batch_size=1"),
        *("--eval.use_async_envs=false", "--seed=1000000"),
    )
    info = json.loads((out / "eval_info.json").read_text())
    metrics = info["per_task"][0]["metrics"]
    rows = zip(metrics["sum_rewards"], metrics["successes"], strict=True)
    return [{"seed": 1_000_000 + i, "sum_reward": total, "success": good} for i, (total, good) in enumerate(rows)]


def test_an_encoder_starts_from_our_checkpoint(trained):
    from lerobot_policy_string.modeling_string import StringPolicy

    from stringpe.tasks.load import load_run

    policy = StringPolicy(new_config(encoder=str(trained)))
    wanted = load_run(trained).model.observer.encoder.state_dict()
    found = policy.model.observer.encoder.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


def test_lerobot_eval_and_stringpe_eval_agree(trained, tmp_path):
    """The same weights from the same initial states: once behind LeRobot's processors, once without."""
    from lerobot_policy_string.convert import convert

    run(
        *(BIN / "stringpe", "eval", trained, "max_steps=12", "--env", "KukaPick", "--trials", 2),
        *("--out", tmp_path / "ours", "--jobs", 1),
    )
    theirs = evaluate_by_lerobot(
        convert(trained, tmp_path / "converted"), tmp_path / "theirs", 2, "--policy.noise_seed=1000000"
    )
    lines = next((tmp_path / "ours").rglob("trials.jsonl")).read_text().splitlines()
    ours = sorted(map(json.loads, lines), key=lambda trial: trial["seed"])
    assert [t["seed"] for t in ours] == [t["seed"] for t in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert (a["success"], a["steps"]) == (b["success"], 12)
        assert a["sum_reward"] == pytest.approx(b["sum_reward"], abs=1e-6)


def test_every_task_is_an_environment_of_lerobot():
    """From the same seed, LeRobot's observation is ours: state, pictures, and depth in millimetres."""
    from lerobot_env_string.environment import StringEnv

    from stringpe import robots

    for task in robots.tasks():
        config = StringEnv(task=task, size=SIZE)
        (vector,) = config.create_envs(1)[config.type].values()
        ours = robots.make(task, size=(SIZE, SIZE), depth=True)
        try:
            found, _ = vector.reset(seed=[3])
            wanted, _ = ours.reset(seed=3)
            still = vector.action_space.sample() * 0 + found["agent_pos"]
            for _ in range(2):
                assert set(found["pixels"]) == set(ours.robot.cameras)
                np.testing.assert_array_equal(found["agent_pos"][0], wanted["observation.state"])
                for camera, pixels in found["pixels"].items():
                    np.testing.assert_array_equal(pixels[0], wanted[f"observation.images.{camera}"])
                    metres = wanted[f"observation.depth.{camera}"]
                    np.testing.assert_allclose(found[f"images.{camera}_depth"][0, 0], 1000 * metres, rtol=1e-6)
                found, *_ = vector.step(still)
                wanted, *_ = ours.step(still[0])
        finally:
            vector.close()
            ours.close()
