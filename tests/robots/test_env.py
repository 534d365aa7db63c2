import ctypes.util
import importlib.util
import subprocess
import sys

import gymnasium
import mujoco
import numpy as np
import pytest
import torch

from stringpe import robots
from stringpe.coords import backproject
from stringpe.robots.sim import sensors, simulator


@pytest.mark.parametrize("task", robots.tasks())
def test_a_seed_fixes_the_initial_state_exactly(task, blind):
    env = blind(task)
    states = {}
    for seed in (3, 4, 3):
        env.reset(seed=seed)
        now = np.concatenate([env.data.qpos, env.model.body_pos.ravel()])
        if seed in states:
            np.testing.assert_array_equal(states[seed], now)
        states[seed] = now
    assert np.abs(states[3] - states[4]).max() > 0.01


@pytest.mark.parametrize("task", robots.tasks())
def test_things_start_apart_at_rest_and_unfinished(task, blind, home):
    env = blind(task)
    for seed in range(5):
        _, info = env.reset(seed=seed)
        assert info == {"success": False, "stage": 0, "stage_name": "start"}
        for thing in env.task.things:
            assert env.world.speed(thing.name) < 0.05, thing.name
            assert not env.world.arms_touching(thing.name)
        for _ in range(8):
            _, reward, success, _, _ = env.step(home(env))
        assert reward == 0.0
        assert not success


@pytest.mark.parametrize(("task", "size"), [("MugOnPlate", 14), ("KukaPick", 8)])
def test_spaces_describe_what_comes(task, size, eyes):
    env = robots.make(task, size=(24, 40), depth=True)
    seen, _ = env.reset(seed=0)
    assert isinstance(env, gymnasium.Env)
    assert env.action_space.shape == seen["observation.state"].shape == (size,)
    assert seen.keys() == env.observation_space.spaces.keys()
    assert env.observation_space.contains(seen)
    for camera in env.cameras:
        image, depth = seen[f"observation.images.{camera}"], seen[f"observation.depth.{camera}"]
        assert image.shape == (24, 40, 3)
        assert image.dtype == np.uint8
        assert image.std() > 5
        assert depth.shape == (24, 40)
        assert depth.dtype == np.float32
        assert 0.05 < np.median(depth) < 2.0
    seen, reward, success, timeout, info = env.step(env.action_space.sample())
    assert env.observation_space.contains(seen)
    assert (reward, success, timeout, info["success"]) == (0.0, False, False, False)
    assert len(env.robot.names) == size
    env.close()


def test_four_cameras_and_those_asked_for(eyes):
    env = robots.make("HandOverPen", size=(16, 16), cameras=("table", "left_wrist"))
    seen, _ = env.reset(seed=0)
    assert set(seen) == {"observation.state", "observation.images.table", "observation.images.left_wrist"}
    assert env.render().shape == (16, 16, 3)
    env.close()
    assert robots.make("HandOverPen").cameras == ("overhead", "left_wrist", "right_wrist", "table")


def test_depth_is_what_a_ray_measures(eyes):
    env = robots.make("BowlOnRack", size=(48, 48), cameras=("overhead",), depth=True)
    depth = env.reset(seed=1)[0]["observation.depth.overhead"]
    camera = env.data.camera("overhead")
    axes, where = camera.xmat.reshape(3, 3), camera.xpos
    focal = 24 / np.tan(np.radians(env.model.camera("overhead").fovy[0]) / 2)
    gaps = []
    for row in range(4, 48, 8):
        for column in range(4, 48, 8):
            ray = axes @ np.array([(column + 0.5 - 24) / focal, (24 - row - 0.5) / focal, -1.0])
            hit = mujoco.mj_ray(env.model, env.data, where, ray, None, 1, -1, np.zeros(1, np.int32))
            gaps.append(abs(hit - depth[row, column]))
    assert np.median(gaps) < 1e-4
    env.close()


