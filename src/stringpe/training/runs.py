"""The runs of a comparison: which there are, which learning rate each row takes, and running them side by side."""

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
from ..recipes.overrides import override
from ..recipes.schema import Recipe
from .launch import read_result, train

Outcome = dict[str, Any] | Exception


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison: a row's label, its (first) seed, the whole recipe, the folder it goes to, and the
    variant of the recipe that some columns of the table need; "" for the recipe as it is."""

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

    def metrics(self, result: Mapping[str, Any]) -> dict[int, dict[str, float]]:
        """The metrics of every seed of the run, from its result."""
        found = result["metrics"]
        if self.recipe.loop.seeds == 1:
            return {self.seed: found}
        seeds = range(self.seed, self.seed + self.recipe.loop.seeds)
        return {
            s: {k.removeprefix(f"seed{s}/"): v for k, v in found.items() if k.startswith(f"seed{s}/")} for s in seeds
        }


def plan_runs(
    recipe: Recipe,
    rows: Sequence[str],
    seeds: int,
    out: Path,
    extra: Mapping[str, Sequence[str]] | None = None,
    *,
    variants: Mapping[str, Sequence[str]] | None = None,
    together: bool = False,
) -> list[PlannedRun]:
    """All runs of a comparison, seed by seed, so that an early stop leaves whole seeds.

    extra: changes by row. variants: changes by the name of a variant, by default the recipe alone. together: all seeds
    of a row are one run."""
    if seeds < 1 or not rows:
        raise ValueError(f"a comparison needs rows and at least one seed, got {len(rows)} rows and {seeds} seeds")
    extra, first = extra or {}, recipe.seed
    starts = [first] if together else range(first, first + seeds)
    own = [f"loop.seeds={seeds}"] if together else []
    place = f"seeds{first}-{first + seeds - 1}" if together and seeds > 1 else "seed{}"
    return [
        PlannedRun(
            label=row,
            seed=seed,
            recipe=override(recipe, [*row_changes(row), *extra.get(row, ()), *changes, *own, f"seed={seed}"]),
            out=out / "runs" / folder_name(f"{row} {variant}".strip()) / place.format(seed),
            variant=variant,
        )
        for seed in starts
        for variant, changes in (variants or {"": ()}).items()
        for row in dict.fromkeys(rows)
    ]


def expand_rows(rows: Sequence[str]) -> list[str]:
    """Rows with every list in braces written out: "circulant:block_size={4,8}" is two rows. Several lists in one row
    are all their combinations."""
    found: list[str] = []
    for row in rows:
        listed = re.search(r"\{([^{}]*,[^{}]*)\}", row)  # {encoding}, without a comma, is none
        if listed is None:
            found.append(row)
            continue
        values = [value.strip() for value in listed[1].split(",")]
        if not all(values):
            raise ValueError(f"a list in a row is {{4,8,16}}, values with commas between them; got {row!r}")
        found += expand_rows([row[: listed.start()] + value + row[listed.end() :] for value in values])
    return list(dict.fromkeys(found))


def folder_name(row: str) -> str:
    """A row's label as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", row)


def row_changes(row: str) -> list[str]:
    """The overrides that a row stands for: "circulant:block_size=8,model.depth=none" is three. The name of an encoding
    may have a colon itself, as in "my_module:factory:turns=3": what stands behind a colon without = is a function."""
    name, _, options = row.partition(":")
    if options and "=" not in options.partition(":")[0]:
        factory, _, options = options.partition(":")
        name = f"{name}:{factory}"
    changes = [f"model.encoding={name}"]
    for option in filter(None, options.split(",")):
        changes.append(option if "." in option.partition("=")[0] else f"model.encoding_options.{option}")
    return changes


@contextmanager
def workers(jobs: int) -> Iterator[WorkerPool | None]:
    """Processes for `jobs` runs side by side, which keep their data from run to run; None for one run at a time."""
    if jobs <= 1:
        yield None
        return
    threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs))
    with WorkerPool(jobs, torch.set_num_threads, (threads,)) as pool:
        yield pool


