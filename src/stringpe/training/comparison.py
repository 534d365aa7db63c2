"""Every encoding under one recipe and the same seeds: the runs, side by side if asked, and what they add up to."""

import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from .files import read_json, write_json, write_text
from .launch import build, result, train, versions
from .measure import measure
from .overrides import override
from .recipe import Recipe
from .table import Summary, as_csv, as_text, summarise

ENCODINGS = ("none", "absolute", "rope", "rope_mixed", "circulant", "cayley")


@dataclass(frozen=True)
class Planned:
    """One run of a comparison: a row's label, a seed, the whole recipe, and the folder it goes to."""

    label: str
    seed: int
    recipe: Recipe
    out: Path


@dataclass(frozen=True)
class Comparison:
    """What a comparison found: a summary a row, and the files written."""

    summaries: list[Summary]
    text: str
    report: Path


def compare(
    recipe: Recipe,
    encodings: Sequence[str] = ENCODINGS,
    seeds: int = 3,
    out: str | Path = "runs/compare",
    *,
    baseline: str = "",
    jobs: int = 0,
    quiet: bool = False,
) -> Comparison:
    """Train every encoding with seeds recipe.seed, recipe.seed + 1, …; write table, curves and report.html to `out`.

    A row is an encoding, with options or changes of the recipe after a colon: "circulant:block_size=8",
    "cayley:model.depth=none". Call it again after a stop: finished runs are only read, others go on.
    baseline: the row that differences are taken to; "absolute" if it is there, else the first.
    jobs: processes side by side; 0 is one on a GPU and one a core on a CPU.
    """
    out = Path(out)
    began = time.monotonic()
    plan = planned(recipe, encodings, seeds, out)
    labels = list(dict.fromkeys(p.label for p in plan))
    baseline = baseline or ("absolute" if "absolute" in labels else labels[0])
    if baseline not in labels:
        raise ValueError(f"the baseline {baseline!r} is not among the rows {', '.join(labels)}: add it as a row")
    todo = [p for p in plan if result(p.recipe, p.out) is None]
    jobs = min(jobs or _default_jobs(), max(len(todo), 1))
    task = build(recipe)  # makes or finds the data once, before many processes want it
    _run_all(todo, jobs, quiet)
    costs = {p.label: _cost(p, out) for p in plan if p.seed == recipe.seed}
    results = {label: {p.seed: read_json(p.out / "result.json") for p in plan if p.label == label} for label in labels}
    summaries = summarise(results, costs, task.metric, baseline)
    notes = _notes(recipe, labels, baseline, seeds)
    text = as_text(summaries, task.metric_name, notes)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", as_csv(summaries))
    write_json(out / "results.json", {"recipe": recipe.to_dict(), "results": results, "costs": costs})
    from .report import write_report

    curves = {label: [p.out / "metrics.jsonl" for p in plan if p.label == label] for label in labels}
    figure = task.figure({p.label: p.out for p in plan if p.seed == recipe.seed}, out)
    report = write_report(out, recipe, summaries, curves, task, notes, versions(), figure)
    if not quiet:
        print(f"{text}\n{time.monotonic() - began:.0f} s; report: {report}")
    return Comparison(summaries, text, report)


def planned(recipe: Recipe, rows: Sequence[str], seeds: int, out: Path) -> list[Planned]:
    """All runs of a comparison, seed by seed, so that an early stop leaves whole seeds."""
    if seeds < 1 or not rows:
        raise ValueError(f"a comparison needs rows and at least one seed, got {len(rows)} rows and {seeds} seeds")
    return [
        Planned(
            label=row,
            seed=seed,
            recipe=override(recipe, [*row_changes(row), f"seed={seed}"]),
            out=out / "runs" / re.sub(r"[^\w.-]+", "-", row) / f"seed{seed}",
        )
        for seed in range(recipe.seed, recipe.seed + seeds)
        for row in dict.fromkeys(rows)
    ]


def row_changes(row: str) -> list[str]:
    """The overrides that a row stands for: "circulant:block_size=8,model.depth=none" is three."""
    name, _, options = row.partition(":")
    changes = [f"model.encoding={name}"]
    for option in filter(None, options.split(",")):
        changes.append(option if "." in option.partition("=")[0] else f"model.encoding_options.{option}")
    return changes


def _default_jobs() -> int:
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def _run_all(todo: Sequence[Planned], jobs: int, quiet: bool) -> None:
    """Run what is missing; one that fails does not stop the others."""
    failed = []
    for number, (run, outcome) in enumerate(_outcomes(todo, jobs, quiet), 1):
        if isinstance(outcome, Exception):
            failed.append(f"{run.label} seed {run.seed}: {outcome}")
        elif not quiet:
            score = 100 * outcome["metrics"][outcome["metric"]]
            print(
                f"{number} / {len(todo)}: {run.label} seed {run.seed}: {outcome['metric']} {score:.2f} % "
                f"({outcome['seconds']:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    if failed:
        listed = "\n  ".join(failed)
        raise ValueError(f"{len(failed)} of {len(todo)} runs failed; run it again to go on with them:\n  {listed}")


def _outcomes(todo: Sequence[Planned], jobs: int, quiet: bool) -> Iterator[tuple[Planned, dict[str, Any] | Exception]]:
    if jobs <= 1:
        for run in todo:
            yield run, train(run.recipe, run.out, quiet=quiet)
        return
    threads = max(1, (os.cpu_count() or 1) // jobs)
    # Spawned, not forked: CUDA and thread pools do not survive a fork.
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        futures = {pool.submit(train, run.recipe, run.out, quiet=True): run for run in todo}
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and not isinstance(error, Exception):
                raise error  # told to stop
            yield futures[future], error if isinstance(error, Exception) else future.result()


def _cost(run: Planned, out: Path) -> dict[str, Any]:
    """Step time and memory of a row, measured alone; kept for the next time."""
    path = out / "costs" / f"{run.out.parent.name}.json"
    if not path.exists():
        write_json(path, measure(run.recipe))
    cost: dict[str, Any] = read_json(path)
    return cost


def _notes(recipe: Recipe, labels: Sequence[str], baseline: str, seeds: int) -> list[str]:
    notes = [
        f"Recipe {recipe.name}, {seeds} seeds shared by all rows. ± is half of the 95 % t interval over seeds; "
        f"differences to {baseline} are paired by seed, and * marks those whose interval excludes zero.",
        "Step time and memory were measured for each row alone, after training; memory is of tensors on a GPU and of "
        "the whole process on a CPU.",
    ]
    if "lift" in recipe.model.depth and any(label.split(":")[0] == "none" for label in labels):
        notes.append("none has no coordinates to lift depth into: it gets depth as a fourth image channel.")
    if any(label.split(":")[0] == "absolute" for label in labels) and "lift" in recipe.model.depth:
        notes.append("absolute adds a learned table for the place in the image and sine-cosine features of the depth.")
    return notes
