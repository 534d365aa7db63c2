"""Trials of policies in supervised processes: one that dies or hangs costs one trial and no other.

    with TrialWorkers(jobs=2) as workers:
        for trial in workers.run(TrialSetting(make_env, make_policy), seeds=range(FIRST_SEED, FIRST_SEED + 50)):
            print(trial.seed, trial.success)

Each process steps `ENVIRONMENTS` environments in lockstep with its own copy of the policy: pictures never cross a
process boundary, and the cores are shared without waiting for each other. Seeds of trials start far above those of
demonstrations, so that no policy is tried on an initial state that it was shown.
"""

import multiprocessing
import os
import pickle
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

import torch

from ..io.processes import accept_interrupts, end_with_parent, hold_interrupts
from .rollout import ENVIRONMENTS, Lockstep, Planner, Trial, TrialSetting, crash

FIRST_SEED = 1_000_000
PATIENCE = 120.0
"""Seconds without an answer after which a simulation counts as hung: for a reset, or for the actions of one plan."""

_PLANNING = 5  # a policy may take this many times as long to load, or to plan
_ATTEMPTS = 2  # a simulation whose process dies is tried again once: the process may have been killed from outside
_LOSSES = 3  # deaths of processes outside of a simulation after which an evaluation gives up


class TrialWorkers:
    """Processes for trials, kept from one setting to the next. jobs=0 runs everything in this process, without
    protection against simulations that hang or end the process."""

    def __init__(self, jobs: int = 1, patience: float = PATIENCE):
        self.jobs, self.patience = jobs, patience
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.end()
        self._workers = []

    def run(self, setting: TrialSetting, seeds: Sequence[int]) -> Iterator[Trial]:
        """One trial per seed, in the order in which they end. What the policy raises is raised here."""
        if not self.jobs:
            yield from _run_here(setting, seeds)
            return
        yield from _Supervisor(self, setting, seeds).run()

    def start(self, count: int) -> "list[_Worker]":
        """That many processes, those that run and new ones."""
        self._workers = [worker for worker in self._workers if worker.process.is_alive()]
        threads = max(1, (os.cpu_count() or 1) // self.jobs)
        while len(self._workers) < count:
            with hold_interrupts():  # a process that was started is in the list, which `__exit__` ends
                self._workers.append(_Worker(threads))
        return self._workers[:count]


class _Worker:
    """The parent's side of a process: its pipe, its seeds, and which simulation it is in since when."""

    def __init__(self, threads: int):
        context = multiprocessing.get_context("spawn")  # rendering contexts and thread pools do not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, threads), daemon=True)
        self.process.start()
        theirs.close()
        self.seeds: list[int] = []
        self.inside: int | None = None
        self.since = time.monotonic()

    def send(self, message: Any) -> None:
        with suppress(OSError):  # a process that died is noticed when its pipe is read
            self.pipe.send(message)

    def end(self) -> None:
        """Kill the process: whatever it does, and whether it listens or not."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class _Supervisor:
    """Hands out the seeds of one setting and watches over the processes that run them."""

    def __init__(self, workers: TrialWorkers, setting: TrialSetting, seeds: Sequence[int]):
        self.workers, self.setting = workers, setting
        self.left = deque(seeds)
        self.deaths: dict[int, int] = {}
        self.losses = 0
        self.active: list[_Worker] = []

    def run(self) -> Iterator[Trial]:
        """All trials. Processes left with unfinished ones, for example after a fault of the policy, are ended."""
        try:
            self._staff()
            while self.active:
                yield from self._listen()
                yield from self._end_hung()
                self._staff()
        finally:
            for worker in self.active:
                worker.end()

    def _staff(self) -> None:
        """Replace processes that ended, and give seeds to those that have room."""
        total = len(self.left) + sum(len(worker.seeds) for worker in self.active)
        count = min(self.workers.jobs, -(-total // ENVIRONMENTS))  # one is as fast as two for what one call plans for
        room = min(ENVIRONMENTS, -(-total // max(count, 1)))
        while self.left and len(self.active) < count:
            worker = next(w for w in self.workers.start(count) if w not in self.active)
            worker.send(self.setting)
            worker.since = time.monotonic()
            self.active.append(worker)
        for worker in self.active:
            while self.left and len(worker.seeds) < room:
                seed = self.left.popleft()
                worker.seeds.append(seed)
                worker.send(seed)
        self.active = [worker for worker in self.active if worker.seeds]

    def _listen(self) -> Iterator[Trial]:
        """Messages of the processes: the simulation that they enter, results, faults of the policy."""
        waiting: dict[Any, _Worker] = {worker.pipe: worker for worker in self.active}
        for pipe in wait(list(waiting), timeout=min(1.0, self.workers.patience / 4)):
            worker = waiting[pipe]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                yield from self._bury(worker)
                continue
            worker.since = time.monotonic()
            if isinstance(message, Trial):
                worker.seeds.remove(message.seed)
                yield message
            elif isinstance(message, BaseException):
                raise message
            else:
                (worker.inside,) = message

    def _end_hung(self) -> Iterator[Trial]:
        """End processes whose simulation has not answered for too long; OSError if it is the policy that has not."""
        for worker in list(self.active):
            silent = time.monotonic() - worker.since
            if worker.inside is None and silent > _PLANNING * self.workers.patience:
                raise OSError(f"the policy was not loaded, or planned nothing, within {silent:.0f} s")
            if worker.inside is None or silent < self.workers.patience:
                continue
            text = f"hung: the simulation gave no answer for {self.workers.patience:g} s"
            yield crash(worker.inside, text, 0, worker.since, hung=True)
            self._dismiss(worker, finished=worker.inside)

    def _bury(self, worker: _Worker) -> Iterator[Trial]:
        """A process died. The simulation that it was in is tried once more, then counts as crashed."""
        seed = worker.inside
        if seed is None:
            self.losses += 1
            if self.losses >= _LOSSES:
                raise OSError(
                    f"{self.losses} processes died outside of a simulation, with exit code {worker.process.exitcode} "
                    f"the last time: there may be too little memory for so many, use fewer --jobs"
                )
        else:
            self.deaths[seed] = self.deaths.get(seed, 0) + 1
        given_up = seed is not None and self.deaths[seed] >= _ATTEMPTS
        if given_up:
            assert seed is not None
            yield crash(seed, "the process of the simulation died", 0, worker.since)
        self._dismiss(worker, finished=seed if given_up else None)

    def _dismiss(self, worker: _Worker, finished: int | None) -> None:
        """End a process; its trials that have no result begin again elsewhere."""
        worker.end()
        self.active.remove(worker)
        self.left.extendleft(seed for seed in reversed(worker.seeds) if seed != finished)


def run_trials(
    setting: TrialSetting, seeds: Sequence[int], jobs: int = 0, patience: float = PATIENCE
) -> Iterator[Trial]:
    """One trial per seed; see `TrialWorkers`."""
    with TrialWorkers(jobs, patience) as workers:
        yield from workers.run(setting, seeds)


def _run_here(setting: TrialSetting, seeds: Sequence[int]) -> Iterator[Trial]:
    left, lockstep = deque(seeds), Lockstep(setting, setting.policy())
    try:
        while left or lockstep.under_way:
            while left and lockstep.room:
                trial = lockstep.begin(left.popleft())
                if trial is not None:
                    yield trial
            if lockstep.under_way:
                yield from lockstep.advance()
    finally:
        lockstep.close()


def _serve(pipe: Connection, threads: int) -> None:
    """A process: settings and seeds come in, the simulation that it enters and results go out."""
    end_with_parent()
    torch.set_num_threads(threads)
    lockstep: Lockstep | None = None
    policies: dict[bytes, Planner] = {}  # the last one, for settings that differ in their environment
    try:
        accept_interrupts()
        while True:
            while lockstep is None or not lockstep.under_way or pipe.poll():
                message = pipe.recv()
                if isinstance(message, TrialSetting):
                    if lockstep is not None:
                        lockstep.close()
                    lockstep = _prepare(message, policies, pipe)
                    continue
                assert lockstep is not None
                trial = lockstep.begin(message)
                if trial is not None:
                    pipe.send(trial)
            for trial in lockstep.advance():
                pipe.send(trial)
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return
    except Exception as error:  # a fault of the policy, or of ours: the parent raises it
        _send_error(pipe, error)


def _prepare(setting: TrialSetting, policies: dict[bytes, Planner], pipe: Connection) -> Lockstep:
    """Trials of another setting; the policy is kept if it is the same one."""
    key = pickle.dumps(setting.policy)
    if key not in policies:
        policies.clear()
        policies[key] = setting.policy()
    return Lockstep(setting, policies[key], lambda seed: pipe.send((seed,)))


def _send_error(pipe: Connection, error: Exception) -> None:
    try:
        pipe.send(error)
    except Exception:  # it cannot be pickled
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
