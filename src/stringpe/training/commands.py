"""The commands train, eval and compare, after parsing: names in, a printed line or table out."""

import sys
from collections.abc import Sequence
from pathlib import Path

from .. import recipes
from . import comparison
from .launch import evaluate, train
from .signals import Stopped


def run_train(recipe: str, overrides: Sequence[str], out: Path) -> None:
    """Train a recipe and print its metrics."""
    try:
        outcome = train(recipes.load(recipe, overrides), out)
    except Stopped as stop:
        print(f"stringpe: {stop}", file=sys.stderr)
        raise
    print(", ".join(f"{name} {value:.4g}" for name, value in outcome["metrics"].items()), f"in {out}")


def run_eval(checkpoint: Path, overrides: Sequence[str]) -> None:
    """Evaluate a checkpoint and print its metrics."""
    found = evaluate(checkpoint, list(overrides))
    low, high = found.get("interval", (0.0, 0.0))
    name = found["metric"]
    bounds = f"95 % interval {100 * low:.2f} to {100 * high:.2f}, " if "interval" in found else ""
    print(f"{name} {100 * found[name]:.2f} % ({bounds}{found['count']:.0f} cases)")
    print(", ".join(f"{key} {found[key]:.4g}" for key in found if isinstance(found[key], float)))


def run_compare(
    recipe: str, overrides: Sequence[str], encodings: Sequence[str], seeds: int, out: Path, baseline: str, jobs: int
) -> None:
    """Compare encodings under a recipe and print the table."""
    chosen = recipes.load(recipe, overrides)
    comparison.compare(chosen, encodings or comparison.ENCODINGS, seeds, out, baseline=baseline, jobs=jobs)
