"""Every encoding under one recipe and the same seeds: the runs, side by side if asked, and what they add up to."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..io.files import read_json, write_json, write_text
from ..recipes.schema import Recipe
from ..tasks import check
from .launch import build, result, versions
from .measure import measure
from .runs import Planned, planned, run_all, workers
from .table import Summary, as_csv, as_text, summarise
from .tuning import APART, Tuning, best, tune

ENCODINGS = ("none", "absolute", "rope", "rope_mixed", "circulant", "cayley")


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
    tuning: Tuning | None = None,
    costs: bool = True,
    quiet: bool = False,
) -> Comparison:
    """Train every encoding with seeds recipe.seed, recipe.seed + 1, …; write table, curves and report.html to `out`,
    scores of every run to results.json and their curves to metrics.jsonl.

    A row is an encoding, with options or changes of the recipe after a colon: "circulant:block_size=8",
    "cayley:model.depth=none". Call it again after a stop: finished runs are only read, others go on.
    baseline: the row that differences are taken to; "absolute" if it is there, else the first.
    jobs: processes side by side; 0 is one on a GPU and one a core on a CPU.
    tuning: learning rates to choose from for each row, on a seed that is not reported, before the runs that are.
    costs: measure step time and memory of each row alone, after training.
    """
    out = Path(out)
    began = time.monotonic()
    labels = list(dict.fromkeys(encodings))
    for run in planned(recipe, labels, seeds, out)[: len(labels)]:
        check(run.recipe)  # what is wrong with a row is said before anything runs
    baseline = baseline or ("absolute" if "absolute" in labels else labels[0])
    if baseline not in labels:
        raise ValueError(f"the baseline {baseline!r} is not among the rows {', '.join(labels)}: add it as a row")
    task = build(recipe)  # makes or finds the data once, before many processes want it
    jobs = jobs or _default_jobs()
    with workers(jobs) as pool:
        tried = {} if tuning is None else tune(recipe, labels, out, tuning, task.examples, pool, quiet)
        plan = planned(recipe, labels, seeds, out, {row: [f"optim.lr={best(s)}"] for row, s in tried.items()})
        todo = [p for p in plan if result(p.recipe, p.out) is None]
        failed = [f"{p.label} seed {p.seed}: {o}" for p, o in run_all(todo, pool, quiet) if isinstance(o, Exception)]
    if failed:
        listed = "\n  ".join(failed)
        raise ValueError(f"{len(failed)} of {len(todo)} runs failed; run it again to go on with them:\n  {listed}")
    measured = {p.label: _cost(p, out) for p in plan if p.seed == recipe.seed} if costs else {}
    results = {label: {p.seed: read_json(p.out / "result.json") for p in plan if p.label == label} for label in labels}
    rates = {p.label: p.recipe.optim.lr for p in plan}
    summaries = summarise(results, measured, rates, task.metric, baseline)
    notes = _notes(recipe, labels, baseline, seeds, tuning, costs)
    text = as_text(summaries, task.metric_name, notes)
    write_text(out / "table.md", text)
    write_text(out / "table.csv", as_csv(summaries))
    content = {"recipe": recipe.to_dict(), "tuning": tried, "rates": rates, "results": results, "costs": measured}
    write_json(out / "results.json", content)
    write_text(out / "metrics.jsonl", "".join(line for p in plan for line in _curves(p)))
    from .report import write_report

    curves = {label: [p.out / "metrics.jsonl" for p in plan if p.label == label] for label in labels}
    figure = task.figure({p.label: p.out for p in plan if p.seed == recipe.seed}, out)
    report = write_report(out, recipe, summaries, curves, task, notes, versions(), figure)
    if not quiet:
        print(f"{text}\n{time.monotonic() - began:.0f} s; report: {report}")
    return Comparison(summaries, text, report)


def _curves(run: Planned) -> Iterator[str]:
    """The lines of a run's metrics.jsonl, with its row and seed in front, six digits a number."""
    for line in (run.out / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        values = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in json.loads(line).items()}
        yield json.dumps({"row": run.label, "seed": run.seed, **values}) + "\n"


def _default_jobs() -> int:
    return 1 if torch.cuda.is_available() else os.cpu_count() or 1


def _cost(run: Planned, out: Path) -> dict[str, Any]:
    """Step time and memory of a row, measured alone; kept for the next time."""
    path = out / "costs" / f"{run.out.parent.name}.json"
    if not path.exists():
        write_json(path, measure(run.recipe))
    cost: dict[str, Any] = read_json(path)
    return cost


def _notes(
    recipe: Recipe, labels: Sequence[str], baseline: str, seeds: int, tuning: Tuning | None, costs: bool
) -> list[str]:
    spread = (
        f"{seeds} seeds shared by all rows. ± is half of the 95 % t interval over seeds; differences to {baseline} are "
        f"paired by seed, and * marks those whose interval excludes zero."
    )
    single = f"one seed: differences to {baseline} say nothing about chance."
    notes = [f"Recipe {recipe.name}, {single if seeds == 1 else spread}"]
    if costs:
        notes.append(
            "Step time and memory were measured for each row alone, after training; memory is of tensors on a GPU and "
            "of the whole process on a CPU."
        )
    if tuning is not None:
        length = "full" if tuning.share == 1 else f"{tuning.share:g} of the"
        notes.append(
            f"The learning rate of each row is the best of {', '.join(f'{r:g}' for r in tuning.rates)} by one run of "
            f"{length} length with seed {recipe.seed + APART}, which is not among those reported."
        )
    if "lift" in recipe.model.depth and any(label.split(":")[0] == "none" for label in labels):
        notes.append("none has no coordinates to lift depth into: it gets depth as a fourth image channel.")
    if any(label.split(":")[0] == "absolute" for label in labels) and "lift" in recipe.model.depth:
        notes.append("absolute adds a learned table for the place in the image and sine-cosine features of the depth.")
    return notes
