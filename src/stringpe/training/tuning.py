"""Learning rates chosen row by row, all with the same effort: the same rates, one run each, a seed of its own."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from ..recipes.overrides import override
from ..recipes.schema import Recipe
from .launch import result
from .runs import Planned, folder, row_changes, run_all

APART = 1000
"""The seed of tuning runs lies this far from the first of those that are reported."""


@dataclass(frozen=True)
class Tuning:
    """What to try. rates: the same for every row; share: the length of these runs, of the recipe's."""

    rates: Sequence[float]
    share: float = 1.0


def tuning_runs(recipe: Recipe, rows: Sequence[str], out: Path, tuning: Tuning, examples: int) -> list[Planned]:
    """The runs that choose, rate by rate. examples: size of the training set."""
    if not 0 < tuning.share <= 1 or min(tuning.rates) <= 0:
        raise ValueError(f"tuning needs positive rates and a share in (0, 1], got {tuning}")
    steps = max(1, round(tuning.share * recipe.total_steps(examples)))
    return [
        Planned(
            label=f"{row} at optim.lr={rate:g}",
            seed=recipe.seed + APART,
            recipe=_short(override(recipe, [*row_changes(row), f"optim.lr={rate:g}"]), steps, tuning.share),
            out=out / "tuning" / folder(row) / f"{rate:g}",
        )
        for rate in tuning.rates
        for row in dict.fromkeys(rows)
    ]


def tune(
    recipe: Recipe,
    rows: Sequence[str],
    out: Path,
    tuning: Tuning,
    examples: int,
    pool: ProcessPoolExecutor | None,
    quiet: bool,
) -> dict[str, dict[str, float]]:
    """Scores by row and rate. A rate that diverges scores 0; a row that no rate trains is an error."""
    plan = tuning_runs(recipe, rows, out, tuning, examples)
    found = {p.out: result(p.recipe, p.out) for p in plan}
    for run, outcome in run_all([p for p in plan if found[p.out] is None], pool, quiet):
        found[run.out] = None if isinstance(outcome, Exception) else outcome
    scores: dict[str, dict[str, float]] = {}
    for row in dict.fromkeys(rows):
        outcomes = {f"{rate:g}": found[out / "tuning" / folder(row) / f"{rate:g}"] for rate in tuning.rates}
        scores[row] = {r: o["metrics"][o["metric"]] if o else 0.0 for r, o in outcomes.items()}
        if not any(outcomes.values()):
            raise ValueError(f"no learning rate of {', '.join(outcomes)} trains the row {row}: try smaller ones")
    return scores


def best(scores: dict[str, float]) -> str:
    """The rate with the highest score; the smallest of several."""
    return max(sorted(scores, key=float), key=lambda rate: scores[rate])


def _short(recipe: Recipe, steps: int, share: float) -> Recipe:
    """The same recipe over fewer steps, its schedule and warm-up with it, evaluated once, at the end."""
    loop = replace(recipe.loop, steps=steps, eval_every=0, save_every=steps + 1, tracker="")
    optim = replace(recipe.optim, warmup_steps=round(share * recipe.optim.warmup_steps))
    return replace(recipe, seed=recipe.seed + APART, loop=loop, optim=optim)
