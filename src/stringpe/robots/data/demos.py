"""Demonstrations: a scripted expert acts, its commands are replayed from the same seed, and successes are stored."""

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
RATE = 10.0  # actions per second of all environments
PATIENCE = 600.0
"""Seconds for one episode, after which its process counts as hung and is ended."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class DemoSettings:
    """What all episodes of a folder have in common. options: of the environment, for example its lighting."""

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
        deep = self.depth
        return make(self.task, size=self.size, cameras=cameras, depth=deep, calibration=deep, **self.options)


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
    _check_expert(settings)
    claim_folder(out, asdict(settings), file=SETTINGS, what="set of demonstrations")
    seeds = _SeedsThere(out)
    claims = Claims(out, settings.seed, episodes, seeds)
    try:
        for _ in _outcomes(out, episodes, settings, jobs, patience):
            done, failed = len(seeds()), len(claims.failed())
            if failed > 20 + 3 * done:
                raise ValueError(f"the expert of {settings.task} failed on {failed} of {done + failed} seeds")
            progress(done, failed)
    finally:
        write_meta(out)
    return len(seeds()), len(claims.failed())


class _SeedsThere:
    """Seeds of the episodes in a folder, whoever wrote them."""

    def __init__(self, folder: Path):
        self._writer = Writer(folder, fps=RATE)

    def __call__(self) -> set[int]:
        return self._writer.seeds


def _outcomes(out: Path, episodes: int, settings: DemoSettings, jobs: int, patience: float) -> Iterator[bool]:
    """Whether each seed that was tried gave an episode, until the folder holds enough. When a process hangs, its seed
    has failed, and new processes take over."""
    if not jobs:
        worker = _Worker(out, episodes, settings)
        try:
            while (outcome := worker.make_episode()) is not None:
                yield outcome
        finally:
            worker.close()
        return
    claims = Claims(out, settings.seed, episodes, set)
    while True:
        before = claims.hung()
        try:
            yield from _outcomes_of_pool(jobs, (out, episodes, settings, patience))
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


def _outcomes_of_pool(jobs: int, arguments: tuple[Path, int, DemoSettings, float]) -> Iterator[bool]:
    """The same from processes; BrokenProcessPool if one of them ends."""
    with WorkerPool(jobs, _open, arguments) as pool:
        running: set[Future[bool | None]] = {pool.submit(_make_episode) for _ in range(jobs)}
        while running:
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for each in finished:
                outcome = each.result()
                if outcome is not None:
                    running.add(pool.submit(_make_episode))
                    yield outcome


class _Worker:
    """An environment and a writer, which make one episode after the other. patience: seconds for one of them, after
    which the whole process ends; 0 is no limit."""

    def __init__(self, out: Path, episodes: int, settings: DemoSettings, patience: float = 0.0):
        self.settings, self.env, self.patience = settings, settings.env(), patience
        robot = self.env.robot.name
        cameras = {camera: {"intrinsics": self.env.intrinsics(camera).tolist()} for camera in self.env.cameras}
        self.writer = Writer(out, fps=self.env.fps, robot=robot, quality=settings.quality, cameras=cameras)
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


def _check_expert(settings: DemoSettings) -> None:
    """Refuse a task without an expert before any process is started."""
    from ..sim.expert import Expert

    env = make(settings.task, cameras=(), **settings.options)
    env.restart(settings.seed)
    Expert(env)
