"""A stand-in for a robot: a point in the plane that shall reach a red target seen in the image. No simulator needed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIDE = 16
STEPS = 25


def picture(point, target, side=SIDE):
    """(side, side, 3) uint8: the target red, the point blue, both discs."""
    ys, xs = np.mgrid[0:side, 0:side] / (side - 1) * 2 - 1
    image = np.full((side, side, 3), 40, np.uint8)
    image[(xs - target[0]) ** 2 + (ys - target[1]) ** 2 < 0.2**2] = (230, 40, 40)
    image[(xs - point[0]) ** 2 + (ys - point[1]) ** 2 < 0.12**2] = (40, 40, 230)
    return image


class Reach(gymnasium.Env):
    """State (2,): the point. Action (2,): where it shall be; it gets at most 0.12 nearer a step."""

    fps = 10.0
    task_text = "reach the red target"

    def __init__(self, size=(SIDE, SIDE), cameras=("top",), depth=False, crash=(), **_: Any):
        self.size, self.cameras, self.depth, self.crash = size, cameras, depth, crash
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"observation.state": gymnasium.spaces.Box(-1, 1, (2,), np.float32)}
        )
        self.render_mode = "rgb_array"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed_ = seed
        self.point, self.target = self.np_random.uniform(-0.8, 0.8, (2, 2))
        self.steps = 0
        return self.observation(), {"success": False}

    def observation(self):
        image = picture(self.point, self.target, self.size[0])
        found = {"observation.state": self.point.astype(np.float32)}
        for camera in self.cameras:
            found[f"observation.images.{camera}"] = image
            if self.depth:
                found[f"observation.depth.{camera}"] = 1.0 - 0.3 * (image[..., 0] > 200).astype(np.float32)
        return found

    def step(self, action):
        if self.seed_ in self.crash and self.steps == 3:
            raise RuntimeError("the simulation is unstable")
        step = np.asarray(action, np.float64) - self.point
        self.point = self.point + step * min(1, 0.12 / max(np.linalg.norm(step), 1e-9))
        self.steps += 1
        distance = float(np.linalg.norm(self.point - self.target))
        success = distance < 0.2  # it touches the red disc
        return self.observation(), 1.0 - distance, success, self.steps >= STEPS, {"success": success}

    def render(self):
        return picture(self.point, self.target, self.size[0])


class Touch(Reach):
    """The same under another name, for policies of several tasks."""

    task_text = "touch the red target"


def make(**options):
    """The same environment by a function."""
    return Reach(**options)


def demonstration(seed, noise=0.0, **options):
    """Frames of an expert that goes straight to the target, and stays two steps."""
    env = Reach(**options)
    observation, _ = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    seen, actions = [], []
    for _ in range(STEPS):
        action = (env.target + noise * rng.normal(size=2)).astype(np.float32)
        seen.append(observation)
        actions.append(action)
        observation, _, done, _, _ = env.step(action)
        if done:
            break
    return {key: np.stack([o[key] for o in seen]) for key in seen[0]} | {"action": np.stack(actions)}
