"""A robot task of stringpe as LeRobot's evaluation expects an environment."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

from stringpe import robots
from stringpe.robots.calibration import CAMERA
from stringpe.robots.data.columns import DEPTH, IMAGES, MILLIMETRE, STATE, stored_key
from stringpe.robots.data.demos import parse_options


@EnvConfig.register_subclass("string")
@dataclass
class StringEnv(EnvConfig):
    """A task of `stringpe.robots.tasks()`.

    size: side of the images in pixels. cameras: their names, by default all cameras of the robot. depth: include depth
    in the observations, in millimetres, as LeRobot reads it from data sets. options: settings of the environment as
    `stringpe eval` takes them, for example '["lighting=dim", "depth_noise=true"]'. calibration: include the cameras'
    poses, which policies in the world frame need."""

    task: str | None = "KukaPick"
    fps: int = 10
    size: int = 128
    cameras: list[str] = field(default_factory=list)
    depth: bool = True
    options: list[str] = field(default_factory=list)
    calibration: bool = False

    def __post_init__(self) -> None:
        env = robots.make(self.task or "", cameras=(), **parse_options(self.options))
        self.fps = round(env.fps)
        names = self.cameras or list(env.robot.cameras)
        count = env.action_space.shape[0]
        side = (self.size, self.size)
        self.features = {
            "action": PolicyFeature(FeatureType.ACTION, (count,)),
            "agent_pos": PolicyFeature(FeatureType.STATE, (count,)),
        }
        self.features_map = {"action": "action", "agent_pos": STATE}
        for name in names:
            self.features[f"pixels/{name}"] = PolicyFeature(FeatureType.VISUAL, (*side, 3))
            self.features_map[f"pixels/{name}"] = IMAGES + name
            if self.depth:
                key = _strip_prefix(stored_key(DEPTH + name))
                self.features[key] = PolicyFeature(FeatureType.VISUAL, (*side, 1))
                self.features_map[key] = stored_key(DEPTH + name)

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Arguments of `stringpe.robots.make`."""
        arguments = {"size": (self.size, self.size), "cameras": tuple(self.cameras) or None, "depth": self.depth}
        arguments |= {"calibration": self.calibration}
        return arguments | parse_options(self.options)

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, gym.vector.VectorEnv]]:
        """`n_envs` environments side by side, each in a process of its own if `use_async_envs`."""
        make = partial(RobotTask, self.task or "", self.gym_kwargs)
        mode = gym.vector.AutoresetMode.SAME_STEP
        if use_async_envs and n_envs > 1:  # a rendering context does not survive a fork
            vector: Any = gym.vector.AsyncVectorEnv([make] * n_envs, context="spawn", autoreset_mode=mode)
        else:
            vector = gym.vector.SyncVectorEnv([make] * n_envs, autoreset_mode=mode)
        return {self.type: {0: vector}}


class RobotTask(gym.Env[Any, Any]):
    """An environment of stringpe whose observations have LeRobot's names: agent_pos, pixels, and depth (1, h, w) in
    millimetres."""

    def __init__(self, task: str, options: dict[str, Any]):
        self.env = robots.make(task, **options)
        self.task, self.task_description = task, self.env.task_text
        self._max_episode_steps = self.env.max_steps
        self.metadata, self.render_mode = self.env.metadata, "rgb_array"
        self.action_space = self.env.action_space
        spaces = self.env.observation_space.spaces
        depth_shapes = {_strip_prefix(stored_key(k)): (1, *s.shape) for k, s in spaces.items() if k.startswith(DEPTH)}
        pixels = {k.removeprefix(IMAGES): s for k, s in spaces.items() if k.startswith(IMAGES)}
        self.observation_space = gym.spaces.Dict(
            {"agent_pos": spaces[STATE], "pixels": gym.spaces.Dict(pixels)}
            | {key: gym.spaces.Box(0, np.inf, shape, np.float32) for key, shape in depth_shapes.items()}
            | {_strip_prefix(key): space for key, space in spaces.items() if key.startswith(CAMERA)}
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        return _rename(observation), info | {"is_success": info["success"]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, success, timeout, info = self.env.step(action)
        return _rename(observation), reward, success, timeout, info | {"is_success": info["success"]}

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()


def _rename(observation: dict[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {"agent_pos": observation[STATE], "pixels": {}}
    for key, value in observation.items():
        if key.startswith(IMAGES):
            renamed["pixels"][key.removeprefix(IMAGES)] = value
        elif key.startswith(DEPTH):
            renamed[_strip_prefix(stored_key(key))] = (value / MILLIMETRE).astype(np.float32)[None]
        elif key.startswith(CAMERA):
            renamed[_strip_prefix(key)] = value
    return renamed


def _strip_prefix(key: str) -> str:
    """A key without LeRobot's prefix "observation."."""
    return key.removeprefix("observation.")
