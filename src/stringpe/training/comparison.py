"""Every encoding under one recipe and the same seeds: the runs, side by side if asked, and what they add up to."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import recipes
from ..io.files import claim_folder, find_mismatch, hold_lock, read_json, write_json, write_text
from ..io.progress import working
from ..recipes.design import Column, Design
from ..recipes.schema import Recipe
from ..tasks import check, check_data
from ..tasks.base import Task
from .comparison_report import ComparisonData, Finding, draw_pictures, find_contrasts, write_sections
from .costs import measure_in_turns
from .launch import build, read_result, train_start, versions
from .log import check_tracker
from .report import as_markdown, show, write_report
from .runs import PlannedRun, Tuning, best_rate, expand_rows, plan_runs, run_all, tune, workers
from .table import Summary, as_csv, summarise


@dataclass(frozen=True)
class Comparison:
    """What a comparison found: one summary per row, the contrasts named beforehand, and the files written."""

    summaries: list[Summary]
    findings: list[Finding]
    text: str
    report: Path


def compare(
    recipe: Recipe,
    encodings: Sequence[str] = (),
    seeds: int = 0,
    out: str | Path = "runs/compare",
    *,
    design: Design | None = None,
    baseline: str = "",
    jobs: int = 0,
    tuning: Tuning | None = None,
    costs: bool = True,
    metrics: Sequence[str] = (),
    best: bool = False,
    quiet: bool = False,
) -> Comparison:
    """Train every encoding with seeds recipe.seed, recipe.seed + 1, …; write table, curves and report.html to `out`,
    scores of every run to results.json and their curves to metrics.jsonl.

    A row is an encoding, with options or changes of the recipe after a colon: "circulant:block_size=8",
    "cayley:model.depth=none"; a list in braces is a row per value, "circulant:block_size={4,8,16}". Call it again after
    a stop: finished runs are only read, others go on.
    design: columns, contrasts, and the rows and seeds that are taken by default; the recipe's own by default. Its
        contrasts are written to design.json before anything runs.
    baseline: the row that differences are taken to; "absolute" if it is there, else the first.
    jobs: processes side by side; 0 is one on a GPU and one per core on a CPU.
    tuning: learning rates to choose from for each row, on a seed that is not reported, before the runs that are.
    costs: measure step time and memory of the rows in turns, after training.
    metrics: what the task measures, a column each, in place of the design's columns.
    best: also show the maximum over seeds of every row.
    """
    design = design or (recipes.load_design(recipe.name) if recipe.name in recipes.names() else Design())
    if metrics:
        design = replace(design, columns=tuple(Column(name, metric=name) for name in dict.fromkeys(metrics)))
    labels = expand_rows(encodings or design.rows)
    asked = _Asked(recipe, design, labels, seeds or design.seeds, Path(out), jobs or _default_jobs(), best, quiet)
    for run in plan_runs(recipe, labels, asked.seeds, asked.out)[: len(labels)]:
        check(run.recipe)  # what is wrong with a row is said before anything runs
        check_data(run.recipe)
    check_tracker(recipe.loop.tracker)
    baseline = baseline or ("absolute" if "absolute" in labels else labels[0])
    if baseline not in labels:
        raise ValueError(f"the baseline {baseline!r} is not among the rows {', '.join(labels)}: add it as a row")
    began = time.monotonic()
    with hold_lock(asked.out / ".lock", f"the comparison in {out}"):
        claim_folder(asked.out, design.questions(), file="design.json", what="comparison")
        task = build(recipe)  # makes or finds the data once, before many processes want it
        train_start(recipe, quiet=asked.quiet)  # as with the data
        plan, tried = _run(asked, task, tuning)
        measured = _costs(plan, asked, baseline) if costs else {}
        found = _conclude(asked, task, plan, measured, baseline, tuning, tried)
    if not quiet:
        print(f"{found.text}\n{time.monotonic() - began:.0f} s; report: {found.report}")
    return found


@dataclass(frozen=True)
class _Asked:
    """A comparison to be made, all defaults filled in."""

    recipe: Recipe
    design: Design
    labels: list[str]
    seeds: int
    out: Path
    jobs: int
    best: bool
    quiet: bool


Tried = dict[str, dict[str, float]]

_COSTS = {str: {"step_ms": [float], "ratio": [float], "peak_bytes": (int, None), "encoding_parameters": int}}
"""What costs.json holds."""


def _run(asked: _Asked, task: Task, tuning: Tuning | None) -> tuple[list[PlannedRun], Tried]:
    """Run what is not finished; the whole plan, and the scores of the rates that were tried."""
    variants = {"": (), **{c.name: c.changes for c in asked.design.columns if c.changes}}
    with workers(asked.jobs) as pool:
        tried: Tried = {}
        if tuning is not None:
            tried = tune(asked.recipe, asked.labels, asked.out, tuning, task.examples, pool, asked.quiet)
        plan = plan_runs(
            asked.recipe,
            asked.labels,
            asked.seeds,
            asked.out,
            {row: [f"optim.lr={best_rate(s)}"] for row, s in tried.items()},
            variants=variants,
            together=task.stacks_seeds,
        )
        todo = [p for p in plan if read_result(p.recipe, p.out) is None]
        outcomes = run_all(todo, pool, asked.quiet)
    failed = [f"{p.title}: {o}" for p, o in outcomes if isinstance(o, Exception)]
    if failed:
        listed = "\n  ".join(failed)
        raise ValueError(f"{len(failed)} of {len(todo)} runs failed; run it again to go on with them:\n  {listed}")
    return plan, tried


def _conclude(
    asked: _Asked,
    task: Task,
    plan: Sequence[PlannedRun],
    measured: dict[str, dict[str, Any]],
    baseline: str,
    tuning: Tuning | None,
    tried: Tried,
) -> Comparison:
    """Read the results and write everything that is said about them."""
    recipe, design, out = asked.recipe, asked.design, asked.out
    results = [(p, read_json(p.out / "result.json")) for p in plan]
    scores = {column.name: _scores(column, results, task.metric) for column in design.columns}
    rates = {p.label: p.recipe.optim.lr for p in plan}
    parameters = {p.label: r["parameters"] for p, r in results}
    summaries = summarise(scores, measured, rates, parameters, baseline, design.margin)
    findings = find_contrasts(scores, design)
    sections = write_sections(
        ComparisonData(recipe, design, task, summaries, scores, findings, asked.seeds, baseline, tuning, asked.best)
    )
    text = as_markdown(f"Position encodings on {recipe.name}", sections)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", as_csv(summaries))
    by_row: dict[str, dict[str, Any]] = {}
    for run, found in results:
        by_row.setdefault(run.label, {})[f"{run.variant} {run.out.name}".strip()] = found
    content = {"recipe": recipe.to_dict(), "design": design.questions(), "tuning": tried, "rates": rates}
    write_json(out / "results.json", content | {"scores": scores, "results": by_row, "costs": measured})
    write_text(out / "metrics.jsonl", "".join(line for p in plan for line in _curves(p)))
    main = [p for p in plan if not p.variant]
    curves = {label: [p.out / "metrics.jsonl" for p in main if p.label == label] for label in asked.labels}
    figure = task.figure({p.label: p.out for p in main if p.seed == recipe.seed}, out)
    report = write_report(
        out, recipe, sections, [*draw_pictures(out, summaries, curves, task), *show(figure, task)], versions()
    )
    return Comparison(summaries, findings, text, report)


def _scores(column: Column, results: Sequence[tuple[PlannedRun, Any]], metric: str) -> dict[str, dict[int, float]]:
    """Percent by row and seed."""
    variant = column.name if column.changes else ""
    found: dict[str, dict[int, float]] = {}
    for run, outcome in results:
        if run.variant == variant:
            each = run.metrics(outcome)
            name = column.metric or metric
            if missing := [s for s, m in each.items() if name not in m]:
                known = ", ".join(each[missing[0]])
                raise ValueError(f"the runs of {run.label} have not measured {name!r}: they have {known}")
            found.setdefault(run.label, {}).update({s: 100 * m[name] for s, m in each.items()})
    return found


def _curves(run: PlannedRun) -> Iterator[str]:
    """The lines of a run's metrics.jsonl, with its row and seed in front, six digits per number."""
    own: dict[str, Any] = {"row": run.label, "seed": run.seed} | ({"variant": run.variant} if run.variant else {})
    path = run.out / "metrics.jsonl"
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            values = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in json.loads(line).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"line {number} of {path} is damaged ({error}): restore it, or remove the run's folder to repeat it"
            ) from None
        yield json.dumps({**own, **values}) + "\n"


def _default_jobs() -> int:
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def _costs(plan: Sequence[PlannedRun], asked: _Asked, baseline: str) -> dict[str, dict[str, Any]]:
    """Step time and memory of the rows, measured in turns; kept for the next time."""
    path = asked.out / "costs.json"
    rows = {p.label: p.recipe for p in plan if p.seed == asked.recipe.seed and not p.variant}
    kept: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}
    damaged = find_mismatch(kept, _COSTS) or any(
        len(cost[name]) != 3 for cost in kept.values() for name in ("step_ms", "ratio")
    )
    if damaged or list(kept) != list(rows):
        single = {label: replace(r, loop=replace(r.loop, seeds=1)) for label, r in rows.items()}
        with working(f"measuring the steps of {len(rows)} rows in turns", quiet=asked.quiet):
            kept = measure_in_turns(single, baseline)
        write_json(path, kept)
    return {
        label: {name: tuple(value) if isinstance(value, list) else value for name, value in cost.items()}
        for label, cost in kept.items()
    }
