"""Recording demonstrations: a scripted expert acts, its actions are replayed from the same seed with the cameras on,
and the episodes that succeed again are stored."""

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...io.files import claim_folder
from ...io.processes import WorkerPool
from .. import make
from .claims import Claims, end_process_after
from .writer import Writer, write_meta

if TYPE_CHECKING:
    from ..sim.env import RobotEnv

SETTINGS = "demos.json"
PATIENCE = 600.0
"""Seconds for one episode, after which its process counts as hung and is ended."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DemoSettings:
    """What all episodes of a folder have in common. options: of the environment, for example its lighting."""

    task: str
    size: tuple[int, int] = (128, 128)  # height and width of the pictures
    cameras: tuple[str, ...] = ()  # () for all of the robot
    depth: bool = False
    seed: int = 0  # of the first episode
    noise: float = 1.0  # of the expert's way-points and pace
    quality: int = 90  # of JPEG images; 0 for PNG
    options: dict[str, Any] = field(default_factory=dict)

    def env(self) -> "RobotEnv":
        """The environment with its cameras, whose calibration is recorded together with depth."""
        sees: dict[str, Any] = {"cameras": self.cameras or None, "depth": self.depth, "calibration": self.depth}
        env: RobotEnv = make(self.task, size=self.size, **sees, **self.options)
        return env


def parse_options(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` as typed: numbers, booleans and tuples as Python writes them, anything else as text."""
    options: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not (key.isidentifier() and equals):
            raise ValueError(f"an option of the environment is key=value, got {word!r}")
        try:
            options[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            options[key] = {"true": True, "false": False}.get(value.lower(), value)
    return options


def demonstrate(env: "RobotEnv", seed: int, noise: float = 1.0) -> npt.NDArray[np.float32] | None:
    """The actions (t, a) with which the expert reaches the goal from a seed, or None if it does not. Nothing is
    rendered."""
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
    """The episode that results from actions and a seed, as columns of a data set, or None if they do not reach the
    goal."""
    observation, info = env.reset(seed=seed)
    rows: list[dict[str, Any]] = []
    for action in actions:
        row = {key: value for key, value in observation.items() if not key.endswith(".intrinsics")}
        row |= {"action": action}
        observation, reward, success, _, info = env.step(action)
        rows.append(row | {"next.reward": np.float32(reward), "next.done": success})
    if not info["success"]:
        return None
    return {key: np.stack([row[key] for row in rows]) for key in rows[0]}


def write(
    out: Path,
    episodes: int,
    settings: DemoSettings,
    *,
    jobs: int = 0,
    patience: float = PATIENCE,
    progress: Progress = lambda done, failed: None,
) -> tuple[int, int]:
    """Write demonstrations to a LeRobot data set until it holds `episodes`; those that are there already count.

    Seeds are taken in order from `settings.seed`, as many as it takes, so that the episodes do not depend on `jobs` or
    on how many processes fill the folder at the same time. jobs=0 runs everything in this process, without protection
    against simulations that hang; in processes of their own, a seed that takes longer than `patience` seconds has
    failed. Returns how many episodes the folder holds and how many seeds failed; progress(done, failed) is called after
    every seed.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be at least 1, got {episodes}")
    fps = _check_expert(settings)
    claim_folder(out, asdict(settings), file=SETTINGS, what="set of demonstrations")
    data = Writer(out, fps=fps)  # writes nothing: it knows the episodes of all processes
    claims = Claims(out, settings.seed, episodes, lambda: data.seeds)
    try:
        for _ in _make_episodes(out, episodes, settings, claims, jobs, patience):
            done, failed = len(data), len(claims.failed())
            if failed > 20 + 3 * done:
                raise ValueError(f"the expert of {settings.task} failed on {failed} of {done + failed} seeds")
            progress(done, failed)
    finally:
        write_meta(out)
    return len(data), len(claims.failed())


def _make_episodes(
    out: Path, episodes: int, settings: DemoSettings, claims: Claims, jobs: int, patience: float
) -> Iterator[bool]:
    """Try one seed after the other until the folder holds enough episodes; yields whether each gave one. When a process
    hangs, its seed has failed, and new processes take over."""
    if not jobs:
        worker = _Worker(out, episodes, settings)
        try:
            while (success := worker.make_episode()) is not None:
                yield success
        finally:
            worker.close()
        return
    while True:
        before = claims.hung()
        try:
            yield from _make_in_processes(jobs, (out, episodes, settings, patience))
            return
        except BrokenProcessPool as broken:
            hung = sorted(claims.hung() - before)
            if not hung:
                raise OSError(
                    f"a process was killed or could not open its environment in {patience:g} s: its episode is lost, "
                    "the others are kept, run it again to go on"
                ) from broken
            for seed in hung:
                place = claims.hang_file(seed)
                print(f"seed {seed} gave no episode in {patience:g} s and is left out: see {place}", file=sys.stderr)
                yield False


def _make_in_processes(jobs: int, arguments: tuple[Path, int, DemoSettings, float]) -> Iterator[bool]:
    """The same by several processes side by side; BrokenProcessPool if one of them ends."""
    with WorkerPool(jobs, _open, arguments) as pool:
        running: set[Future[bool | None]] = {pool.submit(_make_episode) for _ in range(jobs)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for call in finished:
                success = call.result()
                if success is not None:
                    running.add(pool.submit(_make_episode))
                    yield success


class _Worker:
    """An environment and a writer, which make one episode after the other. patience: seconds for an episode, after
    which the whole process is ended; 0 for no limit."""

    def __init__(self, out: Path, episodes: int, settings: DemoSettings, patience: float = 0.0):
        self.settings, self.env, self.patience = settings, settings.env(), patience
        robot, fps, quality = self.env.robot.name, self.env.fps, settings.quality
        cameras = {camera: {"intrinsics": self.env.intrinsics(camera).tolist()} for camera in self.env.cameras}
        self.writer = Writer(out, fps=fps, robot=robot, quality=quality, cameras=cameras)
        self.claims = Claims(out, settings.seed, episodes, lambda: self.writer.seeds)

    def make_episode(self) -> bool | None:
        """Make and store the next episode; False if its seed failed, None if there are enough."""
        with self.claims.next() as seed:
            if seed is None:
                return None
            with self.claims.end_if_hung(seed, self.patience):
                return self._make(seed)

    def _make(self, seed: int) -> bool:
        actions = demonstrate(self.env, seed, self.settings.noise)
        frames = None if actions is None else replay(self.env, seed, actions)
        if frames is None:
            self.claims.fail(seed)
            return False
        self.writer.add(frames, task=self.env.task_text, seed=seed)
        return True

    def close(self) -> None:
        self.env.close()


_worker: _Worker | None = None


def _open(out: Path, episodes: int, settings: DemoSettings, patience: float) -> None:
    """Begin a process of the pool; it ends if its environment cannot be made in time."""
    global _worker
    with open(os.devnull, "w") as nowhere, end_process_after(patience, nowhere):
        _worker = _Worker(out, episodes, settings, patience)


def _make_episode() -> bool | None:
    assert _worker is not None
    return _worker.make_episode()


def _check_expert(settings: DemoSettings) -> float:
    """Refuse a task without an expert before any process is started; returns its actions per second."""
    from ..sim.expert import Expert

    env: RobotEnv = make(settings.task, cameras=(), **settings.options)
    env.restart(settings.seed)
    Expert(env)
    return env.fps