def run_all(todo: Sequence[PlannedRun], pool: WorkerPool | None, quiet: bool) -> list[tuple[PlannedRun, Outcome]]:
    """Run them all; one that fails does not stop the others."""
    outcomes = []
    with progress("runs", len(todo), unit="runs", quiet=quiet or not todo) as job:
        for number, (run, outcome) in enumerate(_outcomes(todo, pool, quiet), 1):
            outcomes.append((run, outcome))
            job.note(f"{number} / {len(todo)}: {run.title}: {_describe(outcome)}")
            job.show(number)
    return outcomes


def _describe(outcome: Outcome) -> str:
    if isinstance(outcome, Exception):
        return f"failed: {outcome}"
    score = 100 * outcome["metrics"][outcome["metric"]]
    return f"{outcome['metric']} {score:.2f} % ({outcome['seconds']:.0f} s)"


def _outcomes(todo: Sequence[PlannedRun], pool: WorkerPool | None, quiet: bool) -> Iterator[tuple[PlannedRun, Outcome]]:
    if pool is None:
        for run in todo:
            try:
                yield run, train(run.recipe, run.out, quiet=quiet)
            except Exception as failure:
                yield run, failure
        return
    futures = {pool.submit(train, run.recipe, run.out, quiet=True): run for run in todo}
    for future in as_completed(futures):
        error = future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error  # told to stop
        yield futures[future], error if isinstance(error, Exception) else future.result()


APART = 1000
"""The seed of tuning runs lies this far from the first of those that are reported."""


@dataclass(frozen=True)
class Tuning:
    """What to try. rates: the same for every row; share: the length of these runs, of the recipe's."""

    rates: Sequence[float]
    share: float = 1.0


def tuning_runs(recipe: Recipe, rows: Sequence[str], out: Path, tuning: Tuning, examples: int) -> list[PlannedRun]:
    """The runs that choose, rate by rate. examples: size of the training set."""
    if not 0 < tuning.share <= 1 or min(tuning.rates) <= 0:
        raise ValueError(f"tuning needs positive rates and a share in (0, 1], got {tuning}")
    steps = max(1, round(tuning.share * recipe.total_steps(examples)))
    return [
        PlannedRun(
            label=f"{row} at optim.lr={rate:g}",
            seed=recipe.seed + APART,
            recipe=_short(override(recipe, [*row_changes(row), f"optim.lr={rate:g}"]), steps, tuning.share),
            out=out / "tuning" / folder_name(row) / f"{rate:g}",
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
    pool: WorkerPool | None,
    quiet: bool,
) -> dict[str, dict[str, float]]:
    """Scores by row and rate. A rate that diverges scores 0; a row that no rate trains is an error."""
    plan = tuning_runs(recipe, rows, out, tuning, examples)
    found = {p.out: read_result(p.recipe, p.out) for p in plan}
    for run, outcome in run_all([p for p in plan if found[p.out] is None], pool, quiet):
        found[run.out] = None if isinstance(outcome, Exception) else outcome
    scores: dict[str, dict[str, float]] = {}
    for row in dict.fromkeys(rows):
        outcomes = {f"{rate:g}": found[out / "tuning" / folder_name(row) / f"{rate:g}"] for rate in tuning.rates}
        scores[row] = {r: o["metrics"][o["metric"]] if o else 0.0 for r, o in outcomes.items()}
        if not any(outcomes.values()):
            raise ValueError(f"no learning rate of {', '.join(outcomes)} trains the row {row}: try smaller ones")
    return scores


def best_rate(scores: dict[str, float]) -> str:
    """The rate with the highest score; the smallest of several."""
    return max(sorted(scores, key=float), key=lambda rate: scores[rate])


def _short(recipe: Recipe, steps: int, share: float) -> Recipe:
    """The same recipe over fewer steps, its schedule and warm-up with it, evaluated once, at the end."""
    loop = replace(recipe.loop, steps=steps, eval_every=0, save_every=steps + 1, tracker="")
    optim = replace(recipe.optim, warmup_steps=round(share * recipe.optim.warmup_steps))
    return replace(recipe, seed=recipe.seed + APART, loop=loop, optim=optim)
