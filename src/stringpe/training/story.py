"""What the report of a comparison says, from the task to how its numbers were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import recipes
from ..metrics.statistics import row_seed_residual, spreads_alike
from ..recipes.design import Design
from ..recipes.schema import Recipe
from ..tasks.base import Task
from .findings import Finding, Scores, conclusions, open_questions, verdict
from .sections import Section
from .table import Summary, best_rows, cost_rows, difference_rows, score_rows
from .tuning import APART, Tuning

METRICS: Mapping[str, str] = {
    "top1": "the share of validation cases whose first answer is right",
    "top5": "the share of validation cases with the right answer among the first five",
    "AP": "COCO's average precision, the mean over classes and over IoU thresholds from 0.50 to 0.95",
    "iou": "the mean IoU, in 3D, of every object with the prediction that is matched to it",
    "ap": "average precision in 3D, the mean over IoU thresholds from 0.05 to 0.50",
    "ap15": "average precision in 3D at an IoU of 0.15",
    "ap25": "average precision in 3D at an IoU of 0.25",
    "ap50": "average precision in 3D at an IoU of 0.50",
    "mean_recall": "the mean of recall at 1, 5 and 10, from images to texts and from texts to images",
    "far": "the share of objects named right from cameras that stand farther away than in training",
    "near": "the share of predicted actions that lie close to the demonstrated ones, in units of the joints' ranges",
    "loss": "the loss on the validation set",
    "count": "the number of cases that the means are taken over",
}
"""What the numbers of an evaluation are, by name."""


@dataclass(frozen=True)
class Told:
    """What a comparison made, for its report: the recipe, its design and task, the rows with their scores, the
    contrasts, the number of seeds, the baseline, how learning rates were chosen, and whether to show the best seed."""

    recipe: Recipe
    design: Design
    task: Task
    summaries: Sequence[Summary]
    scores: Scores
    findings: Sequence[Finding]
    seeds: int
    baseline: str
    tuning: Tuning | None
    best: bool = False


def tell(told: Told) -> list[Section]:
    """The sections of the report, without its pictures."""
    return [_task(told), _conclusion(told), _limits(told), _scores(told), _costs(told), _method(told)]


def describe_task(recipe: Recipe, about: str = "") -> str:
    """The task in words: `about`, or the first paragraph of what the recipe says of itself."""
    if about:
        return about
    if recipe.name in recipes.names():
        return " ".join(recipes.describe(recipe.name).partition("\n\n")[0].split())
    return f"The task {recipe.task}, on data from {recipe.data.source}."


def _task(told: Told) -> Section:
    rows, task = len(told.summaries), told.task
    runs = f"{rows} rows × {told.seeds} seeds" if told.seeds > 1 else f"{rows} rows, one seed"
    metric = METRICS.get(task.metric, "a share, the larger the better")
    said = f"Every row is an encoding, trained under the recipe {told.recipe.name} with the same seeds: {runs}. "
    said += f"Scores are {task.metric_name} in percent: {metric}."
    return Section("The task", (describe_task(told.recipe, told.design.about), said))


def _conclusion(told: Told) -> Section:
    points = conclusions(told.findings, told.seeds)
    if not points:
        points = ["Nothing: no contrast that was named before the runs is shown to differ, or shown to be equal."]
    return Section("Conclusion", tuple(filter(None, [verdict(told.findings, told.seeds)])), points=tuple(points))


def _limits(told: Told) -> Section:
    """What the numbers do not say."""
    points = list(open_questions(told.findings))
    if told.seeds < 3:
        points.append(
            f"Anything about chance: {told.seeds} {'seed is' if told.seeds == 1 else 'seeds are'} too few to tell a "
            f"difference from luck. Three are the least, five are better (--seeds 5)."
        )
    if told.tuning is None:
        points.append(
            "Which row would win at its own best learning rate: all rows were trained at the recipe's. "
            "--rates chooses one for each."
        )
    points.append(
        "Other tasks, sizes and lengths of training: seeds repeat this training on this data, and nothing else was "
        "varied."
    )
    points.append(
        "Differences between two rows that were not named before the runs: with so many pairs some look large by "
        "chance. The stars in the table allow for that; anything else that stands out needs runs of its own."
    )
    return Section("What cannot be concluded", points=tuple(points))


def _scores(told: Told) -> Section:
    columns = told.design.columns
    several = len(columns) > 1
    tables = [score_rows(told.summaries, told.task.metric_name)]
    points = [f"{c.name}: {c.about}" for c in columns if several and c.about]
    if several:
        tables.append(difference_rows(told.summaries))
    if told.best:
        tables.append(best_rows(told.summaries))
    if told.seeds > 1:
        points.append("±: half of the 95 % interval over seeds")
        points.append(f"difference: to {told.baseline}, paired by seed; * marks those that are significant (see below)")
    else:
        points.append(f"difference: to {told.baseline}, of one seed")
    return Section("Scores", tables=tuple(tables), points=tuple(points))


def _costs(told: Told) -> Section:
    rows = cost_rows(told.summaries)
    explained = {
        "learning rate": "optim.lr of the row",
        "parameters": "of the whole model",
        "of encodings": "parameters that belong to the position encodings",
        "step (ms)": (
            "milliseconds per training step, median (quartiles). After training, all rows take steps in turns, so that "
            "a machine that grows slower does so for all of them"
        ),
        f"× {told.baseline}": "time of a step over that of the baseline in the same turn, median (quartiles)",
        "memory (MiB)": "peak of the tensors on the GPU above what was there before",
    }
    points = [f"{name}: {explained[name]}" for name in rows[0] if name in explained]
    return Section("Cost", tables=(rows,), points=tuple(points))


def _method(told: Told) -> Section:
    recipe, labels = told.recipe, [s.label.split(":")[0] for s in told.summaries]
    notes = [_spread_note(told.scores, told.seeds, told.baseline)] if told.seeds > 1 else []
    if told.tuning is not None:
        length = "full" if told.tuning.share == 1 else f"{told.tuning.share:g} of the"
        notes.append(
            f"The learning rate of each row is the best of {', '.join(f'{r:g}' for r in told.tuning.rates)} by one run "
            f"of {length} length with seed {recipe.seed + APART}, which is not among those reported."
        )
    if "lift" in recipe.model.depth and "none" in labels:
        notes.append("none has no coordinates to lift depth into: it gets depth as a fourth image channel.")
    if "lift" in recipe.model.depth and "absolute" in labels:
        notes.append("absolute adds a learned table for the place in the image and sine-cosine features of the depth.")
    return Section("How the numbers were made", notes=tuple(notes))


def _spread_note(scores: Scores, seeds: int, baseline: str) -> str:
    """How the intervals were made."""
    left = {column: row_seed_residual(rows) for column, rows in scores.items()}
    spread = ", ".join(f"{r.deviation:.2f} ({column})" for column, r in left.items() if r is not None)
    apart = [column for column, rows in scores.items() if not spreads_alike(rows)]
    stars = "after Holm's correction over all differences in the table" if seeds >= 3 else "(none below three seeds)"
    text = (
        f"± is half of the 95 % interval from one residual standard deviation per column, that of an analysis of "
        f"variance by rows and seeds: {spread or 'none'} points. * marks differences to {baseline} that are "
        f"significant at 5 % {stars}. The contrasts of the conclusion were named before the runs, in design.json, and "
        f"are not corrected."
    )
    if apart:
        text += (
            f" Rows spread differently (Bartlett's test, 5 %) in {', '.join(f'“{column}”' for column in apart)}: there "
            f"each mean has its own t interval, and each difference is judged by the rows that it is about, paired by "
            f"seed."
        )
    return text


def metric_rows(found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Head and rows of a table of an evaluation's numbers: name, value, and what it is where that is known."""
    numbers = {name: value for name, value in found.items() if isinstance(value, float)}
    return [
        ("metric", "value", "what it is"),
        *((name, f"{value:.4g}", _explain(name)) for name, value in numbers.items()),
    ]


def _explain(name: str) -> str:
    """What a number is: by its name, or, of a group of cases ("iou_trays"), by that of the whole."""
    whole, _, group = name.partition("_")
    if name in METRICS or whole not in METRICS:
        return METRICS.get(name, "")
    return f"the same as {whole}, of {group} alone"
