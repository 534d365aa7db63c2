"""Every encoding under one recipe and the same seeds: train the runs, side by side if asked, and report what they
show."""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import recipes
from ..data.fingerprints import digest_files
from ..io.files import claim_folder, hold_lock, write_json, write_text
from ..io.processes import WorkerPool
from ..io.progress import progress
from ..io.registry import unknown
from ..recipes.design import (
    TUNING_SEED,
    Column,
    Design,
    PlannedRun,
    Question,
    Tuning,
    expand_rows,
    folder_name,
    plan_runs,
    row_changes,
)
from ..recipes.overrides import override
from ..recipes.schema import Recipe
from ..tasks import check, check_data, create, task_class
from ..tasks.base import Task
from .comparison_costs import load_or_measure_costs
from .comparison_report import Finding, draw_pictures, find_contrasts, write_sections
from .comparison_table import Summary, as_csv, summarise
from .gpu_sharing import RUNS, share_gpu
from .launch import read_result, train, train_start, versions
from .log import check_tracker
from .report import as_markdown, show_samples, write_report

Outcome = dict[str, Any] | Exception
"""The result of a run, or why it failed."""

Outcomes = list[tuple[PlannedRun, Outcome]]
"""Runs with their outcomes, in the order of the plan."""

RateScores = dict[str, dict[str, float]]
"""By row and learning rate, the score of the run that tried it."""


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
    jobs: runs side by side; 0 is one per core on a CPU, and on a GPU four where they can share it (NVIDIA's MPS), else
        one. If memory is too small for this default, unfinished runs are repeated one at a time.
    tuning: learning rates to choose from for each row, on a seed that is not reported, before the runs that are.
    costs: measure step time and memory of the rows in turns, after training.
    metrics: metrics of the task to show, one column each, in place of the design's columns.
    best: also show the maximum over seeds of every row.
    """
    design = design or (recipes.load_design(recipe.name) if recipe.name in recipes.names() else Design())
    if metrics:
        design = replace(design, columns=tuple(Column(name, metric=name) for name in dict.fromkeys(metrics)))
    rows, seeds, out = expand_rows(encodings or design.rows), seeds or design.seeds, Path(out)
    for name in metrics:
        _check_metric(recipe, name)
    design = _leave_out_unmeasured(design, recipe, quiet)
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
        outcomes, rate_scores = _train_rows(question, task, out, jobs, quiet)
        measured = {}
        if costs:
            first = {run.label: run.recipe for run, _ in outcomes if run.seed == recipe.seed and not run.variant}
            measured = load_or_measure_costs(out / "costs.json", first, baseline, quiet=quiet)
        comparison = _conclude(question, task, out, outcomes, measured, rate_scores)
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


def _check_metric(recipe: Recipe, name: str) -> None:
    """Refuse a metric that the recipe's task does not measure, or that is not a share."""
    task = task_class(recipe.task)
    shares = [metric for metric in task.meanings if metric not in ("loss", "count")]
    if name in ("loss", "count"):
        raise ValueError(f"--metrics shows shares, in percent, and {name} is not one: it is in metrics.jsonl")
    if not task.meaning(name):
        raise unknown(f"metric of the task {recipe.task}", name, shares)
    if not task.measures(recipe, name):
        raise ValueError(f"runs of this recipe do not measure {name}, {task.meaning(name)}: change the recipe for it")


def _leave_out_unmeasured(design: Design, recipe: Recipe, quiet: bool) -> Design:
    """The design without the columns that runs of the recipe, as it was changed, do not measure."""
    task = task_class(recipe.task)
    columns = tuple(c for c in design.columns if not c.metric or task.measures(override(recipe, c.changes), c.metric))
    gone = [column.name for column in design.columns if column not in columns]
    if not columns:
        raise ValueError(f"runs of this recipe measure none of the columns {', '.join(gone)}: change the recipe for it")
    if gone and not quiet:
        print(f"left out, because this recipe does not measure it: {', '.join(gone)}", file=sys.stderr, flush=True)
    return replace(design, columns=columns)


def _train_rows(question: Question, task: Task, out: Path, jobs: int, quiet: bool) -> tuple[Outcomes, RateScores]:
    """Train what is not finished. Returns every run with its outcome, and the scores of the learning rates that were
    tried."""
    try:
        return _train_side_by_side(question, task, out, jobs, quiet)
    except RunsFailed as failed:
        if jobs or not failed.out_of_memory:
            raise
    return _train_side_by_side(question, task, out, 1, quiet)  # side by side was our choice; finished runs are kept


def _train_side_by_side(
    question: Question, task: Task, out: Path, jobs: int, quiet: bool
) -> tuple[Outcomes, RateScores]:
    """As `_train_rows`, with this number of runs at a time. Raises RunsFailed if any of them did."""
    recipe, rows = question.recipe, question.rows
    variants = {"": (), **{c.name: c.changes for c in question.design.columns if c.changes}}
    with start_workers(jobs) as pool:
        rate_scores: RateScores = {}
        if question.tuning is not None:
            rate_scores = tune(recipe, rows, out, question.tuning, task.examples, pool, quiet)
        rates = {row: [f"optim.lr={best_rate(scores)}"] for row, scores in rate_scores.items()}
        plan = plan_runs(recipe, rows, question.seeds, out, rates, variants=variants, stack_seeds=task.stacks_seeds)
        outcomes = run_all(plan, pool, quiet)
    refuse_failures(outcomes)
    return outcomes, rate_scores


class RunsFailed(ValueError):
    """Some runs of a comparison failed. out_of_memory: whether one of them found too little memory on the GPU."""

    def __init__(self, message: str, *, out_of_memory: bool):
        super().__init__(message)
        self.out_of_memory = out_of_memory


# Running them side by side.


@contextmanager
def start_workers(jobs: int) -> Iterator[WorkerPool | None]:
    """Processes for `jobs` runs side by side, which keep their data from run to run; None for one run at a time. 0 jobs
    are as many as `compare` says."""
    with share_gpu() if jobs != 1 else nullcontext(False) as shared:
        if not jobs and torch.cuda.is_available():
            jobs = RUNS if shared else 1
        jobs = jobs or os.cpu_count() or 1
        if jobs <= 1:
            yield None
            return
        threads = max(1, min(torch.get_num_threads(), (os.cpu_count() or 1) // jobs))
        with WorkerPool(jobs, torch.set_num_threads, (threads,)) as pool:
            yield pool


def run_all(plan: Sequence[PlannedRun], pool: WorkerPool | None, quiet: bool) -> Outcomes:
    """Train every run of a plan, or read its result if it is finished; one that fails does not stop the others."""
    files = {data: digest_files(data) for data in {run.recipe.data for run in plan}}  # once: they may be many
    results = {run.out: read_result(run.recipe, run.out, files[run.recipe.data]) for run in plan}
    outcomes: dict[Path, Outcome] = {out: result for out, result in results.items() if result is not None}
    unfinished = [run for run in plan if run.out not in outcomes]
    with progress("runs", len(unfinished), unit="runs", quiet=quiet or not unfinished) as job:
        for number, (run, outcome) in enumerate(_train_each(unfinished, pool, quiet), 1):
            outcomes[run.out] = outcome
            job.note(f"{number} / {len(unfinished)}: {run.title}: {_describe(outcome)}")
            job.show(number)
    return [(run, outcomes[run.out]) for run in plan]


def refuse_failures(outcomes: Outcomes) -> None:
    """Say which of these runs failed, if any did."""
    failed = [f"{run.title}: {outcome}" for run, outcome in outcomes if isinstance(outcome, Exception)]
    if failed:
        listed = "\n  ".join(failed)
        raise RunsFailed(
            f"{len(failed)} of {len(outcomes)} runs failed; run it again to go on with them:\n  {listed}",
            out_of_memory=any(isinstance(outcome, torch.OutOfMemoryError) for _, outcome in outcomes),
        )


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
    quiet: bool,
) -> RateScores:
    """Try every rate on every row. A rate that diverges scores 0; a row that no rate trains is an error. examples: the
    size of the training set."""
    from .loop import Diverged

    outcomes = run_all(plan_tuning(recipe, rows, out, tuning, examples), pool, quiet)
    refuse_failures([pair for pair in outcomes if not isinstance(pair[1], Diverged)])
    tried = {run.out: outcome for run, outcome in outcomes}
    scores: RateScores = {}
    for row in dict.fromkeys(rows):
        by_rate = {f"{rate:g}": tried[_tuning_folder(out, row, rate)] for rate in tuning.rates}
        if all(isinstance(outcome, Exception) for outcome in by_rate.values()):
            raise ValueError(f"no learning rate of {', '.join(by_rate)} trains the row {row}: try smaller ones")
        scores[row] = {
            rate: 0.0 if isinstance(outcome, Exception) else outcome["metrics"][outcome["metric"]]
            for rate, outcome in by_rate.items()
        }
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


# What the runs show.


def _conclude(
    question: Question,
    task: Task,
    out: Path,
    outcomes: Outcomes,
    costs: Mapping[str, Mapping[str, Any]],
    rate_scores: RateScores,
) -> Comparison:
    """Write everything that the results say."""
    recipe, design = question.recipe, question.design
    results = [(run, result) for run, result in outcomes if not isinstance(result, Exception)]
    scores = {column.name: score_column(column, results, task.metric) for column in design.columns}
    rates = {run.label: run.recipe.optim.lr for run, _ in results}
    parameters = {run.label: result["parameters"] for run, result in results}
    summaries = summarise(scores, costs, rates, parameters, question.baseline, design.margin)
    findings = find_contrasts(scores, design)
    sections = write_sections(question, task, summaries, scores, findings)
    title = f"Position encodings on {recipe.name}"
    text = as_markdown(title, sections)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", as_csv(summaries))
    by_row: dict[str, dict[str, Any]] = {}
    for run, result in results:
        by_row.setdefault(run.label, {})[f"{run.variant} {run.out.name}".strip()] = result
    content = {"recipe": recipe.to_dict(), "design": design.questions(), "tuning": rate_scores, "rates": rates}
    write_json(out / "results.json", content | {"scores": scores, "results": by_row, "costs": costs})
    write_text(out / "metrics.jsonl", "".join(line for run, _ in results for line in read_curve_lines(run)))
    main = [run for run, _ in results if not run.variant]
    curves = {row: [run.out / "metrics.jsonl" for run in main if run.label == row] for row in question.rows}
    figure = task.figure({run.label: run.out for run in main if run.seed == recipe.seed}, out)
    pictures = [*draw_pictures(out, summaries, findings, curves, task), *show_samples(figure, task)]
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
