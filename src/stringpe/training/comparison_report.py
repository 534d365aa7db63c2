"""What the report of a comparison says: what was shown, what was shown to be equal, what stays open, and how the
numbers were made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..io.files import write_bytes
from ..metrics.statistics import Test, contrast, row_seed_residual, spreads_alike
from ..recipes.design import EQUAL, MORE, TUNING_SEED, Contrast, Design, Question, row_changes
from ..recipes.overrides import override
from ..recipes.schema import Recipe
from ..tasks.base import Task
from .comparison_table import Scores, Summary, best_rows, cost_rows, difference_rows, score_rows
from .figures import can_draw, draw_contrasts, draw_curves, draw_scores
from .report import Section, describe_task, show_picture

SHOWN, SAME, OPEN = "shown", "equal", "open"

_EXPECTATIONS = {MORE: "a difference above zero", EQUAL: "none"}


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
        """The finding in words: "Rotary is 13.43 ± 1.79 points above absolute (as trained), as theory expects"."""
        d = self.test.difference
        half = "" if d.half_width is None else f" ± {d.half_width:.2f}"
        plus, _, minus = self.name.partition(" − ")
        if self.outcome == SHOWN:
            side = "above" if d.mean > 0 else "below"
            text = f"{plus} is {abs(d.mean):.2f}{half} points {side} {minus} ({self.column}; {_p(self.test.p_value)})"
        elif self.outcome == SAME:
            text = (
                f"{plus} equals {minus} within {self.test.margin:g} points ({self.column}; the difference is "
                f"{d.mean:+.2f}{half}, {_p(self.test.p_equal)})"
            )
        else:
            text = f"Whether {plus} differs from {minus} ({self.column}): the difference is {d.mean:+.2f}{half} points"
        if self.as_expected is not None:
            text += ", as theory expects" if self.as_expected else f", where theory expects {self._expectation}"
        elif self.expected:
            text += f", and theory expects {self._expectation}"
        return text[0].upper() + text[1:]

    @property
    def _expectation(self) -> str:
        return _EXPECTATIONS[self.expected]


def find_contrasts(scores: Scores, design: Design) -> list[Finding]:
    """The design's contrasts in every column, as far as their rows exist. Their tests are not adjusted, because they
    were named before the runs."""
    findings = []
    for column, rows in scores.items():
        for named in design.contrasts:
            plus, minus = sides(named, list(rows))
            if plus and minus:
                test = contrast(rows, plus, minus, design.margin)
                findings.append(Finding(named.name, column, named.expected.get(column, ""), test))
    return findings


def sides(named: Contrast, rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """The rows on both sides of a contrast that a comparison has."""
    return [row for row in named.plus if row in rows], [row for row in named.minus if row in rows]


def conclusions(findings: Sequence[Finding], seeds: int) -> list[str]:
    """What was shown to differ, and then what was shown to be equal, one sentence each; nothing below three seeds."""
    if seeds < 3:
        return []
    return [f"{f.sentence()}." for outcome in (SHOWN, SAME) for f in findings if f.outcome == outcome]


def open_questions(findings: Sequence[Finding]) -> list[str]:
    """What is neither shown to differ nor shown to be equal, one sentence each."""
    return [
        f"{f.sentence()}; it is neither shown to differ from zero nor to lie within ± {f.test.margin:g}."
        for f in findings
        if f.outcome == OPEN
    ]


def verdict(findings: Sequence[Finding], seeds: int) -> str:
    """One sentence on theory's expectations, "" where there are none."""
    expected = [f for f in findings if f.expected]
    if not expected:
        return ""
    met, against = (sum(f.as_expected is value for f in expected) for value in (True, False))
    few = " Deciding takes at least three seeds." if seeds < 3 else ""
    undecided = len(expected) - met - against
    return (
        f"Theory has {len(expected)} expectations of this comparison: {met} met, {against} contradicted, {undecided} "
        f"undecided.{few}"
    )


def _p(value: float | None) -> str:
    return "" if value is None else "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def write_sections(
    question: Question, task: Task, summaries: Sequence[Summary], scores: Scores, findings: Sequence[Finding]
) -> list[Section]:
    """The sections of the report, without its pictures."""
    return [
        _task(question, task),
        _conclusion(findings, question.seeds),
        _limits(question, findings),
        _scores(question, task, summaries),
        _costs(summaries, question.baseline),
        _method(question, scores),
    ]


def _task(question: Question, task: Task) -> Section:
    rows, seeds = len(question.rows), question.seeds
    runs = f"{rows} rows × {seeds} seeds" if seeds > 1 else f"{rows} rows, one seed"
    meaning = task.meanings.get(task.metric, "a share, the larger the better")
    text = f"Every row is an encoding, trained under the recipe {question.recipe.name} with the same seeds: {runs}. "
    if any(":" in row for row in question.rows):
        text += "What a row changes, options of the encoding or of the recipe, stands after a colon. "
    text += f"Scores are {task.metric_name} in percent: {meaning}."
    return Section("The task", (describe_task(question.recipe, question.design.about), text))


def _conclusion(findings: Sequence[Finding], seeds: int) -> Section:
    points = conclusions(findings, seeds)
    if not points:
        points = ["None of the contrasts named before the runs was shown to differ or to be equal."]
    return Section("Conclusion", tuple(filter(None, [verdict(findings, seeds)])), points=tuple(points))


