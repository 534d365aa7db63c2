"""Policies that see all cameras in the robot's frame."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from policy_toy import KINDS, NET, RECIPE, SPEC, batch, policy
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from stand_in import demonstration

import stringpe
from stringpe.bench.train import RandomDemos
from stringpe.data.demo_batches import augment_cameras, augment_intrinsics
from stringpe.data.order import Place
from stringpe.models.vit import ViT
from stringpe.recipes.overrides import override
from stringpe.recipes.schema import Augment
from stringpe.robots.calibration import intrinsics_key, pose_key
from stringpe.robots.data import demos
from stringpe.robots.data.dataset import Dataset
from stringpe.robots.data.pack import join, load, pack
from stringpe.robots.data.writer import Writer
from stringpe.robots.policies.diffusion_policy import DiffusionPolicy
from stringpe.robots.policies.observer import ImageEncoder
from stringpe.tasks.policy import load_policy
from stringpe.training import simulation
from stringpe.training.launch import train

ROWS = [("cayley", "lift"), ("circulant", "lift+normals"), ("rope", "none"), ("sincos", "lift"), ("none", "channel")]


def lively(model):
    """Away from the start, where gates are shut and small weights hardly move a narrow model."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def move_world(data, shift):
    moved = dict(data)
    for camera in SPEC.cameras:
        pose = data[pose_key(camera)].clone()
        pose[:, :3, 3] += torch.tensor(shift)
        moved[pose_key(camera)] = pose
    return moved


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("encoding", "depth"), ROWS)
def test_every_parameter_learns(kind, encoding, depth):
    model = lively(policy(kind, encoding, depth, frame="world"))
    model(batch(depth=True, calibration=True)).backward()
    for name, parameter in model.observer.named_parameters():
        if parameter.numel() and not name.endswith("lift.offset"):
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("encoding", ["cayley", "circulant"])
def test_scores_between_cameras_depend_on_displacement_alone(encoding):
    """Without the sines that say where a patch is in the robot's frame, and away from the tokens at its origin, the
    policy's own transformer does not see where the world is."""
    observer = lively(policy(encoding=encoding, depth="lift", frame="world")).observer.eval().double()
    data = batch(depth=True, calibration=True)
    x = torch.randn(3, 32, 32, dtype=torch.float64)
    attention = observer.blocks[0].attention
    out = []
    for given in (data, move_world(data, [1.0, -2.0, 0.5])):
        seen = []
        hook = observer.blocks[0].register_forward_pre_hook(
            lambda _, args, options, seen=seen: seen.append(options["coords"]), with_kwargs=True
        )
        model_inputs = [torch.stack([given[key + c] for c in SPEC.cameras], 1) for key in _KEYS]
        intrinsics, pose = (torch.stack([given[key(c)] for c in SPEC.cameras], 1) for key in (intrinsics_key, pose_key))
        words = torch.zeros(3, 4, dtype=torch.long)
        state = torch.zeros(3, 3, dtype=torch.float64)
        observer(*[m.double() for m in model_inputs], state, words, stringpe.coords.Calibration(intrinsics, pose))
        hook.remove()
        assert (seen[0][:, 32:] == 0).all()  # state and words stand at the robot's base
        out.append(attention(x, seen[0][:, :32]))
    torch.testing.assert_close(out[1], out[0], rtol=1e-4, atol=1e-5)


_KEYS = ("observation.images.", "observation.depth.")


@pytest.mark.parametrize(("encoding", "depth"), ROWS)
def test_where_the_world_is_in_the_robots_frame_matters(encoding, depth):
    model = lively(policy(encoding=encoding, depth=depth, frame="world")).eval()
    data = batch(depth=True, calibration=True)
    seen = model.observe(data)
    assert (model.observe(move_world(data, [0.1, 0.0, 0.0])) - seen).abs().max() > 1e-2
    assert (lively(policy(encoding=encoding, depth=depth)).eval().observe(data)).shape == seen.shape


