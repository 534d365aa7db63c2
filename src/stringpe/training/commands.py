"""The commands train, eval and compare, after parsing: names in, a printed line or table out."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .. import recipes
from . import comparison
from .launch import evaluate, train
from .signals import Stopped
from .tuning import Tuning


def run_train(recipe: str, overrides: Sequence[str], out: Path) -> None:
    """Train a recipe and print its metrics."""
    try:
        outcome = train(recipes.load(recipe, overrides), out)
    except Stopped as stop:
        print(f"stringpe: {stop}", file=sys.stderr)
        raise
    print(", ".join(f"{name} {value:.4g}" for name, value in outcome["metrics"].items()), f"in {out}")


def run_eval(
    words: Sequence[str], env: Sequence[str], shifts: bool, trials: int, out: Path | None, jobs: int, videos: int
) -> None:
    """Evaluate a checkpoint, or try policies in simulation of the tasks `env`, and print what came out. words:
    checkpoints, and key=value for the recipe or the environment."""
    changes = [word for word in words if _is_change(word)]
    checkpoints = [word for word in words if not _is_change(word)]
    if env:
        from ..robots.demos import parse_options
        from ..tasks.simulate import simulate

        run = partial(simulate, checkpoints, env, count=trials, options=parse_options(changes), shifts=shifts)
        print(run(out=out, jobs=jobs, videos=videos))
        return
    if shifts or out is not None:
        raise ValueError(f"{'--shifts' if shifts else '--out'} is for policies in simulation: name the task with --env")
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
    rows = encodings or comparison.ENCODINGS
    comparison.compare(chosen, rows, seeds, out, baseline=baseline, jobs=jobs, tuning=tuning, costs=costs)
