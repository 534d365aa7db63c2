"""google-deepmind's aloha_sim as a backend, for users who have installed it: scenes of four of the paper's tasks.

Observations have the keys and the layout of `RobotEnv`. Pictures are rendered here, at the size asked for and without
delay: aloha_sim drops its option for the size and shows the world of 0.3 s ago.
"""

import importlib
import importlib.util
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from .env import RATE, Observation

CAMERAS = {
    "overhead": "overhead_cam",
    "left_wrist": "wrist_cam_left",
    "right_wrist": "wrist_cam_right",
    "table": "worms_eye_cam",
}
TASKS = {
    "BowlOnRack": ("BowlOnRack", "place the bowl on the rack"),
    "HandOverBanana": ("HandOverBanana", "hand over the banana and place it in the container"),
    "HandOverPen": ("HandOverPen", "hand over the pen and place it in the container"),
    "MugOnPlate": ("DiningPlaceMugOnPlate", "place the mug on the plate"),
}
GRIPPERS = (6, 13)
MISSING = (
    "backend='aloha_sim' needs google-deepmind's aloha_sim, which is not on PyPI: "
    "pip install git+https://github.com/google-deepmind/aloha_sim; without it, leave backend out"
)


class AlohaSimEnv(gym.Env[Any, npt.NDArray[np.float32]]):
    """A task of aloha_sim behind our observation keys: actions (14,) with grippers from 0 to 1, ten a second.

    The reward is aloha_sim's; success is a reward of 1.
    """

    fps = float(RATE)
    metadata = {"render_modes": ["rgb_array"], "render_fps": RATE}  # noqa: RUF012, as gymnasium declares it

    def __init__(
        self,
        task: str,
        *,
        seed: int | None = None,
        size: tuple[int, int] = (128, 128),
        cameras: tuple[str, ...] | None = None,
        depth: bool = False,
        max_steps: int = 400,
    ) -> None:
        if task not in TASKS:
            raise ValueError(f"aloha_sim has no {task}: it has {', '.join(TASKS)}")
        self.cameras = tuple(CAMERAS) if cameras is None else tuple(cameras)
        unknown = [camera for camera in self.cameras if camera not in CAMERAS]
        if unknown:
            raise ValueError(f"no camera {unknown[0]!r}: aloha has {', '.join(CAMERAS)}")
        if importlib.util.find_spec("aloha_sim") is None:
            raise ValueError(MISSING)
        suite = importlib.import_module("aloha_sim.task_suite")
        name, self.task_text = TASKS[task]
        self.name, self.size, self.depth, self.max_steps = task, size, depth, max_steps
        self.render_mode = "rgb_array"
        self._inner = suite.create_task_env(name, time_limit=max_steps / RATE + 1.0)
        for camera in CAMERAS.values():
            self._inner.task.task_observables[camera].enabled = False
        spec = self._inner.action_spec()
        self._low, self._high = np.array(spec.minimum, np.float32), np.array(spec.maximum, np.float32)
        self._repeat = round(1 / RATE / self._inner.control_timestep())
        low, high = self._low.copy(), self._high.copy()
        low[list(GRIPPERS)], high[list(GRIPPERS)] = 0.0, 1.0
        self.action_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.observation_space = gym.spaces.Dict(self._spaces(low, high))
        self._steps, self._seed = 0, seed
        self._before = np.zeros(14, np.float32)
        self._now: Any = None

    def _spaces(self, low: npt.NDArray[np.float32], high: npt.NDArray[np.float32]) -> dict[str, gym.Space[Any]]:
        spaces: dict[str, gym.Space[Any]] = {"observation.state": gym.spaces.Box(low - 1, high + 1, dtype=np.float32)}
        for camera in self.cameras:
            spaces[f"observation.images.{camera}"] = gym.spaces.Box(0, 255, (*self.size, 3), np.uint8)
            if self.depth:
                spaces[f"observation.depth.{camera}"] = gym.spaces.Box(0.0, np.inf, self.size, np.float32)
        return spaces

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new episode; the same seed gives the same initial state."""
        seed = self._seed if seed is None else seed
        super().reset(seed=seed)
        if seed is not None:
            self._inner.random_state.seed(seed)
        self._seed, self._steps = None, 0
        self._now = self._inner.reset()
        self._before = self._state()
        return self._observe(), {"success": False, "stage": 0, "stage_name": "start"}

    def step(self, action: npt.ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes an action, on a straight line of targets at aloha_sim's own rate."""
        values = np.asarray(action, np.float32)
        if values.shape != (14,):
            raise ValueError(f"an action of aloha has 14 numbers (7 for left, 7 for right), got {values.shape}")
        if not np.isfinite(values).all():
            raise ValueError("actions must be finite, got nan or infinity")
        values = np.clip(values, self.action_space.low, self.action_space.high)  # type: ignore[attr-defined]
        reward = 0.0
        for count in range(1, self._repeat + 1):
            self._now = self._inner.step(self._outward(self._before + (values - self._before) * count / self._repeat))
            reward = float(self._now.reward or 0.0)
            if self._now.last():
                break
        self._before, self._steps = values, self._steps + 1
        success = reward >= 1.0
        over = self._steps >= self.max_steps or (self._now.last() and not success)
        info = {"success": success, "stage": int(success), "stage_name": "success" if success else "start"}
        return self._observe(), reward, success, over, info

    def _outward(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Our action in aloha_sim's units of the grippers."""
        found = action.copy()
        for at in GRIPPERS:
            found[at] = self._low[at] + action[at] * (self._high[at] - self._low[at])
        return found

    def _state(self) -> npt.NDArray[np.float32]:
        found = np.array(self._now.observation["undelayed_joints_pos"], np.float32)
        for at in GRIPPERS:
            found[at] = (found[at] - self._low[at]) / (self._high[at] - self._low[at])
        return found

    def _observe(self) -> Observation:
        found: Observation = {"observation.state": self._state()}
        height, width = self.size
        for camera in self.cameras:
            view = {"height": height, "width": width, "camera_id": CAMERAS[camera]}
            found[f"observation.images.{camera}"] = self._inner.physics.render(**view)
            if self.depth:
                depth = self._inner.physics.render(depth=True, **view)
                found[f"observation.depth.{camera}"] = depth.astype(np.float32)
        return found

    def render(self) -> npt.NDArray[np.uint8]:
        """The first camera's picture."""
        height, width = self.size
        name = CAMERAS[(*self.cameras, "overhead")[0]]
        return self._inner.physics.render(height=height, width=width, camera_id=name)

    def close(self) -> None:
        """Closes the simulation."""
        self._inner.close()
