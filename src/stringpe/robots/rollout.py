"""Trials of a policy in lockstep: several environments, one network that plans for all of them at once.

A round is one call of the network and then, environment by environment, the actions that it planned. A trial that ends
makes room for the next. The outcome of a trial depends on its seed alone, not on the trials beside it: the seed fixes
the initial state and the policy's noise, and `RobotPolicy.plan_actions` always computes batches of one size.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .. import viewer
from .data.columns import IMAGES
from .data.video import write_video

ENVIRONMENTS = 8
"""Environments that one process steps side by side, as many as the network takes per call."""

_ON_A_PAGE = 80  # moments that a page shows at most


class Planner(Protocol):
    """What a trial needs of a policy: `RobotPolicy` has it."""

    def plan_actions(self, observations: Sequence[dict[str, Any]], generators: Sequence[torch.Generator]) -> Any:
        """Actions (n, k, a) to carry out before the next observation, for n observations."""


@dataclass(frozen=True)
class Trial:
    """One episode of a policy. crashed: what went wrong in the simulation, "" if nothing did. hung: whether the
    simulation was ended because it no longer answered. A crash is not a success."""

    seed: int
    success: bool
    sum_reward: float
    max_reward: float
    steps: int
    seconds: float
    crashed: str = ""
    video: str = ""
    hung: bool = False


@dataclass(frozen=True)
class TrialSetting:
    """Functions that make an environment and a policy, called in every process that runs trials; they are pickled.

    videos: how many of each outcome are kept in `folder`. steps: after how many a trial ends in any case. html: write a
    page beside each video, to step through its cameras."""

    env: Callable[[], Any]
    policy: Callable[[], Planner]
    folder: Path | None = None
    videos: int = 0
    steps: int = 10_000
    html: bool = False


class RunningTrial:
    """One trial under way. Exceptions of the environment end it as crashed; `trial` is its result, None before the end.

    For a video it keeps the simulator's state at every step where the environment can give it (`snapshot`), else the
    pictures; states are rendered once it is known that the video is wanted."""

    def __init__(self, env: Any, seed: int, setting: TrialSetting):
        self.env, self.seed, self.setting = env, seed, setting
        self.generator = torch.Generator().manual_seed(seed)
        self.trial: Trial | None = None
        self._began, self._rewards = time.monotonic(), list[float]()
        self._moments: list[Any] | None = [] if _wants_video(setting) else None
        self._can_skip_rendering = hasattr(env.unwrapped, "advance")
        self._attempt(self._reset)

    def follow(self, actions: Any) -> None:
        """Carry out planned actions (k, a), until the trial ends; then observe."""
        for action in actions:
            self._check(action)
        self._attempt(lambda: self._follow(actions))

    def observe(self) -> dict[str, Any]:
        """What the policy sees now."""
        text = getattr(self.env.unwrapped, "task_text", None)
        return self._observation if text is None else {**self._observation, "task": text}

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # whatever a simulator raises is a crash of this trial and of no other
            self.trial = crash(self.seed, f"{type(error).__name__}: {error}", len(self._rewards), self._began)

    def _reset(self) -> None:
        self._observation, _ = self.env.reset(seed=self.seed)
        self._note()

    def _follow(self, actions: Any) -> None:
        for number, action in enumerate(actions):
            reward, success, ended = self._step(action, last=number == len(actions) - 1)
            self._rewards.append(float(reward))
            self._note()
            if success or ended or len(self._rewards) >= self.setting.steps:
                self._finish(success)
                return

    def _step(self, action: Any, last: bool) -> tuple[float, bool, bool]:
        """Reward, success and end of one step, which renders only if the policy will look at the result."""
        env = self.env.unwrapped
        if self._can_skip_rendering and not last:
            info = env.advance(action)
            return info["stage"] / len(env.stages), info["success"], len(self._rewards) + 1 >= env.max_steps
        self._observation, reward, terminated, truncated, info = self.env.step(action)
        return float(reward), bool(info["success"]), bool(terminated or truncated)

    def _check(self, action: Any) -> None:
        """A wrong action is a fault of the policy, not a crash of the simulation."""
        wanted = self.env.action_space.shape
        if np.shape(action) != wanted:
            raise ValueError(f"the policy gives actions of shape {np.shape(action)}, this environment takes {wanted}")
        if not np.isfinite(action).all():
            raise ValueError(f"the policy gave an action that is not finite: {np.asarray(action).tolist()}")

    def _note(self) -> None:
        if self._moments is None:
            return
        if hasattr(self.env.unwrapped, "snapshot"):
            self._moments.append(self.env.unwrapped.snapshot())
        else:
            cameras = [self._observation[key] for key in sorted(self._observation) if key.startswith(IMAGES)]
            self._moments.append(np.concatenate(cameras, axis=1))

    def _finish(self, success: bool) -> None:
        total, most = math.fsum(self._rewards), max(self._rewards)
        video = self._write_video(success)
        seconds = time.monotonic() - self._began
        self.trial = Trial(self.seed, success, total, most, len(self._rewards), seconds, video=video)

    def _write_video(self, success: bool) -> str:
        folder, env = self.setting.folder, self.env.unwrapped
        if folder is None or not self._moments or _count_videos(folder, success) >= self.setting.videos:
            return ""
        folder.mkdir(parents=True, exist_ok=True)
        shown = [env.show(moment) for moment in self._moments] if hasattr(env, "snapshot") else self._moments
        path = folder / f"{_outcome(success)}_{self.seed}"
        video = write_video(path, shown, float(getattr(env, "fps", 10.0)))
        if self.setting.html:
            self._write_page(path.with_suffix(".html"), shown, success)
        return video.name

    def _write_page(self, path: Path, shown: Sequence[Any], success: bool) -> None:
        """A page with the cameras of the video, which stand side by side in the order of their names."""
        names = [key.removeprefix(IMAGES) for key in sorted(self._observation) if key.startswith(IMAGES)]
        every = -(-len(shown) // _ON_A_PAGE)
        pictures = torch.from_numpy(np.stack(shown[::every])).permute(0, 3, 1, 2)  # (t, 3, h, cameras · w)
        cameras = dict(zip(names, (list(part) for part in pictures.chunk(len(names), dim=3)), strict=True))
        pace = {1: "", 2: ", of which every second one is shown"}.get(every, f", of which one in {every} is shown")
        text = f"{_outcome(success).capitalize()} from initial state {self.seed}: {len(shown) - 1} steps{pace}."
        title = getattr(self.env.unwrapped, "task_text", "") or "Rollout"
        viewer.save(viewer.show_rollout(cameras, text, title=f"{title[:1].upper()}{title[1:]}"), path)


class Lockstep:
    """Trials of one setting, side by side in this process.

    report(seed): called before the environment of a trial is made, reset or stepped; report(None): when the network
    takes over. A supervisor learns from it which simulation it is waiting for."""

    def __init__(
        self, setting: TrialSetting, policy: Planner, report: Callable[[int | None], None] = lambda seed: None
    ):
        self.setting, self.policy, self.report = setting, policy, report
        self.under_way: list[RunningTrial] = []
        self._idle: list[Any] = []

    @property
    def room(self) -> int:
        """How many more trials can begin."""
        return ENVIRONMENTS - len(self.under_way)

    def begin(self, seed: int) -> Trial | None:
        """Start a trial; its result if it crashes at once."""
        self.report(seed)
        try:
            env = self._idle.pop() if self._idle else self.setting.env()
        except Exception as error:
            return crash(seed, f"{type(error).__name__}: {error}", 0, time.monotonic())
        running = RunningTrial(env, seed, self.setting)
        self.report(None)
        if running.trial is not None:
            return self._end(running)
        self.under_way.append(running)
        return None

    def advance(self) -> list[Trial]:
        """One round of all trials under way; the results of those that ended."""
        plans = self.policy.plan_actions(
            [running.observe() for running in self.under_way], [running.generator for running in self.under_way]
        )
        for running, actions in zip(self.under_way, plans, strict=True):
            self.report(running.seed)
            running.follow(actions)
        self.report(None)
        ended = [running for running in self.under_way if running.trial is not None]
        self.under_way = [running for running in self.under_way if running.trial is None]
        return [self._end(running) for running in ended]

    def close(self) -> None:
        """Close all environments."""
        for env in [*self._idle, *(running.env for running in self.under_way)]:
            _close(env)
        self._idle, self.under_way = [], []

    def _end(self, running: RunningTrial) -> Trial:
        """The result of a trial. Its environment is used again, unless it crashed."""
        assert running.trial is not None
        if running.trial.crashed:
            _close(running.env)
        else:
            self._idle.append(running.env)
        return running.trial


def crash(seed: int, text: str, steps: int, began: float, hung: bool = False) -> Trial:
    """The result of a trial whose simulation failed."""
    return Trial(seed, False, 0.0, 0.0, steps, time.monotonic() - began, crashed=text, hung=hung)


def _close(env: Any) -> None:
    try:
        env.close()
    except Exception:  # a broken environment may not close either
        return


def _wants_video(setting: TrialSetting) -> bool:
    folder = setting.folder
    return folder is not None and any(_count_videos(folder, outcome) < setting.videos for outcome in (True, False))


def _count_videos(folder: Path, success: bool) -> int:
    return sum(path.suffix != ".html" for path in folder.glob(f"{_outcome(success)}_*"))


def _outcome(success: bool) -> str:
    return "success" if success else "failure"
