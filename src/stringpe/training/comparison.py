"""Every encoding under one recipe and the same seeds: the runs, side by side if asked, and what they add up to."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import recipes
from ..io.files import claim_folder, hold_lock, read_json, write_json, write_text
from ..recipes.design import Column, Design
from ..recipes.schema import Recipe
from ..tasks import check, check_data, create
from ..tasks.base import Task
from .comparison_costs import load_or_measure_costs
from .comparison_report import Finding, draw_pictures, find_contrasts, write_sections
from .comparison_runs import (
    PlannedRun,
    Question,
    RateScores,
    Tuning,
    best_rate,
    expand_rows,
    plan_runs,
    refuse_failures,
    run_all,
    start_workers,
    tune,
)
from .comparison_table import Summary, as_csv, summarise
from .launch import train_start
from .log import check_tracker
from .report import as_markdown, show_samples, write_report
from .run_result import digest_files, read_result, versions


@dataclass(frozen=True)
class Comparison:
    """What a comparison came to: one summary per row, the contrasts that were named beforehand, all of it as Markdown,
    and the path of report.html."""

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
    a stop: finished runs are only read, the others go on from their newest checkpoint.
    design: columns, contrasts, and the default rows and seeds; by default the recipe's own. Its contrasts are written
        to design.json before anything runs.
    baseline: the row that differences are taken from; by default "absolute" if it is a row, else the first.
    jobs: runs side by side; 0 is one on a GPU and one per core on a CPU.
    tuning: learning rates to choose from for each row, on a seed that is not reported, before the runs that are.
    costs: measure step time and memory of the rows in turns, after training.
    metrics: metrics of the task to show, one column each, in place of the design's columns.
    best: also show the maximum over seeds of every row.
    """
    design = design or (recipes.load_design(recipe.name) if recipe.name in recipes.names() else Design())
    if metrics:
        design = replace(design, columns=tuple(Column(name, metric=name) for name in dict.fromkeys(metrics)))
    rows, seeds, out = expand_rows(encodings or design.rows), seeds or design.seeds, Path(out)
    if "loss" in metrics:
        raise ValueError("--metrics shows shares, in percent, and loss is not one: its curves are in metrics.jsonl")
    _check_rows(plan_runs(recipe, rows, seeds, out)[: len(rows)])
    check_tracker(recipe.loop.tracker)
    baseline = baseline or ("absolute" if "absolute" in rows else rows[0])
    if baseline not in rows:
        raise ValueError(f"the baseline {baseline!r} is not among the rows {', '.join(rows)}: add it as a row")
    question = Question(recipe, design, rows, seeds, baseline, tuning, best)
    began = time.monotonic()
    with hold_lock(out / ".lock", f"the comparison in {out}"):
        claim_folder(out, design.questions(), file="design.json", what="comparison")
        task = create(recipe)  # makes or finds the data once, before many processes want it
        train_start(recipe, quiet=quiet)  # likewise
        plan, rate_scores = _train_rows(question, task, out, jobs or _default_jobs(), quiet)
        measured = {}
        if costs:
            first = {run.label: run.recipe for run in plan if run.seed == recipe.seed and not run.variant}
            measured = load_or_measure_costs(out / "costs.json", first, baseline, quiet=quiet)
        comparison = _conclude(question, task, out, plan, measured, rate_scores)
    if not quiet:
        print(f"{comparison.text}\n{time.monotonic() - began:.0f} s; report: {comparison.report}")
    return comparison


def _check_rows(runs: Sequence[PlannedRun]) -> None:
    """Report a mistake in a row before anything runs. runs: one of each row."""
    for run in runs:
        if run.recipe.loop.seeds > 1:
            raise ValueError(
                f"loop.seeds={run.recipe.loop.seeds}: a comparison trains the seeds of a row together by itself, where "
                f"the task can; say how many with --seeds"
            )
        check(run.recipe)
        check_data(run.recipe)


