"""The runs of a comparison: which there are, the learning rate that each row takes, and running them side by side."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..io.processes import WorkerPool
from ..io.progress import progress
from ..recipes.design import Design
from ..recipes.overrides import override
from ..recipes.schema import Recipe
from .launch import train
from .run_result import digest_files, read_result

TUNING_SEED = 1000
"""What is added to the recipe's seed for the runs that choose a learning rate, whose scores are not reported."""

Outcome = dict[str, Any] | Exception
"""The result of a run, or why it failed."""

RateScores = dict[str, dict[str, float]]
"""By row and learning rate, the score of the run that tried it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison: the label of its row, its (first) seed, the whole recipe, the folder that it goes to,
    and the variant of the recipe, "" for the recipe as it is. Some columns of the table need a variant, and so runs of
    their own."""

    label: str
    seed: int
    recipe: Recipe
    out: Path
    variant: str = ""

    @property
    def title(self) -> str:
        """The run in words."""
        last = self.seed + self.recipe.loop.seeds - 1
        seeds = f"seed {self.seed}" if last == self.seed else f"seeds {self.seed} to {last}"
        return f"{self.label}{', ' + self.variant if self.variant else ''} {seeds}"

    def metrics_by_seed(self, result: Mapping[str, Any]) -> dict[int, dict[str, float]]:
        """The metrics of every seed of the run, from its result."""
        metrics = result["metrics"]
        if self.recipe.loop.seeds == 1:
            return {self.seed: metrics}
        return {
            seed: {k.removeprefix(f"seed{seed}/"): v for k, v in metrics.items() if k.startswith(f"seed{seed}/")}
            for seed in range(self.seed, self.seed + self.recipe.loop.seeds)
        }


@dataclass(frozen=True)
class Tuning:
    """How each row's learning rate is chosen. rates: what to try, the same for every row. share: the length of these
    runs as a share of the recipe's."""

    rates: Sequence[float]
    share: float = 1.0


@dataclass(frozen=True)
class Question:
    """What a comparison asks, all defaults filled in. rows: their labels. baseline: the row that the others are
    compared with. best: whether to show the best seed, too."""

    recipe: Recipe
    design: Design
    rows: list[str]
    seeds: int
    baseline: str
    tuning: Tuning | None = None
    best: bool = False


# Rows: an encoding, with options or changes of the recipe after a colon.


def expand_rows(rows: Sequence[str]) -> list[str]:
    """Rows with every list in braces written out: "circulant:block_size={4,8}" is two rows. Several lists in one row
    stand for all their combinations."""
    expanded: list[str] = []
    for row in rows:
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", row)  # {encoding}, without a comma, is not a list
        if braces is None:
            expanded.append(row)
            continue
        values = [value.strip() for value in braces[1].split(",")]
        if not all(values):
            raise ValueError(f"a list in a row is {{4,8,16}}, values with commas between them; got {row!r}")
        expanded += expand_rows([row[: braces.start()] + value + row[braces.end() :] for value in values])
    return list(dict.fromkeys(expanded))


def row_changes(row: str) -> list[str]:
    """The overrides that a row stands for: "circulant:block_size=8,model.depth=none" is three. What stands after a
    colon without = is a function of the user's, which belongs to the name: "my_module:factory:turns=3"."""
    name, _, options = row.partition(":")
    if options and "=" not in options.partition(":")[0]:
        factory, _, options = options.partition(":")
        name = f"{name}:{factory}"
    changes = [f"model.encoding={name}"]
    for option in filter(None, options.split(",")):
        changes.append(option if "." in option.partition("=")[0] else f"model.encoding_options.{option}")
    return changes


