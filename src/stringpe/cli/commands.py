"""The commands train, eval and compare, after parsing: names in, a printed line or table out."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import recipes
from ..training import comparison
from ..training.launch import evaluate, train
from ..training.signals import Stopped
from ..training.tuning import Tuning


def run_train(recipe: str, overrides: Sequence[str], out: Path) -> None:
    """Train a recipe and print its metrics."""
    try:
        outcome = train(recipes.load(recipe, overrides), out)
    except Stopped as stop:
        print(f"stringpe: {stop}", file=sys.stderr)
        raise
    print(", ".join(f"{name} {value:.4g}" for name, value in outcome["metrics"].items()), f"in {out}")


def run_eval(
    words: Sequence[str],
    env: Sequence[str],
    shifts: bool,
    trials: int | None,
    out: Path | None,
    jobs: int | None,
    videos: int | None,
) -> None:
    """Evaluate a checkpoint, or try policies in simulation of the tasks `env`, and print what came out. words:
    checkpoints, and key=value for the recipe or the environment. What is None is left to `simulate`."""
    changes = [word for word in words if _is_change(word)]
    checkpoints = [word for word in words if not _is_change(word)]
    if env:
        from ..robots.data.demos import parse_options
        from ..training.simulate import simulate

        given = {"count": trials, "jobs": jobs, "videos": videos}
        how: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        print(simulate(checkpoints, env, options=parse_options(changes), shifts=shifts, out=out, **how))
        return
    for_policies = {"--shifts": shifts or None, "--trials": trials, "--out": out, "--jobs": jobs, "--videos": videos}
    if lost := [name for name, value in for_policies.items() if value is not None]:
        raise ValueError(f"{lost[0]} is for policies in simulation: name the task with --env")
    if len(checkpoints) != 1:
        raise ValueError(
            f"eval takes one checkpoint, got {len(checkpoints)}; several need --env, to be tried in simulation"
        )
    found = evaluate(checkpoints[0], changes)
    low, high = found.get("interval", (0.0, 0.0))
    name = found["metric"]
    bounds = f"95 % interval {100 * low:.2f} to {100 * high:.2f}, " if "interval" in found else ""
    print(f"{name} {100 * found[name]:.2f} % ({bounds}{found['count']:.0f} cases)")
    print(", ".join(f"{key} {found[key]:.4g}" for key in found if isinstance(found[key], float)))


def _is_change(word: str) -> bool:
    return "=" in word and not Path(word).exists()


def run_compare(
    recipe: str,
    overrides: Sequence[str],
    encodings: Sequence[str],
    seeds: int,
    out: Path,
    baseline: str,
    jobs: int,
    rates: Sequence[float] = (),
    rates_share: float = 1.0,
    costs: bool = True,
) -> None:
    """Compare encodings under a recipe and print the table."""
    chosen = recipes.load(recipe, overrides)
    tuning = Tuning(tuple(rates), rates_share) if rates else None
    comparison.compare(chosen, encodings, seeds, out, baseline=baseline, jobs=jobs, tuning=tuning, costs=costs)
