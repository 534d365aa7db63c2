"""What the report of a comparison says: what was shown, what was shown to be equal, what stays open, and how the
numbers were made."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..io.files import write_bytes
from ..metrics.statistics import Test, contrast, row_seed_residual, spreads_alike
from ..recipes.design import EQUAL, MORE, Contrast, Design
from ..recipes.schema import Recipe
from ..tasks.base import Task
from .report import METRICS, Section, describe_task, show_picture
from .runs import APART, Tuning
from .table import Scores, Summary, best_rows, cost_rows, difference_rows, score_rows

SHOWN, SAME, OPEN = "shown", "equal", "open"


@dataclass(frozen=True)
class Finding:
    """A contrast that was named before the runs, in one column. expected: MORE, EQUAL or "" where theory is silent."""

    name: str
    column: str
    expected: str
    test: Test

    @property
    def outcome(self) -> str:
        """SHOWN to differ, the SAME within the margin, or OPEN. Where theory expects equality, a difference that is
        significant but within the margin counts as the same."""
        if self.test.is_equal and (self.expected == EQUAL or not self.test.differs):
            return SAME
        return SHOWN if self.test.differs else OPEN

    @property
    def as_expected(self) -> bool | None:
        """Whether theory's expectation was met; None where there is none, or where the question stays open."""
        if not self.expected or self.outcome == OPEN:
            return None
        if self.expected == EQUAL:
            return self.outcome == SAME
        return self.outcome == SHOWN and self.test.difference.mean > 0

    def sentence(self) -> str:
        """The finding in words: "rotary is 13.43 ± 1.79 points above absolute (as trained), as theory expects"."""
        d = self.test.difference
        half = "" if d.half_width is None else f" ± {d.half_width:.2f}"
        plus, _, minus = self.name.partition(" − ")
        if self.outcome == SHOWN:
            side = "above" if d.mean > 0 else "below"
            said = f"{plus} is {abs(d.mean):.2f}{half} points {side} {minus} ({self.column}; {_p(self.test.p_value)})"
        elif self.outcome == SAME:
            said = (
                f"{plus} equals {minus} within {self.test.margin:g} points ({self.column}; the difference is "
                f"{d.mean:+.2f}{half}, {_p(self.test.p_equal)})"
            )
        else:
            said = f"Whether {plus} differs from {minus} ({self.column}): the difference is {d.mean:+.2f}{half} points"
        if self.as_expected is not None:
            said += ", as theory expects" if self.as_expected else f", where theory expects {_EXPECTED[self.expected]}"
        elif self.expected:
            said += f", and theory expects {_EXPECTED[self.expected]}"
        return said[0].upper() + said[1:]


_EXPECTED = {MORE: "a difference above zero", EQUAL: "none"}


def find_contrasts(scores: Scores, design: Design) -> list[Finding]:
    """The design's contrasts in every column, as far as their rows are there. The tests of these are not adjusted: they
    were named before the runs."""
    found = []
    for column, rows in scores.items():
        for asked in design.contrasts:
            plus, minus = sides(asked, list(rows))
            if plus and minus:
                test = contrast(rows, plus, minus, design.margin)
                found.append(Finding(asked.name, column, asked.expected.get(column, ""), test))
    return found


