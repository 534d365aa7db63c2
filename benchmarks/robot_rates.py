"""Three measurements of the robots in simulation, for docs/robots.md and docs/policies.md, one command each:

python benchmarks/robot_rates.py experts --seeds 50 --first 20000    # how often the expert of every task succeeds
python benchmarks/robot_rates.py cameras                             # frames per second at 128 px
python benchmarks/robot_rates.py trials                              # trials of policies, one at a time and in lockstep
"""

import argparse
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import torch

from stringpe import recipes, robots
from stringpe.robots.data import demos
from stringpe.robots.evaluate import FIRST_SEED, run_trials
from stringpe.robots.policies.base import PolicySpec, RobotPolicy
from stringpe.robots.rollout import TrialSetting
from stringpe.tasks.policy import new_policy

PROCESSES = 2
POLICIES = {"aloha_small": "MugOnPlate", "kuka_small": "KukaPick"}
"""Recipes whose policies are tried, and the task of each."""


def rate_expert(task: str, seeds: range) -> tuple[list[int], float, float]:
    """The seeds on which a task's expert fails, the mean number of actions of the others, and seconds per episode."""
    env = robots.make(task, cameras=())
    failed, lengths, begin = [], [], time.perf_counter()
    for seed in seeds:
        actions = demos.demonstrate(env, seed)
        if actions is None:
            failed.append(seed)
        else:
            lengths.append(len(actions))
    return failed, sum(lengths) / max(len(lengths), 1), (time.perf_counter() - begin) / len(seeds)


def frames_per_second(task: str, depth: bool, looks: int = 25) -> tuple[float, float]:
    """Camera frames at 128 px, all cameras of the task's robot in turn: per second, and per second of CPU time."""
    env = robots.make(task, depth=depth)
    env.reset(seed=0)
    begin = time.perf_counter(), time.process_time()
    for _ in range(looks):
        env.look()
    end = time.perf_counter(), time.process_time()
    env.close()
    frames = looks * len(env.cameras) * (1 + depth)
    return frames / (end[0] - begin[0]), frames / (end[1] - begin[1])


@cache
def untrained_policy(recipe: str) -> tuple[RobotPolicy, Callable[[], Any]]:
    """The policy of a recipe with random weights, which never succeeds, and a function that makes its environment."""
    read = recipes.load(recipe)
    side, depth = read.data.image_size, read.model.depth != "none"
    make = partial(robots.make, POLICIES[recipe], size=(side, side), depth=depth)
    env = make()
    env.restart(0)
    state = torch.from_numpy(env.state())
    size = len(state)
    torch.manual_seed(0)
    with warnings.catch_warnings(action="ignore"):  # of an image encoder that starts at random
        policy = new_policy(read, PolicySpec(env.cameras, size, size, side, env.fps)).eval()
    policy.set_statistics(torch.stack([state - 1, state + 1]), torch.stack([state - 0.3, state + 0.3]))
    return policy, make


def try_one_at_a_time(policy: RobotPolicy, env: Any, seeds: Iterable[int], render_all: bool) -> None:
    """A trial per seed, one after the other. render_all: render after every action, also when the policy will not look
    at the pictures, as a plain loop over `env.step` does."""
    for seed in seeds:
        (observation, _), generator, steps = env.reset(seed=seed), torch.Generator().manual_seed(seed), 0
        while steps < env.max_steps:
            (actions,) = policy.plan_actions([{**observation, "task": env.task_text}], [generator], width=1)
            for action in actions[: env.max_steps - steps]:
                steps += 1
                if render_all:
                    observation = env.step(action)[0]
                else:
                    env.advance(action)
            if not render_all:
                observation = env.look()
    env.close()


def try_in_lockstep(policy: RobotPolicy, make: Callable[[], Any], seeds: list[int]) -> None:
    """A trial per seed, as `stringpe eval` runs them in each of its processes."""
    for trial in run_trials(TrialSetting(make, lambda: policy), seeds):
        assert not trial.crashed, trial.crashed


WAYS = ("one at a time, every step rendered", "one at a time", "eight in lockstep")


def measure_trials(recipe: str, way: str, seeds: list[int]) -> tuple[float, float]:
    """Seconds and CPU seconds that the trials of these seeds take in this process. Making the policy does not count,
    opening the cameras does."""
    torch.set_num_threads(1)
    policy, make = untrained_policy(recipe)
    begin = time.perf_counter(), time.process_time()
    if way == WAYS[2]:
        try_in_lockstep(policy, make, seeds)
    else:
        try_one_at_a_time(policy, make(), seeds, render_all=way == WAYS[0])
    return time.perf_counter() - begin[0], time.process_time() - begin[1]


def compare_trials(recipe: str, trials: int, repetitions: int) -> None:
    """All ways in turn, in two processes with one thread each, several times over; a line per way with medians and
    extremes of trials per second and of CPU seconds per trial, and its speed as a multiple of the first two ways."""
    seeds = [list(range(FIRST_SEED + i, FIRST_SEED + trials, PROCESSES)) for i in range(PROCESSES)]
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        run = partial(pool.map, measure_trials, [recipe] * PROCESSES)
        list(run([WAYS[2]] * PROCESSES, [part[:1] for part in seeds]))  # loads everything
        for _ in range(repetitions):
            for way in WAYS:
                wall, cpu = zip(*run([way] * PROCESSES, seeds), strict=True)
                rates[way].append(trials / max(wall))
                costs[way].append(sum(cpu) / trials)
    for way in WAYS:
        gains = " and ".join(
            f"{statistics.median(a / b for a, b in zip(costs[other], costs[way], strict=True)):.2f}"
            for other in WAYS[:2]
        )
        print(
            f"{recipe}, {way}: {_spread(rates[way])} trials per second, {_spread(costs[way])} CPU seconds per trial; "
            f"less CPU time than {WAYS[0]!r} and {WAYS[1]!r} by factors of {gains}",
            flush=True,
        )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})"


def main() -> None:
    """Print each result as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("experts", "cameras", "trials"))
    parser.add_argument("--tasks", nargs="*", default=robots.tasks(), help="of experts and cameras")
    parser.add_argument("--seeds", type=int, default=100, help="of experts")
    parser.add_argument("--first", type=int, default=10_000, help="of these seeds; demonstrations begin at 0")
    parser.add_argument("--recipes", nargs="*", default=list(POLICIES), help="of policies to try")
    parser.add_argument("--trials", type=int, default=16, help="per way and repetition")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    if given.what == "trials":
        for recipe in given.recipes:
            compare_trials(recipe, given.trials, given.repetitions)
    elif given.what == "cameras":
        for task in given.tasks:
            for what, depth in (("RGB", False), ("RGB and depth in turn", True)):
                wall, cpu = frames_per_second(task, depth)
                print(f"{task}, {what}: {wall:.0f} frames per second, {cpu:.0f} per second of CPU time", flush=True)
    else:
        print("| task | successes | actions | s per episode | seeds that failed |\n|---|---|---|---|---|")
        for task in given.tasks:
            failed, length, seconds = rate_expert(task, range(given.first, given.first + given.seeds))
            listed, count = ", ".join(map(str, failed)) or "–", given.seeds
            print(f"| {task} | {count - len(failed)}/{count} | {length:.0f} | {seconds:.2f} | {listed} |", flush=True)


if __name__ == "__main__":
    main()
