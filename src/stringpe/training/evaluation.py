"""Evaluating one checkpoint on its validation set: the numbers, and a report that says what they are and what they do
not show."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..data.order import Place
from ..io import checkpoint as checkpoints
from ..io.files import write_json
from ..io.progress import working
from ..metrics.statistics import Estimate, wilson
from ..tasks.base import Task
from ..tasks.load import open_run
from .launch import create_accelerator, digests, versions
from .report import Rows, Section, describe_task, show_samples, write_report


def evaluate(path: str | Path, changes: Sequence[str] | None = None, out: str | Path | None = None) -> dict[str, Any]:
    """Metrics of a checkpoint on its validation set, with Wilson's interval for the main one where it is a share of
    cases, and digests of weights, recipe and data.

    changes: overrides of the run's recipe, for example data on another machine: ["data.val=…"]. out: a folder for
    metrics.json, report.html and, of detection, results.json with the boxes in COCO's or Omni3D's results format.
    """
    folder = checkpoints.model_folder(Path(path))  # the newest now; a run that goes on writes newer ones meanwhile
    task, model = open_run(folder, changes or ())
    sums = digests(task.recipe, checkpoints.digest_weights(folder))
    if out is not None:
        task.results = Path(out) / "results.json"
    accelerator = create_accelerator(task.recipe)
    model = accelerator.prepare_model(model.to(accelerator.device), evaluation_mode=True).eval()
    quiet = not accelerator.is_main_process
    with torch.no_grad(), working(f"evaluating {path}", late=True, quiet=quiet):
        metrics = task.evaluate(model, Place(accelerator.process_index, accelerator.num_processes, accelerator.device))
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ValueError(f"{name} of {path} is {value}: the model's outputs are not finite on this data")
    if digests(task.recipe, sums["weights"]) != sums:
        raise ValueError(f"the files that data.train or data.val of {path} names changed meanwhile: evaluate it again")
    result: dict[str, Any] = {**metrics, "metric": task.metric, "digest": sums}
    share = None
    if task.counted:
        count = metrics["count"]
        share = wilson(min(metrics[task.metric] * count, count), count)
        result["interval"] = [share.low, share.high]
    if out is not None and accelerator.is_main_process:
        write_json(Path(out) / "metrics.json", result)
        write_evaluation(Path(out), folder, task, result, share, figure=not changes)
    return result


def evaluation_folder(path: str | Path) -> Path:
    """Where evaluations of a checkpoint go: RUN/eval/STEP, or the folder `eval` of a model that does not lie in a
    run."""
    folder = checkpoints.model_folder(Path(path))
    step = folder.resolve().parent
    place = step.parents[1] / "eval" / step.name if step.parent.name == "checkpoints" else folder.resolve() / "eval"
    if place.resolve() != place:  # a run from elsewhere could choose what is overwritten
        raise ValueError(f"{place} is a link to {place.resolve()}: say where to write with --out")
    return place


def write_evaluation(
    out: Path, path: str | Path, task: Task, result: Mapping[str, Any], share: Estimate | None, *, figure: bool
) -> Path:
    """Write report.html to `out` and return its path.

    share: the main metric with its interval, where it is a share of cases. figure: draw predictions, which needs the
    data where the run's own recipe says that it is."""
    recipe = task.recipe
    name = task.metric_name[:1].upper() + task.metric_name[1:]
    score, count = f"{name}: {100 * result[task.metric]:.2f} %", f"{result['count']:,.0f} cases"
    limits = [
        "How another training would score: this is one checkpoint. stringpe compare repeats a training over seeds."
    ]
    if share is not None:
        low, high = share.bounds
        score += f" of {count} (95 % interval {100 * low:.2f} to {100 * high:.2f} %, Wilson's)"
        limits.append("How the model does on other data: the interval allows for the choice of these cases alone.")
    else:
        score += f", from {count}; this metric is not a share of cases and has no simple interval"
    data = f"data.source={recipe.data.source}" + (f", {recipe.data.val}" if recipe.data.val else "")
    run = (
        f"The checkpoint {path} (encoding {recipe.model.encoding}, seed {recipe.seed}) on its validation set ({data})."
    )
    sums = "; ".join(f"{name} {value}" for name, value in result["digest"].items())
    sections = [
        Section("The task", (describe_task(recipe), run)),
        Section("Result", (f"{score}.",)),
        Section("What cannot be concluded", points=tuple(limits)),
        Section("All numbers", tables=(metric_rows(result, task),), notes=(f"Digests: {sums}.",)),
    ]
    drawn = task.figure({recipe.model.encoding: Path(path)}, out) if figure else None
    pictures = show_samples(drawn, task)
    return write_report(out, recipe, sections, pictures, versions(), f"Evaluation on {recipe.name}")


def metric_rows(result: Mapping[str, Any], task: Task) -> Rows:
    """Head and rows of the table of an evaluation's numbers: name, value and meaning."""
    numbers = {name: value for name, value in result.items() if isinstance(value, float)}
    return [
        ("metric", "value", "what it is"),
        *((name, f"{value:.4g}", task.meaning(name)) for name, value in numbers.items()),
    ]
