"""Policies at work: one trial a seed, in this process or in several, and what becomes of a simulation that crashes.

A seed fixes the initial state, so that every policy meets the same ones. Seeds of trials start far above those of
demonstrations: no policy is tried on an initial state that it was shown.
"""

import math
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from .data.parquet import IMAGES
from .data.video import write_video

FIRST_SEED = 1_000_000


class Actor(Protocol):
    """What a trial needs of a policy."""

    def reset(self) -> None: ...
    def select_action(self, observation: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class Trial:
    """One episode of a policy. crashed: what the simulation said, "" if it did not crash; a crash is no success."""

    seed: int
    success: bool
    sum_reward: float
    max_reward: float
    steps: int
    seconds: float
    crashed: str = ""
    video: str = ""


@dataclass(frozen=True)
class Setting:
    """Makers of an environment and of a policy, called once in every process; spawned ones get them by pickling.

    videos: how many of each outcome are kept in `folder`. steps: where a trial ends if the environment does not."""

    env: Callable[[], Any]
    policy: Callable[[], Actor]
    folder: Path | None = None
    videos: int = 0
    steps: int = 10_000


def trials(setting: Setting, seeds: Sequence[int], jobs: int = 1) -> Iterator[Trial]:
    """A trial a seed, in the order in which they end. A process that dies takes no other trial with it."""
    if jobs <= 1:
        worker = _Worker(setting)
        yield from map(worker.trial, seeds)
        worker.close()
        return
    left = deque(seeds)
    while left:
        suspects = []
        for seed, trial in _pooled(setting, left, min(jobs, len(left))):
            if trial is None:
                suspects.append(seed)
            else:
                yield trial
        for seed in suspects:  # one of them killed its process: each again, alone
            ((_, trial),) = _pooled(setting, deque([seed]), 1)
            yield _crash(seed, "the process of the simulation died", 0, 0.0) if trial is None else trial


def _pooled(setting: Setting, left: deque[int], jobs: int) -> Iterator[tuple[int, Trial | None]]:
    """Trials of seeds taken from `left`, in processes of their own, until one dies: None for those then under way."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    context = multiprocessing.get_context("spawn")  # rendering contexts and thread pools do not survive a fork
    with ProcessPoolExecutor(jobs, context, _begin, (setting, threads)) as pool:
        under_way: dict[Future[Trial], int] = {}
        broken = False
        while under_way or (left and not broken):
            while left and len(under_way) < jobs and not broken:
                seed = left.popleft()
                under_way[pool.submit(_run, seed)] = seed
            for future in wait(under_way, return_when=FIRST_COMPLETED).done:
                seed = under_way.pop(future)
                broken = broken or isinstance(future.exception(), BrokenProcessPool)
                yield seed, None if isinstance(future.exception(), BrokenProcessPool) else future.result()


_worker: "_Worker | None" = None


def _begin(setting: Setting, threads: int) -> None:
    global _worker
    torch.set_num_threads(threads)
    _worker = _Worker(setting)


def _run(seed: int) -> Trial:
    assert _worker is not None
    return _worker.trial(seed)


class _Worker:
    """An environment and a policy, kept from trial to trial; the environment is made anew after a crash."""

    def __init__(self, setting: Setting):
        self.setting, self.policy = setting, setting.policy()
        self.env: Any = None

    def trial(self, seed: int) -> Trial:
        """One episode. What the policy raises is a fault and goes up; what the environment raises is counted."""
        began = time.monotonic()
        rewards: list[float] = []
        pictures: list[Any] | None = [] if self._wants_video() else None
        success = False
        torch.manual_seed(seed)  # the policy's own noise depends on nothing but the trial
        self.policy.reset()
        try:
            self.env = self.setting.env() if self.env is None else self.env
            observation, info = self.env.reset(seed=seed)
        except Exception as error:
            return self._crashed(seed, error, 0, began)
        while len(rewards) < self.setting.steps:
            _record(pictures, observation)
            action = self._action(observation)
            try:
                observation, reward, ended, info = self._step(action, observation, len(rewards), pictures is None)
            except Exception as error:
                return self._crashed(seed, error, len(rewards), began)
            rewards.append(float(reward))
            success = bool(info["success"])
            if success or ended:
                break
        _record(pictures, observation)
        video = self._write(seed, success, pictures)
        total, most = math.fsum(rewards), max(rewards)
        return Trial(seed, success, total, most, len(rewards), time.monotonic() - began, video=video)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None

    def _action(self, observation: dict[str, Any]) -> Any:
        text = getattr(self.env.unwrapped, "task_text", None)
        action = self.policy.select_action(observation if text is None else {**observation, "task": text})
        wanted = self.env.action_space.shape
        if np.shape(action) != wanted:
            raise ValueError(f"the policy gives actions of shape {np.shape(action)}, this environment takes {wanted}")
        if not np.isfinite(action).all():
            raise ValueError(f"the policy gave an action that is not finite: {np.asarray(action).tolist()}")
        return action

    def _step(
        self, action: Any, observation: dict[str, Any], steps: int, quick: bool
    ) -> tuple[dict[str, Any], float, bool, dict[str, Any]]:
        """One step; without rendering where the environment can do so and nobody will look."""
        env = self.env.unwrapped
        if quick and hasattr(env, "advance") and getattr(self.policy, "queued", False):
            info = env.advance(action)
            return observation, info["stage"] / len(env.stages), steps + 1 >= env.max_steps, info
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or truncated, info

    def _crashed(self, seed: int, error: Exception, steps: int, began: float) -> Trial:
        try:
            self.close()
        except Exception:  # what is broken may not close either
            self.env = None
        return _crash(seed, f"{type(error).__name__}: {error}", steps, time.monotonic() - began)

    def _wants_video(self) -> bool:
        folder = self.setting.folder
        return folder is not None and any(_count(folder, s) < self.setting.videos for s in (True, False))

    def _write(self, seed: int, success: bool, pictures: list[Any] | None) -> str:
        folder = self.setting.folder
        if folder is None or not pictures or _count(folder, success) >= self.setting.videos:
            return ""
        folder.mkdir(parents=True, exist_ok=True)
        fps = float(getattr(self.env.unwrapped, "fps", 10.0))
        return write_video(folder / f"{_outcome(success)}_{seed}", pictures, fps).name


def _record(pictures: list[Any] | None, observation: dict[str, Any]) -> None:
    if pictures is not None:
        cameras = [observation[key] for key in sorted(observation) if key.startswith(IMAGES)]
        pictures.append(np.concatenate(cameras, axis=1))


def _count(folder: Path, success: bool) -> int:
    return len(list(folder.glob(f"{_outcome(success)}_*")))


def _outcome(success: bool) -> str:
    return "success" if success else "failure"


def _crash(seed: int, text: str, steps: int, seconds: float) -> Trial:
    return Trial(seed, False, 0.0, 0.0, steps, seconds, crashed=text)