def test_cameras_may_come_in_any_order():
    """With the vectors that name the cameras at zero, swapping two cameras swaps their tokens."""
    model = lively(policy(depth="lift", frame="world")).eval()
    torch.nn.init.zeros_(model.observer.camera)
    data = batch(depth=True, calibration=True)
    names = {"top": "wrist", "wrist": "top"}
    swapped = {".".join(names.get(word, word) for word in key.split(".")): value for key, value in data.items()}
    first, second = (model.observe(x)[:, :32].unflatten(1, (2, 16)) for x in (data, swapped))
    torch.testing.assert_close(first, second.flip(1), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_folding_changes_no_plan(kind):
    model = lively(policy(kind, depth="lift", frame="world")).eval()
    data = batch(depth=True, calibration=True)
    before = model.observe(data)
    folded = stringpe.fold(model)
    torch.testing.assert_close(folded.observe(data), before, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("frame", ["camera", "world"])
def test_options_of_the_encoding_go_to_the_policys_transformer(frame):
    net = replace(NET, frame=frame, encoding="circulant", encoding_options={"block_size": 4})
    vit = ViT(dim=32, layers=1, num_heads=2, patch_size=4, encoding="circulant")
    observer = DiffusionPolicy(ImageEncoder(vit), SPEC, net).observer
    encoding = observer.blocks[0].attention.encoding
    assert encoding is None if frame == "camera" else encoding.basis.block_size == 4


def test_missing_calibration_is_named():
    model = policy(depth="lift", frame="world")
    with pytest.raises(
        ValueError, match=r"lacks observation\.camera\.top\.intrinsics.*calibration=True, or train with"
    ):
        model(batch(depth=True))
    with pytest.raises(ValueError, match=r"lacks observation\.depth\.top"):
        model(batch(calibration=True))
    with pytest.raises(ValueError, match="frame must be one of"):
        policy(frame="base")


def test_a_plan_comes_from_an_environments_arrays():
    model = policy(depth="lift", frame="world").eval()
    one = {key: value[0] for key, value in batch(depth=True, calibration=True).items() if key not in ("action", "task")}
    arrays = {
        key: ((value.permute(1, 2, 0) + 1) * 127.5).byte().numpy() if "images" in key else value.numpy()
        for key, value in one.items()
    }
    plans = model.plan_actions([arrays] * 3, [torch.Generator().manual_seed(0) for _ in range(3)])
    assert plans.shape == (3, NET.execute, 4)
    np.testing.assert_array_equal(plans[0], plans[1])


@pytest.mark.filterwarnings("ignore:.*image encoder starts at random")
def test_the_benchmark_of_training_knows_the_world_frame():
    task = RandomDemos(override(RECIPE, ["policy.frame=world", "model.depth=lift"]))
    assert task.loss(task.build(task.recipe, None), next(task.batches(0, Place()))).isfinite()


def test_a_shifted_picture_has_its_principal_point_shifted():
    """A pixel keeps its ray: the same surface is at the same point after the augmentation."""
    how, k = Augment(shift=3), torch.tensor([[20.0, 0, 8], [0, 24.0, 8], [0, 0, 1]])
    depth = torch.rand(4, 2, 16, 16) + 0.5
    u = torch.rand(4, 7, generator=torch.Generator().manual_seed(0))
    _, moved = augment_cameras(torch.zeros(4, 2, 3, 16, 16, dtype=torch.uint8), depth, u, how)
    before = stringpe.coords.backproject(depth, k).flatten(2, 3)
    after = stringpe.coords.backproject(moved, augment_intrinsics(k.expand(4, 2, 3, 3), u, how))
    inside = after[..., 6:10, 6:10, :].flatten(2, 3)  # away from the repeated border
    assert torch.cdist(inside.double(), before.double()).amin(-1).max() < 1e-6
    assert torch.equal(augment_intrinsics(k.expand(4, 2, 3, 3), u, Augment()), k.expand(4, 2, 3, 3))


K = [[32.0, 0.0, 16.0], [0.0, 32.0, 16.0], [0.0, 0.0, 1.0]]


def write(path, *, moving=True, cameras=None, episodes=4):
    with Writer(path, fps=10, cameras={"top": {"intrinsics": K}} if cameras is None else cameras) as writer:
        for seed in range(episodes):
            frames = demonstration(seed, depth=True)
            if moving:
                pose = np.tile(np.eye(4, dtype=np.float32), (len(frames["action"]), 1, 1))
                pose[:, 0, 3] = seed + np.arange(len(pose)) / 100
                frames[pose_key("top")] = pose
            writer.add(frames, task="reach", seed=seed)
    return path


def test_calibration_is_stored_packed_and_joined(tmp_path):
    data = Dataset(write(tmp_path / "moving"))
    side = data.info["features"]["observation.images.top"]["shape"][0]
    kept = load(pack(data, tmp_path / "moving.safetensors", size=8, stride=2), depth=True, calibration=True)
    torch.testing.assert_close(kept.intrinsics[0, 0], torch.tensor(K) * torch.tensor([8 / side, 8 / side, 1])[:, None])
    assert kept.pose.shape == (len(kept.seen), 1, 4, 4)
    begins = torch.nonzero(kept.episode[kept.seen].diff(prepend=torch.tensor([-1])))[:, 0]
    torch.testing.assert_close(kept.pose[begins, 0, 0, 3], torch.arange(4.0))
    torch.testing.assert_close(kept.pose[begins + 1, 0, 0, 3], torch.arange(4.0) + 0.02)
    still = {"top": {"intrinsics": K, "pose": np.diag([1.0, -1.0, -1.0, 1.0]).tolist()}}
    fixed = write(tmp_path / "still", moving=False, cameras=still)
    other = load(pack(Dataset(fixed), tmp_path / "still.safetensors", size=8), depth=True, calibration=True)
    torch.testing.assert_close(other.pose[-1, 0], torch.diag(torch.tensor([1.0, -1.0, -1.0, 1.0])))
    both = join([kept, other])
    assert len(both.pose) == len(both.intrinsics) == len(both.image)


@pytest.mark.filterwarnings("ignore:.*image encoder starts at random")
def test_a_policy_in_the_world_frame_is_trained_and_reloaded(tmp_path):
    folder = write(tmp_path / "demos")
    changes = [f"data.train={folder}", f"data.cache={tmp_path}", "policy.frame=world", "model.depth=lift"]
    recipe = override(RECIPE, [*changes, "augment.shift=2"])
    train(recipe, tmp_path / "run", quiet=True)
    model = load_policy(tmp_path / "run")
    assert model.net.frame == model.observer.encoder.model.frame == "world"
    assert model.observer.blocks[0].attention.encoding is not None
    uncalibrated = write(tmp_path / "uncalibrated", moving=False)
    with pytest.raises(ValueError, match=r"how its cameras top are calibrated, which policy\.frame=world needs"):
        train(override(recipe, [f"data.train={uncalibrated}"]), tmp_path / "other", quiet=True)


def test_a_pose_that_is_not_a_matrix_is_refused(tmp_path):
    with Writer(tmp_path / "wrong", fps=10) as writer:
        frames = demonstration(0, depth=True)
        writer.add(frames | {pose_key("top"): np.zeros((len(frames["action"]), 7), np.float32)}, task="reach", seed=0)
    with pytest.raises(ValueError, match=r"top\.pose must be a matrix \(4, 4\), robot from camera; .* has \(7,\)"):
        pack(Dataset(tmp_path / "wrong"), tmp_path / "wrong.safetensors", size=8)


@pytest.mark.parametrize("wrong", [{"intrinsics": [[1.0, 0.0], [0.0, 1.0]]}, {"intrinsics": 3}, {"pose": [[1.0] * 4]}])
def test_a_calibration_that_is_not_a_matrix_is_refused(tmp_path, wrong):
    camera = {"intrinsics": K, "pose": np.eye(4).tolist()}
    folder = write(tmp_path / "wrong", moving=False, cameras={"top": camera}, episodes=1)
    made = pack(Dataset(folder), tmp_path / "good.safetensors", size=8)
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["observation.images.top"]["info"] |= wrong
    (folder / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(ValueError, match=r"of top in .*info\.json must be \d rows of \d finite numbers"):
        pack(Dataset(folder), tmp_path / "wrong.safetensors", size=8)

    with safe_open(made, "pt") as file:
        about = file.metadata()
    (name, value), known = next(iter(wrong.items())), json.loads(about["about"])
    known["intrinsics" if name == "intrinsics" else "poses"]["top"] = value
    save_file(load_file(made), made, about | {"about": json.dumps(known)})
    with pytest.raises(ValueError, match=r"good\.safetensors is damaged"):
        load(made, depth=True, calibration=True)


@pytest.mark.filterwarnings("ignore:.*image encoder starts at random")
@pytest.mark.slow
def test_from_the_simulation_to_demonstrations_and_back(tmp_path, eyes):
    """Calibration is recorded with depth, trained with, and asked for in simulation."""
    options = {"table_height": "-0.03..0.03", "pedestal_height": "-0.03..0.03"}
    settings = demos.DemoSettings("KukaPick", size=(16, 16), depth=True, options=options)
    demos.write(tmp_path / "demos", 2, settings)
    data = Dataset(tmp_path / "demos")
    env = settings.env()
    np.testing.assert_allclose(data.camera_info("front")["intrinsics"], env.intrinsics("front"))
    front, wrist = (data[0][pose_key(camera)] for camera in ("front", "wrist"))
    np.testing.assert_array_equal(front, np.broadcast_to(front[0], front.shape))
    assert np.abs(wrist - wrist[0]).max() > 0.05  # it moves with the arm
    assert (
        front[0, 2, 3] != data[1][pose_key("front")][0, 2, 3]
    )  # pedestals differ, and so do cameras in the base's frame
    changes = [f"data.train={tmp_path / 'demos'}", f"data.cache={tmp_path}", "policy.frame=world", "model.depth=lift"]
    changes += [
        "policy.simulate=KukaPick",
        "policy.trials=1",
        "loop.steps=1",
        "loop.eval_every=0",
        "policy.held_out=0.5",
    ]
    outcome = train(override(RECIPE, changes), tmp_path / "run", quiet=True)
    assert outcome["metrics"]["success"] in (0, 1)
    candidate = simulation.read_candidate(tmp_path / "run", "run")
    assert candidate.depth
    made = simulation._plan(candidate, ("KukaPick", {}), None, videos=0, html=False).env()
    assert pose_key("wrist") in made.observation_space.spaces
    made.close()
    env.close()
