"""How often experts succeed and how fast cameras are, for docs/robots.md: `python benchmarks/robot_rates.py`."""

import argparse
import time

from stringpe.robots import make, tasks
from stringpe.robots.data import demos


def rate(task: str, seeds: range) -> tuple[list[int], float, float]:
    """The seeds on which a task's expert fails, the mean number of actions of the others, and seconds per episode."""
    env = make(task, cameras=())
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
    env = make(task, depth=depth)
    env.reset(seed=0)
    begin = time.perf_counter(), time.process_time()
    for _ in range(looks):
        env.look()
    end = time.perf_counter(), time.process_time()
    env.close()
    frames = looks * len(env.cameras) * (1 + depth)
    return frames / (end[0] - begin[0]), frames / (end[1] - begin[1])


def main() -> None:
    """Print one line per task as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=tasks())
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=10_000, help="of the seeds; demonstrations begin at 0")
    parser.add_argument("--frames", action="store_true", help="measure camera frames per second at 128 px instead")
    given = parser.parse_args()
    if given.frames:
        for task in given.tasks:
            for what, depth in (("RGB", False), ("RGB and depth in turn", True)):
                wall, cpu = frames_per_second(task, depth)
                print(f"{task}, {what}: {wall:.0f} frames per second, {cpu:.0f} per second of CPU time", flush=True)
        return
    print("| task | successes | actions | s per episode | seeds that failed |\n|---|---|---|---|---|")
    for task in given.tasks:
        seeds = range(given.first, given.first + given.seeds)
        failed, length, seconds = rate(task, seeds)
        listed = ", ".join(map(str, failed)) or "–"
        print(
            f"| {task} | {len(seeds) - len(failed)}/{len(seeds)} | {length:.0f} | {seconds:.2f} | {listed} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