@pytest.mark.parametrize(
    ("task", "options"), [("KukaPick", ({"lighting": "dim"}, {"lighting": "side"})), ("MugOnPlate", ({}, {}))]
)
def test_environments_share_a_renderer_and_see_what_they_would_see_with_their_own(task, options, eyes):
    first, second = (robots.make(task, size=(32, 48), depth=True, **each) for each in options)
    first.reset(seed=0)
    seen, _ = second.reset(seed=1)
    assert first._cameras._renderer is second._cameras._renderer
    with mujoco.Renderer(second.model, 32, 48) as own:
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            own.scene.flags[flag] = 0
        for camera in second.cameras:
            own.update_scene(second.data, camera)
            np.testing.assert_array_equal(seen[f"observation.images.{camera}"], own.render())
    again = second.look()
    first.close()
    np.testing.assert_equal(second.look(), again)
    second.close()


def test_another_size_or_robot_has_a_renderer_of_its_own(eyes):
    size = {"size": (16, 16)}
    made = [robots.make(*how[:1], **how[1]) for how in (("KukaPick", size), ("MugOnPlate", size), ("KukaPick", {}))]
    for env in made:
        env.reset(seed=0)
    assert len({id(env._cameras._renderer) for env in made}) == 3


@pytest.mark.parametrize(
    ("task", "thing", "options"),
    [("KukaPick", "green block", {"table_height": 0.05, "pedestal_height": -0.08}), ("MugOnPlate", "plate", {})],
)
def test_every_camera_sees_a_thing_at_one_place_in_the_robots_frame(task, thing, options, eyes):
    env = robots.make(task, size=(96, 128), depth=True, calibration=True, **options)
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    at = env.world.pose(thing)
    base = env.data.body(env.robot.base).xpos if env.robot.base else np.zeros(3)
    assert base[2] == options.get("pedestal_height", 0)
    seen = 0
    for camera in env.cameras:
        depth, k, pose = (torch.from_numpy(observation[key]) for key in (f"observation.depth.{camera}", *keys(camera)))
        points = backproject(depth[None], k, pose)[0].flatten(0, 1).double().numpy()
        ray = _labels(env, camera).flatten() == thing
        seen += bool(ray.sum() > 20)
        # Its pixels lie on it: within a circle around its middle, just above its underside.
        away = points[ray] - (at.pos - base)
        radius = next(t.radius for t in env.task.things if t.name == thing)
        assert (np.linalg.norm(away[:, :2], axis=1) < radius + 0.005).all()
        assert (np.abs(away[:, 2]) < 0.06).all()
    assert seen >= 2  # cameras that look at it from different sides
    env.close()


def keys(camera):
    return f"observation.camera.{camera}.intrinsics", f"observation.camera.{camera}.pose"


def _labels(env, camera):
    """The thing that every pixel (h, w) of a camera shows, by MuJoCo's own segmentation."""
    with mujoco.Renderer(env.model, *env.size) as renderer:
        renderer.enable_segmentation_rendering()
        renderer.update_scene(env.data, camera)
        geoms = renderer.render()[..., 0]
    names = np.array([*(env.model.geom(i).name.split(":")[0] for i in range(env.model.ngeom)), ""])
    return names[geoms]  # −1 is the sky, the last name


@pytest.mark.parametrize("task", ["StorageBin", "KukaPick"])
def test_joints_go_where_they_are_sent(task, blind, home):
    env = blind(task)
    env.reset(seed=0)
    target = np.array(home(env), np.float32)
    target[[0, 1, 3]] += (0.2, -0.1, 0.15)
    target[-1] = 0.3
    for _ in range(10):
        env.advance(target)
    np.testing.assert_allclose(env.state(), target, atol=0.01)


def test_targets_beyond_the_limits_stop_at_them(blind, home):
    env = blind("MugOnPlate")
    env.reset(seed=0)
    wild = np.array(home(env), np.float32)
    wild[5], wild[6] = 50.0, 7.0
    for _ in range(25):
        env.advance(wild)
    assert env.state()[5] == pytest.approx(env.action_space.high[5], abs=0.02)
    assert env.state()[6] == pytest.approx(1.0, abs=0.02)


def test_an_episode_ends_when_its_time_is_over(home):
    env = robots.make("MugOnPlate", cameras=(), max_steps=3)
    env.reset(seed=0)
    assert [env.step(home(env))[3] for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("task", "words"), [("MugOnPlate", "14 numbers (7 for left, 7 for right)"), ("KukaPick", "8 num")]
)
def test_actions_of_wrong_size_are_refused(task, words, blind):
    env = blind(task)
    env.reset(seed=0)
    with pytest.raises(ValueError) as error:
        env.step(np.zeros(13))
    assert words in str(error.value)
    assert "(13,)" in str(error.value)


