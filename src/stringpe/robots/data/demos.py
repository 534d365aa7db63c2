"""Demonstrations: a scripted expert acts, its commands are replayed from the same seed, and what succeeds is stored."""

import ast
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import make
from .dataset import Writer, write_meta

if TYPE_CHECKING:
    from ..sim.env import RobotEnv

SETTINGS = "demos.json"
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """What the episodes of a folder have in common. options: of the environment, such as a lighting."""

    task: str
    size: tuple[int, int] = (128, 128)
    cameras: tuple[str, ...] = ()  # all
    depth: bool = False
    seed: int = 0
    noise: float = 1.0
    quality: int = 90  # of JPEG images; 0 is PNG
    options: dict[str, Any] = field(default_factory=dict)

    def env(self) -> "RobotEnv":
        """The environment with its cameras."""
        cameras = self.cameras or None
        return make(self.task, size=self.size, cameras=cameras, depth=self.depth, **self.options)


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` as typed: numbers, booleans and tuples as Python writes them, anything else as text."""
    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key.isidentifier() and equals):
            raise ValueError(f"an option of the environment is key=value, got {word!r}")
        try:
            found[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[key] = {"true": True, "false": False}.get(value.lower(), value)
    return found


def demonstrate(env: "RobotEnv", seed: int, noise: float = 1.0) -> npt.NDArray[np.float32] | None:
    """The actions (t, a) of an expert that reaches the goal from a seed, or None if it does not. Renders nothing."""
    from ..sim.expert import Expert

    env.restart(seed)
    expert = Expert(env, seed, noise)
    actions: list[npt.NDArray[np.float32]] = []
    while (action := expert.act()) is not None and len(actions) < env.max_steps:
        actions.append(action)
        if env.advance(action)["success"]:
            return np.stack(actions)
    return None


def replay(env: "RobotEnv", seed: int, actions: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]] | None:
    """The episode that actions make from a seed, as columns of a data set, or None if they do not reach the goal."""
    observation, info = env.reset(seed=seed)
    rows: list[dict[str, Any]] = []
    for action in actions:
        row = dict(observation) | {"action": action}
        observation, reward, success, _, info = env.step(action)
        rows.append(row | {"next.reward": np.float32(reward), "next.done": success})
    if not info["success"]:
        return None
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def write(
    out: Path, episodes: int, settings: Settings, *, jobs: int = 1, progress: Progress = lambda done, failed: None
) -> tuple[int, int]:
    """Writes demonstrations to a LeRobot-style folder until it holds `episodes`; what is there already counts.

    Seeds are taken in order from `settings.seed`, as many as it takes, so the episodes do not depend on `jobs`.
    Returns how many episodes the folder holds and how many seeds failed. `progress(done, failed)` hears of every seed.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    _expert_exists(settings)
    _agree(out, settings)
    writer = _writer(out, settings)
    there = writer.seeds
    tally = _Tally(len(there))
    progress(tally.done, tally.failed)
    seeds = (seed for seed in _count(settings.seed) if seed not in there)
    try:
        for made in _made(out, settings, seeds, lambda: episodes - tally.done, jobs):
            tally.done, tally.failed = tally.done + made, tally.failed + (not made)
            if tally.failed > 20 + 3 * tally.done:
                tried = tally.done + tally.failed
                raise ValueError(f"the expert of {settings.task} failed on {tally.failed} of {tried} seeds")
            progress(tally.done, tally.failed)
    finally:
        write_meta(out)
    return tally.done, tally.failed


@dataclass
class _Tally:
    done: int
    failed: int = 0


def _made(out: Path, settings: Settings, seeds: Iterator[int], wanted: Callable[[], int], jobs: int) -> Iterator[bool]:
    """Whether each seed gave an episode. No seed is begun that might not be wanted."""
    if jobs == 1:
        _open(out, settings)
        while wanted() > 0:
            yield _episode(next(seeds))
        _close()
        return
    context = multiprocessing.get_context("spawn")  # a rendering context does not survive a fork
    running: set[Future[bool]] = set()
    with ProcessPoolExecutor(jobs, context, _open, (out, settings)) as pool:
        try:
            while wanted() > 0:
                while len(running) < min(wanted(), 2 * jobs):
                    running.add(pool.submit(_episode, next(seeds)))
                finished, running = wait(running, return_when=FIRST_COMPLETED)
                for each in finished:
                    yield each.result()
        except BrokenProcessPool as broken:
            raise OSError(
                "a process was killed; its episode is lost, the others are kept: run it again to go on"
            ) from broken
        finally:
            pool.shutdown(cancel_futures=True)


_worker: tuple["RobotEnv", Writer, Settings] | None = None


def _open(out: Path, settings: Settings) -> None:
    """The environment and the writer of this process."""
    global _worker
    _worker = (settings.env(), _writer(out, settings), settings)


def _close() -> None:
    global _worker
    if _worker is not None:
        _worker[0].close()
    _worker = None


def _episode(seed: int) -> bool:
    """Makes and stores the episode of a seed; False if the expert or the replay failed."""
    assert _worker is not None
    env, writer, settings = _worker
    actions = demonstrate(env, seed, settings.noise)
    frames = None if actions is None else replay(env, seed, actions)
    if frames is None:
        return False
    writer.add(frames, task=env.task_text, seed=seed)
    return True


def _writer(out: Path, settings: Settings) -> Writer:
    robot = "kuka" if settings.task.startswith("Kuka") else "aloha"
    return Writer(out, fps=10.0, robot=robot, quality=settings.quality)


def _expert_exists(settings: Settings) -> None:
    """Refuses a task without an expert before any process is started."""
    from ..sim.expert import Expert

    env = make(settings.task, cameras=(), **settings.options)
    env.restart(settings.seed)
    Expert(env)


def _agree(out: Path, settings: Settings) -> None:
    """Writes the settings of a new folder; refuses a folder that was begun with others."""
    path, now = out / SETTINGS, json.loads(json.dumps(asdict(settings)))
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        other = [f"{key} was {before.get(key)!r}, now {now[key]!r}" for key in now if before.get(key) != now[key]]
        if other:
            raise ValueError(f"{out} was begun with other settings ({'; '.join(other)}): choose another folder")
        return
    out.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    os.replace(draft, path)


def _count(start: int) -> Iterator[int]:
    while True:
        yield start
        start += 1
