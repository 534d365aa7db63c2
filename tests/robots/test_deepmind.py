"""The adapter to google-deepmind's aloha_sim, on a stand-in: the package is not on PyPI, so it is not run here."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from stringpe import robots

LOW, HIGH = -0.06, 1.5  # aloha_sim's units of a gripper


class Inner:
    """What the adapter uses of a dm_control environment. Joints follow commands; joint 0 over 0.5 is success."""

    def __init__(self, name, time_limit):
        self.name, self.joints, self.calls = name, np.zeros(14), []
        cameras = ("overhead_cam", "worms_eye_cam", "wrist_cam_left", "wrist_cam_right")
        observables = {camera: SimpleNamespace(enabled=True) for camera in cameras}
        self.task = SimpleNamespace(task_observables=observables)
        self.random_state = np.random.RandomState(0)
        self.physics = SimpleNamespace(render=self.render)

    def action_spec(self):
        low, high = np.full(14, -3.0), np.full(14, 3.0)
        low[[6, 13]], high[[6, 13]] = LOW, HIGH
        return SimpleNamespace(minimum=low, maximum=high)

    def control_timestep(self):
        return 0.02

    def render(self, height, width, camera_id, depth=False):
        self.calls.append(camera_id)
        return np.ones((height, width)) if depth else np.zeros((height, width, 3), np.uint8)

    def now(self):
        reward = float(self.joints[0] > 0.5)
        return SimpleNamespace(
            observation={"undelayed_joints_pos": self.joints.copy()}, reward=reward, last=lambda: reward >= 1
        )

    def reset(self):
        self.joints = self.random_state.uniform(-0.1, 0.1, 14)
        self.joints[[6, 13]] = LOW, HIGH
        return self.now()

    def step(self, action):
        self.calls.append(np.array(action))
        self.joints = np.array(action)
        return self.now()

    def close(self):
        pass


@pytest.fixture
def aloha_sim(monkeypatch):
    package, suite = ModuleType("aloha_sim"), ModuleType("aloha_sim.task_suite")
    package.__spec__ = SimpleNamespace(origin="aloha_sim/__init__.py")
    made = []
    suite.create_task_env = lambda name, time_limit: made.append(Inner(name, time_limit)) or made[-1]
    package.task_suite = suite
    monkeypatch.setitem(sys.modules, "aloha_sim", package)
    monkeypatch.setitem(sys.modules, "aloha_sim.task_suite", suite)
    return made


def test_observations_have_our_keys_and_units(aloha_sim):
    env = robots.make("MugOnPlate", backend="aloha_sim", size=(12, 20), depth=True)
    (inner,) = aloha_sim
    assert inner.name == "DiningPlaceMugOnPlate"
    assert not any(each.enabled for each in inner.task.task_observables.values())
    seen, info = env.reset(seed=0)
    assert env.observation_space.contains(seen)
    assert seen["observation.images.left_wrist"].shape == (12, 20, 3)
    assert seen["observation.depth.table"].shape == (12, 20)
    assert seen["observation.state"][[6, 13]].tolist() == [0.0, 1.0]
    assert not info["success"]
    again, _ = env.reset(seed=0)
    np.testing.assert_array_equal(seen["observation.state"], again["observation.state"])


def test_actions_go_out_at_its_rate_and_success_comes_back(aloha_sim):
    env = robots.make("HandOverPen", backend="aloha_sim", cameras=())
    seen, _ = env.reset(seed=0)
    (inner,) = aloha_sim
    action = seen["observation.state"].copy()
    action[0], action[6] = 0.45, 0.5
    seen, reward, success, over, _ = env.step(action)
    assert len(inner.calls) == 5
    assert inner.calls[-1][6] == pytest.approx(LOW + 0.5 * (HIGH - LOW))
    assert np.diff([call[0] for call in inner.calls]).std() < 1e-6  # a straight line
    assert (reward, success, over) == (0.0, False, False)
    action[0] = 0.6
    _, reward, success, over, info = env.step(action)
    assert (reward, success, over, info["success"]) == (1.0, True, False, True)


def test_bad_requests_are_refused_in_words(aloha_sim):
    with pytest.raises(ValueError, match="aloha_sim has no FruitBowl: it has BowlOnRack"):
        robots.make("FruitBowl", backend="aloha_sim")
    with pytest.raises(ValueError, match="no camera 'top'"):
        robots.make("HandOverPen", backend="aloha_sim", cameras=("top",))
    env = robots.make("HandOverPen", backend="aloha_sim", cameras=())
    env.reset(seed=0)
    with pytest.raises(ValueError, match="14 numbers"):
        env.step(np.zeros(7))
    with pytest.raises(ValueError, match="finite"):
        env.step(np.full(14, np.nan))


def test_without_the_package_the_line_to_install_it():
    with pytest.raises(ValueError, match=r"pip install git\+https://github.com/google-deepmind/aloha_sim"):
        robots.make("HandOverPen", backend="aloha_sim")