def test_actions_that_are_not_finite_are_refused_and_change_nothing(blind, home):
    env = blind("MugOnPlate")
    env.reset(seed=0)
    before, bad = env.data.qpos.copy(), np.array(home(env))
    bad[8], bad[13] = np.nan, np.inf
    with pytest.raises(ValueError, match=r"finite.*right/vx300s_right/shoulder, right/gripper"):
        env.step(bad)
    np.testing.assert_array_equal(before, env.data.qpos)


def test_a_simulation_that_diverges_is_an_error_and_the_next_episode_is_not(tmp_path, monkeypatch, blind, home):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes a log
    env = blind("MugOnPlate")
    env.reset(seed=0)
    env.data.qvel[0] = np.nan
    with pytest.raises(FloatingPointError, match="MugOnPlate diverged after 1 actions"):
        env.step(home(env))
    env.reset(seed=0)
    env.step(home(env))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"task": "mugonplate"}, "did you mean 'MugOnPlate'?"),
        ({"task": "HandoverPan"}, "did you mean 'HandOverPen'?"),
        ({"task": "xyz"}, "The names are BowlOnRack"),
        (
            {"task": "MugOnPlate", "cameras": ("top",)},
            "there is no camera of aloha named 'top': .*The names are overhead",
        ),
        ({"task": "MugOnPlate", "size": (0, 4)}, r"size is \(height, width\)"),
        ({"task": "MugOnPlate", "lighting": "dim"}, "MugOnPlate has no option 'lighting': it has max_steps"),
    ],
)
def test_what_is_not_there_is_named(given, words):
    with pytest.raises(ValueError, match=words):
        robots.make(**given)


def test_missing_packages_are_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("mujoco", "gym_aloha") else real(name)
    )
    for call in (simulator.load_mujoco, lambda: simulator.asset_folder("gym_aloha", "assets")):
        with pytest.raises(ValueError, match=r"pip install 'stringpe\[robots\]'"):
            call()


def test_missing_libraries_give_the_line_to_install_them(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(sys, "platform", "linux")
    assert simulator.rendering_backend() == "disabled"
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    env = robots.make("MugOnPlate", size=(8, 8))
    with pytest.raises(OSError, match="apt-get install -y --no-install-recommends libosmesa6 libegl1"):
        env.reset(seed=0)
    blind = robots.make("MugOnPlate", cameras=())
    blind.reset(seed=0)


def test_a_renderer_that_fails_gives_the_same_line(monkeypatch):
    def broken(*_):
        raise RuntimeError("no display")

    monkeypatch.setenv("MUJOCO_GL", "egl")
    monkeypatch.setattr(simulator.mujoco, "Renderer", broken)
    monkeypatch.setattr(sensors, "_RENDERERS", {})
    env = robots.make("MugOnPlate", size=(8, 8))
    with pytest.raises(OSError, match=r"libegl1.*no display"):
        env.reset(seed=0)


def test_a_backend_that_cannot_load_gives_the_same_line(monkeypatch):
    def broken(name, *rest):
        raise AttributeError("'NoneType' object has no attribute 'glGetError'")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(OSError, match=r"apt-get install .*glGetError"):
        simulator.load_mujoco()


@pytest.mark.slow
def test_a_process_that_has_rendered_can_train(eyes):
    code = (
        "import stringpe.robots as robots; robots.make('MugOnPlate', size=(8, 8)).reset(seed=0); "
        "import torch; torch.optim.Adam([torch.zeros(1, requires_grad=True)])"  # which imports Triton, and with it LLVM
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_robots_load_late_render_whoever_came_first_and_end_quietly(eyes, monkeypatch):
    code = (
        "import sys, stringpe, stringpe.robots as robots; assert not {'mujoco', 'gymnasium'} & set(sys.modules); "
        "import mujoco; robots.make('MugOnPlate', size=(8, 8)).reset(seed=0)"  # and it is not closed
    )
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.delenv("DISPLAY", raising=False)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
