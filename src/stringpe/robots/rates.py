"""How often the scripted experts succeed: `python -m stringpe.robots.rates --seeds 100` prints the table of docs/robots.md."""

import argparse
import time

from . import demos, make, tasks


def rate(task: str, seeds: range) -> tuple[list[int], float, float]:
    """The seeds on which a task's expert fails, the mean number of actions of the others, and seconds an episode."""
    env = make(task, cameras=())
    failed, lengths, begin = [], [], time.perf_counter()
    for seed in seeds:
        actions = demos.demonstrate(env, seed)
        if actions is None:
            failed.append(seed)
        else:
            lengths.append(len(actions))
    return failed, sum(lengths) / max(len(lengths), 1), (time.perf_counter() - begin) / len(seeds)


def main() -> None:
    """Prints a line a task as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=tasks())
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=10_000, help="of the seeds; demonstrations begin at 0")
    given = parser.parse_args()
    print("| task | successes | actions | s an episode | seeds that failed |\n|---|---|---|---|---|")
    for task in given.tasks:
        seeds = range(given.first, given.first + given.seeds)
        failed, length, seconds = rate(task, seeds)
        listed = ", ".join(map(str, failed)) or "–"
        print(f"| {task} | {len(seeds) - len(failed)}/{len(seeds)} | {length:.0f} | {seconds:.2f} | {listed} |", flush=True)


if __name__ == "__main__":
    main()