def _default_jobs() -> int:
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def _train_rows(
    question: Question, task: Task, out: Path, jobs: int, quiet: bool
) -> tuple[list[PlannedRun], RateScores]:
    """Train what is not finished. Returns the whole plan, and the scores of the learning rates that were tried."""
    recipe, rows = question.recipe, question.rows
    variants = {"": (), **{c.name: c.changes for c in question.design.columns if c.changes}}
    with start_workers(jobs) as pool:
        rate_scores: RateScores = {}
        if question.tuning is not None:
            rate_scores = tune(recipe, rows, out, question.tuning, task.examples, pool, quiet)
        rates = {row: [f"optim.lr={best_rate(scores)}"] for row, scores in rate_scores.items()}
        plan = plan_runs(recipe, rows, question.seeds, out, rates, variants=variants, stack_seeds=task.stacks_seeds)
        files = {data: digest_files(data) for data in {run.recipe.data for run in plan}}  # which may be many files
        unfinished = [run for run in plan if read_result(run.recipe, run.out, files[run.recipe.data]) is None]
        outcomes = run_all(unfinished, pool, quiet)
    refuse_failures(outcomes)
    return plan, rate_scores


def _conclude(
    question: Question,
    task: Task,
    out: Path,
    plan: Sequence[PlannedRun],
    costs: Mapping[str, Mapping[str, Any]],
    rate_scores: RateScores,
) -> Comparison:
    """Read the results, and write everything that is said about them."""
    recipe, design = question.recipe, question.design
    results = [(run, read_json(run.out / "result.json")) for run in plan]
    scores = {column.name: score_column(column, results, task.metric) for column in design.columns}
    rates = {run.label: run.recipe.optim.lr for run in plan}
    parameters = {run.label: result["parameters"] for run, result in results}
    summaries = summarise(scores, costs, rates, parameters, question.baseline, design.margin)
    findings = find_contrasts(scores, design)
    sections = write_sections(question, task, summaries, scores, findings)
    text = as_markdown(f"Position encodings on {recipe.name}", sections)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", as_csv(summaries))
    by_row: dict[str, dict[str, Any]] = {}
    for run, result in results:
        by_row.setdefault(run.label, {})[f"{run.variant} {run.out.name}".strip()] = result
    content = {"recipe": recipe.to_dict(), "design": design.questions(), "tuning": rate_scores, "rates": rates}
    write_json(out / "results.json", content | {"scores": scores, "results": by_row, "costs": costs})
    write_text(out / "metrics.jsonl", "".join(line for run in plan for line in read_curve_lines(run)))
    main = [run for run in plan if not run.variant]
    curves = {row: [run.out / "metrics.jsonl" for run in main if run.label == row] for row in question.rows}
    figure = task.figure({run.label: run.out for run in main if run.seed == recipe.seed}, out)
    pictures = [*draw_pictures(out, summaries, curves, task), *show_samples(figure, task)]
    title = f"Position encodings on {recipe.name}"
    return Comparison(summaries, findings, text, write_report(out, recipe, sections, pictures, versions(), title))


def score_column(column: Column, results: Sequence[tuple[PlannedRun, Any]], metric: str) -> dict[str, dict[int, float]]:
    """What a column shows, in percent by row and seed. metric: the task's main one, which columns show by default."""
    variant, name = column.name if column.changes else "", column.metric or metric
    scores: dict[str, dict[int, float]] = {}
    for run, result in results:
        if run.variant != variant:
            continue
        by_seed = run.metrics_by_seed(result)
        for seed, metrics in by_seed.items():
            if name not in metrics:
                raise ValueError(f"the runs of {run.label} did not measure {name!r}: they have {', '.join(metrics)}")
            scores.setdefault(run.label, {})[seed] = 100 * metrics[name]
    return scores


def read_curve_lines(run: PlannedRun) -> Iterator[str]:
    """The lines of a run's metrics.jsonl, with its row and seed in front, and six digits per number."""
    labels: dict[str, Any] = {"row": run.label, "seed": run.seed} | ({"variant": run.variant} if run.variant else {})
    path = run.out / "metrics.jsonl"
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            values = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in json.loads(line).items()}
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"line {number} of {path} is damaged ({error}): restore it, or remove the run's folder to repeat it"
            ) from None
        yield json.dumps({**labels, **values}) + "\n"