def folder_name(row: str) -> str:
    """A row as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", row)


# The plan, and running it.


def plan_runs(
    recipe: Recipe,
    rows: Sequence[str],
    seeds: int,
    out: Path,
    changes_by_row: Mapping[str, Sequence[str]] | None = None,
    *,
    variants: Mapping[str, Sequence[str]] | None = None,
    stack_seeds: bool = False,
) -> list[PlannedRun]:
    """All runs of a comparison, seed by seed, so that whole seeds are finished if it is stopped early.

    variants: overrides of the recipe by the name of the variant; the recipe alone by default. stack_seeds: train all
    seeds of a row in one run."""
    if seeds < 1 or not rows:
        raise ValueError(f"a comparison needs rows and at least one seed, got {len(rows)} rows and {seeds} seeds")
    changes_by_row, first = changes_by_row or {}, recipe.seed
    run_seeds = [first] if stack_seeds else range(first, first + seeds)
    stacked = [f"loop.seeds={seeds}"] if stack_seeds else []
    folder = f"seeds{first}-{first + seeds - 1}" if stack_seeds and seeds > 1 else "seed{}"
    return [
        PlannedRun(
            label=row,
            seed=seed,
            recipe=override(
                recipe, [*row_changes(row), *changes_by_row.get(row, ()), *changes, *stacked, f"seed={seed}"]
            ),
            out=out / "runs" / folder_name(f"{row} {variant}".strip()) / folder.format(seed),
            variant=variant,
        )
        for seed in run_seeds
        for variant, changes in (variants or {"": ()}).items()
        for row in dict.fromkeys(rows)
    ]


@contextmanager
def start_workers(jobs: int) -> Iterator[WorkerPool | None]:
    """Processes for `jobs` runs side by side, which keep their data from run to run; None for one run at a time."""
    if jobs <= 1:
        yield None
        return
    threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs))
    with WorkerPool(jobs, torch.set_num_threads, (threads,)) as pool:
        yield pool


def run_all(
    runs: Sequence[PlannedRun], pool: WorkerPool | None, quiet: bool = False
) -> list[tuple[PlannedRun, Outcome]]:
    """Train every run; one that fails does not stop the others."""
    outcomes = []
    with progress("runs", len(runs), unit="runs", quiet=quiet or not runs) as job:
        for number, (run, outcome) in enumerate(_train_each(runs, pool, quiet), 1):
            outcomes.append((run, outcome))
            job.note(f"{number} / {len(runs)}: {run.title}: {_describe(outcome)}")
            job.show(number)
    return outcomes


def refuse_failures(outcomes: Sequence[tuple[PlannedRun, Outcome]]) -> None:
    """Say which of these runs failed, if any did."""
    failed = [f"{run.title}: {outcome}" for run, outcome in outcomes if isinstance(outcome, Exception)]
    if failed:
        listed = "\n  ".join(failed)
        raise ValueError(f"{len(failed)} of {len(outcomes)} runs failed; run it again to go on with them:\n  {listed}")


def _train_each(
    runs: Sequence[PlannedRun], pool: WorkerPool | None, quiet: bool
) -> Iterator[tuple[PlannedRun, Outcome]]:
    """Every run with its outcome, in the order in which they end."""
    if pool is None:
        for run in runs:
            try:
                yield run, train(run.recipe, run.out, quiet=quiet)
            except Exception as failure:
                yield run, failure
        return
    futures = {pool.submit(train, run.recipe, run.out, quiet=True): run for run in runs}
    for future in as_completed(futures):
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error  # the comparison is to stop
        yield futures[future], error if isinstance(error, Exception) else future.result()


def _describe(outcome: Outcome) -> str:
    if isinstance(outcome, Exception):
        return f"failed: {outcome}"
    score = 100 * outcome["metrics"][outcome["metric"]]
    return f"{outcome['metric']} {score:.2f} % ({outcome['seconds']:.0f} s)"


# Choosing a learning rate for every row.


def tune(
    recipe: Recipe,
    rows: Sequence[str],
    out: Path,
    tuning: Tuning,
    examples: int,
    pool: WorkerPool | None,
    quiet: bool = False,
) -> RateScores:
    """Try every rate on every row. A rate that diverges scores 0; a row that no rate trains is an error. examples: the
    size of the training set."""
    from .loop import Diverged

    plan = plan_tuning(recipe, rows, out, tuning, examples)
    files = {data: digest_files(data) for data in {run.recipe.data for run in plan}}
    results = {run.out: read_result(run.recipe, run.out, files[run.recipe.data]) for run in plan}
    outcomes = run_all([run for run in plan if results[run.out] is None], pool, quiet)
    refuse_failures([pair for pair in outcomes if not isinstance(pair[1], Diverged)])
    results |= {run.out: outcome for run, outcome in outcomes if not isinstance(outcome, Exception)}
    scores: RateScores = {}
    for row in dict.fromkeys(rows):
        by_rate = {f"{rate:g}": results[_tuning_folder(out, row, rate)] for rate in tuning.rates}
        if not any(by_rate.values()):
            raise ValueError(f"no learning rate of {', '.join(by_rate)} trains the row {row}: try smaller ones")
        scores[row] = {rate: r["metrics"][r["metric"]] if r else 0.0 for rate, r in by_rate.items()}
    return scores


def plan_tuning(recipe: Recipe, rows: Sequence[str], out: Path, tuning: Tuning, examples: int) -> list[PlannedRun]:
    """The runs that try the rates, rate by rate. examples: the size of the training set."""
    if not 0 < tuning.share <= 1 or min(tuning.rates) <= 0:
        raise ValueError(f"tuning needs positive rates and a share in (0, 1], got {tuning}")
    rated = [row for row in rows if any(change.startswith("optim.lr=") for change in row_changes(row))]
    if rated:
        raise ValueError(f"the row {rated[0]} has a learning rate of its own, and --rates chooses one: leave one out")
    return [
        PlannedRun(
            label=f"{row} at optim.lr={rate:g}",
            seed=recipe.seed + TUNING_SEED,
            recipe=_shorten(override(recipe, [*row_changes(row), f"optim.lr={rate:g}"]), examples, tuning.share),
            out=_tuning_folder(out, row, rate),
        )
        for rate in dict.fromkeys(tuning.rates)
        for row in dict.fromkeys(rows)
    ]


def best_rate(scores: dict[str, float]) -> str:
    """The rate with the highest score; the smallest of several."""
    return max(sorted(scores, key=float), key=lambda rate: scores[rate])


def _tuning_folder(out: Path, row: str, rate: float) -> Path:
    return out / "tuning" / folder_name(row) / f"{rate:g}"


def _shorten(recipe: Recipe, examples: int, share: float) -> Recipe:
    """The recipe over a share of its steps, with a shorter warm-up and one evaluation, at the end."""
    steps = max(1, round(share * recipe.total_steps(examples)))
    loop = replace(recipe.loop, steps=steps, eval_every=0, save_every=steps + 1, tracker="")
    optim = replace(recipe.optim, warmup_steps=round(share * recipe.optim.warmup_steps))
    return replace(recipe, seed=recipe.seed + TUNING_SEED, loop=loop, optim=optim)