def sides(asked: Contrast, rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """The rows on both sides of a contrast that a comparison has."""
    return [row for row in asked.plus if row in rows], [row for row in asked.minus if row in rows]


def conclusions(findings: Sequence[Finding], seeds: int) -> list[str]:
    """What was shown to differ, and then what was shown to be equal, a sentence each; nothing below three seeds."""
    if seeds < 3:
        return []
    return [f"{f.sentence()}." for outcome in (SHOWN, SAME) for f in findings if f.outcome == outcome]


def open_questions(findings: Sequence[Finding]) -> list[str]:
    """What is neither shown to differ nor shown to be equal, a sentence each."""
    return [
        f"{f.sentence()}; it is neither shown to differ from zero nor to lie within ± {f.test.margin:g}."
        for f in findings
        if f.outcome == OPEN
    ]


def verdict(findings: Sequence[Finding], seeds: int) -> str:
    """One sentence on theory's expectations, "" where there are none."""
    asked = [f for f in findings if f.expected]
    if not asked:
        return ""
    met, against = (sum(f.as_expected is value for f in asked) for value in (True, False))
    few = " Deciding takes at least three seeds." if seeds < 3 else ""
    undecided = len(asked) - met - against
    return (
        f"Theory has {len(asked)} expectations of this comparison: {met} met, {against} contradicted, {undecided} "
        f"undecided.{few}"
    )


def _p(value: float | None) -> str:
    return "" if value is None else "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


@dataclass(frozen=True)
class ComparisonData:
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


def write_sections(data: ComparisonData) -> list[Section]:
    """The sections of the report, without its pictures."""
    return [_task(data), _conclusion(data), _limits(data), _scores(data), _costs(data), _method(data)]


def _task(data: ComparisonData) -> Section:
    rows, task = len(data.summaries), data.task
    runs = f"{rows} rows × {data.seeds} seeds" if data.seeds > 1 else f"{rows} rows, one seed"
    metric = METRICS.get(task.metric, "a share, the larger the better")
    said = f"Every row is an encoding, trained under the recipe {data.recipe.name} with the same seeds: {runs}. "
    said += f"Scores are {task.metric_name} in percent: {metric}."
    return Section("The task", (describe_task(data.recipe, data.design.about), said))


def _conclusion(data: ComparisonData) -> Section:
    points = conclusions(data.findings, data.seeds)
    if not points:
        points = ["None of the contrasts named before the runs was shown to differ or to be equal."]
    return Section("Conclusion", tuple(filter(None, [verdict(data.findings, data.seeds)])), points=tuple(points))


def _limits(data: ComparisonData) -> Section:
    """What the numbers do not say."""
    points = list(open_questions(data.findings))
    if data.seeds < 3:
        points.append(
            f"Whether a difference is more than chance: {data.seeds} {'seed is' if data.seeds == 1 else 'seeds are'} "
            f"too few to tell. Use at least three, better five (--seeds 5)."
        )
    if data.tuning is None:
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


def _scores(data: ComparisonData) -> Section:
    columns = data.design.columns
    several = len(columns) > 1
    tables = [score_rows(data.summaries, data.task.metric_name)]
    points = [f"{c.name}: {c.about}" for c in columns if several and c.about]
    if several:
        tables.append(difference_rows(data.summaries))
    if data.best:
        tables.append(best_rows(data.summaries))
    if data.seeds > 1:
        points.append("±: half of the 95 % interval over seeds")
        points.append(f"difference: from {data.baseline}, paired by seed; * marks significant ones (see below)")
    else:
        points.append(f"difference: from {data.baseline}, of one seed")
    return Section("Scores", tables=tuple(tables), points=tuple(points))


def _costs(data: ComparisonData) -> Section:
    rows = cost_rows(data.summaries)
    explained = {
        "learning rate": "optim.lr of the row",
        "parameters": "of the whole model",
        "of encodings": "parameters that belong to the position encodings",
        "step (ms)": (
            "milliseconds per training step, median (quartiles). After training, all rows take steps in turns, so that "
            "a machine that slows down slows all of them"
        ),
        f"× {data.baseline}": "time of a step over that of the baseline in the same turn, median (quartiles)",
        "memory (MiB)": "peak of the tensors on the GPU above what was there before",
    }
    points = [f"{name}: {explained[name]}" for name in rows[0] if name in explained]
    return Section("Cost", tables=(rows,), points=tuple(points))


def _method(data: ComparisonData) -> Section:
    recipe, labels = data.recipe, [s.label.split(":")[0] for s in data.summaries]
    notes = [_spread_note(data.scores, data.seeds, data.baseline)] if data.seeds > 1 else []
    if data.tuning is not None:
        length = "full" if data.tuning.share == 1 else f"{data.tuning.share:g} of the"
        notes.append(
            f"The learning rate of each row is the best of {', '.join(f'{r:g}' for r in data.tuning.rates)} by one run "
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
        f"variance by rows and seeds: {spread or 'none'} points. * marks differences from {baseline} that are "
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


def draw_pictures(
    out: Path, summaries: Sequence[Summary], runs: Mapping[str, Sequence[Path]], task: Task
) -> list[Section]:
    """scores.svg and curves.svg in `out`, and the sections that show them; without matplotlib a warning. runs:
    metrics.jsonl by row."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        warnings.warn(
            "matplotlib is not installed, so the report has no curves: repeat the command where it is, on the same "
            "folder; finished runs are only read",
            RuntimeWarning,
            2,
        )
        return []
    from .figures import draw_curves, draw_scores

    scores = draw_scores(summaries, task.metric_name)
    curves = draw_curves(runs, task.metric, task.metric_name)
    write_bytes(out / "scores.svg", scores)
    write_bytes(out / "curves.svg", curves)
    about = "The line is the mean over seeds, the band their range."
    return [
        show_picture("Scores, seed by seed", "image/svg+xml", scores),
        replace(show_picture("Curves", "image/svg+xml", curves), notes=(about,)),
    ]