def _limits(question: Question, findings: Sequence[Finding]) -> Section:
    """What the numbers do not say."""
    points, seeds = open_questions(findings), question.seeds
    if seeds < 3:
        points.append(
            f"Whether a difference is more than chance: {seeds} {'seed is' if seeds == 1 else 'seeds are'} "
            f"too few to tell. Use at least three, better five (--seeds 5)."
        )
    if question.tuning is None:
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


def _scores(question: Question, task: Task, summaries: Sequence[Summary]) -> Section:
    columns = question.design.columns
    several = len(columns) > 1
    tables = [score_rows(summaries, task.metric_name)]
    points = [f"{c.name}: {c.about}" for c in columns if several and c.about]
    if several:
        tables.append(difference_rows(summaries, question.baseline))
    if question.best:
        tables.append(best_rows(summaries))
    if question.seeds > 1:
        points.append("±: half of the 95 % interval over seeds")
        points.append(f"difference: from {question.baseline}, paired by seed; * marks significant ones (see below)")
    else:
        points.append(f"difference: from {question.baseline}, of one seed")
    return Section("Scores", tables=tuple(tables), points=tuple(points))


def _costs(summaries: Sequence[Summary], baseline: str) -> Section:
    rows = cost_rows(summaries)
    meanings = {
        "learning rate": "optim.lr of the row",
        "parameters": "of the whole model",
        "of encodings": "parameters that belong to the position encodings",
        "step (ms)": (
            "milliseconds per training step, median (quartiles). After training, all rows take steps in turns, so that "
            "a machine that slows down slows all of them"
        ),
        f"× {baseline}": "time of a step over that of the baseline in the same turn, median (quartiles)",
        "memory (MiB)": "peak of the tensors on the GPU above what was there before",
    }
    points = [f"{name}: {meanings[name]}" for name in rows[0] if name in meanings]
    return Section("Cost", tables=(rows,), points=tuple(points))


def _method(question: Question, scores: Scores) -> Section:
    recipe, tuning = question.recipe, question.tuning
    notes = [_explain_intervals(scores, question.seeds, question.baseline)] if question.seeds > 1 else []
    if tuning is not None:
        length = "full" if tuning.share == 1 else f"{tuning.share:g} of the"
        notes.append(
            f"The learning rate of each row is the best of {', '.join(f'{r:g}' for r in tuning.rates)} by one run "
            f"of {length} length with seed {recipe.seed + TUNING_SEED}, which is not among those reported."
        )
    notes += explain_depth(recipe, question.rows)
    return Section("How the numbers were made", notes=tuple(notes))


def explain_depth(recipe: Recipe, rows: Sequence[str]) -> list[str]:
    """What depth="lift" means for rows that have no coordinates to lift it into, where there are such rows."""
    lifted = set()
    for row in rows:
        changes = [change for change in row_changes(row) if change.startswith("model.depth=")]
        if "lift" in override(recipe, changes).model.depth:
            lifted.add(row.partition(":")[0])
    notes = {
        "none": "none has no coordinates to lift depth into: it gets depth as a fourth image channel.",
        "absolute": "absolute adds a learned table for the place in the image and one for the depth.",
    }
    return [note for encoding, note in notes.items() if encoding in lifted]


def _explain_intervals(scores: Scores, seeds: int, baseline: str) -> str:
    """How the intervals were made."""
    residuals = {column: row_seed_residual(rows) for column, rows in scores.items()}
    spread = ", ".join(f"{r.deviation:.2f} ({column})" for column, r in residuals.items() if r is not None)
    unequal = [column for column, rows in scores.items() if not spreads_alike(rows)]
    stars = "after Holm's correction over all differences in the table" if seeds >= 3 else "(none below three seeds)"
    text = (
        f"± is half of the 95 % interval from one residual standard deviation per column, that of an analysis of "
        f"variance by rows and seeds: {spread or 'none'} points. * marks differences from {baseline} that are "
        f"significant at 5 % {stars}. The contrasts of the conclusion were named before the runs, in design.json, and "
        f"are not corrected."
    )
    if unequal:
        text += (
            f" Rows spread differently (Bartlett's test, 5 %) in {', '.join(f'“{column}”' for column in unequal)}: "
            f"there each mean has its own t interval, and each difference is judged by the rows that it is about, "
            f"paired by seed."
        )
    return text


def draw_pictures(
    out: Path,
    summaries: Sequence[Summary],
    findings: Sequence[Finding],
    curves: Mapping[str, Sequence[Path]],
    task: Task,
) -> list[Section]:
    """Draw contrasts.svg, scores.svg and curves.svg in `out`, and return the sections that show them; without
    matplotlib, warn. curves: the metrics.jsonl of every run, by row."""
    if not can_draw():
        return []
    pictures: dict[str, tuple[str, bytes, str]] = {}
    by_name: dict[str, dict[str, Test]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, {})[finding.column] = finding.test
    if by_name:
        drawn = draw_contrasts(by_name, findings[0].test.margin)
        pictures["contrasts"] = ("Contrasts named before the runs", drawn, "Filled: the interval excludes zero.")
    pictures["scores"] = ("Scores, seed by seed", draw_scores(summaries, task.metric_name), "")
    legend = "The line is the mean over seeds, the band their range."
    pictures["curves"] = ("Curves", draw_curves(curves, task.metric, task.metric_name), legend)
    for name, (_, picture, _) in pictures.items():
        write_bytes(out / f"{name}.svg", picture)
    return [show_picture(title, "image/svg+xml", picture, about) for title, picture, about in pictures.values()]
