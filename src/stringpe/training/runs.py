"""The runs of a comparison: which there are, and running them side by side in processes that stay."""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from ..recipes.overrides import override
from ..recipes.schema import Recipe
from .launch import train

Outcome = dict[str, Any] | Exception


@dataclass(frozen=True)
class Planned:
    """One run of a comparison: a row's label, a seed, the whole recipe, and the folder it goes to."""

    label: str
    seed: int
    recipe: Recipe
    out: Path


def planned(
    recipe: Recipe, rows: Sequence[str], seeds: int, out: Path, extra: Mapping[str, Sequence[str]] | None = None
) -> list[Planned]:
    """All runs of a comparison, seed by seed, so that an early stop leaves whole seeds. extra: changes by row."""
    if seeds < 1 or not rows:
        raise ValueError(f"a comparison needs rows and at least one seed, got {len(rows)} rows and {seeds} seeds")
    extra = extra or {}
    return [
        Planned(
            label=row,
            seed=seed,
            recipe=override(recipe, [*row_changes(row), *extra.get(row, ()), f"seed={seed}"]),
            out=out / "runs" / folder(row) / f"seed{seed}",
        )
        for seed in range(recipe.seed, recipe.seed + seeds)
        for row in dict.fromkeys(rows)
    ]


def folder(row: str) -> str:
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
def workers(jobs: int) -> Iterator[ProcessPoolExecutor | None]:
    """Processes for `jobs` runs side by side, which keep their data from run to run; None for one run at a time."""
    if jobs <= 1:
        yield None
        return
    threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs))
    # Spawned, not forked: CUDA and thread pools do not survive a fork.
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        yield pool


def run_all(todo: Sequence[Planned], pool: ProcessPoolExecutor | None, quiet: bool) -> list[tuple[Planned, Outcome]]:
    """Run them all; one that fails does not stop the others."""
    outcomes = []
    for number, (run, outcome) in enumerate(_outcomes(todo, pool, quiet), 1):
        outcomes.append((run, outcome))
        if not quiet:
            print(f"{number} / {len(todo)}: {run.label} seed {run.seed}: {_said(outcome)}", file=sys.stderr, flush=True)
    return outcomes


def _said(outcome: Outcome) -> str:
    if isinstance(outcome, Exception):
        return f"failed: {outcome}"
    score = 100 * outcome["metrics"][outcome["metric"]]
    return f"{outcome['metric']} {score:.2f} % ({outcome['seconds']:.0f} s)"


def _outcomes(
    todo: Sequence[Planned], pool: ProcessPoolExecutor | None, quiet: bool
) -> Iterator[tuple[Planned, Outcome]]:
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
