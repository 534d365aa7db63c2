"""The table of a comparison: one row per encoding, one column per question, with intervals over seeds."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..io.table import markdown_table
from ..metrics.statistics import Estimate, Test, contrast, row_seed_residual, spreads_alike, t_interval
from .findings import Scores, adjusted_p_values


@dataclass(frozen=True)
class Cell:
    """A row in one column, in percent: the mean over seeds, every seed's score, the test of the difference to the
    baseline (None for the baseline itself) and its p-value after Holm's correction (None below three seeds)."""

    score: Estimate
    seeds: dict[int, float]
    difference: Test | None
    adjusted: float | None

    @property
    def best(self) -> float:
        """The maximum over seeds, which grows with their number and says nothing about chance."""
        return max(self.seeds.values())


@dataclass(frozen=True)
class Summary:
    """A row: its cells by column, the learning rate, and costs, None where they were not measured. step_ms: median and
    quartiles of milliseconds per step, measured in turns with the other rows."""

    label: str
    cells: dict[str, Cell]
    rate: float
    parameters: int
    encoding_parameters: int | None = None
    step_ms: tuple[float, float, float] | None = None
    peak_bytes: int | None = None

    @property
    def main(self) -> Cell:
        """The first column's cell."""
        return next(iter(self.cells.values()))


def summarise(
    scores: Scores,
    costs: Mapping[str, Mapping[str, Any]],
    rates: Mapping[str, float],
    parameters: Mapping[str, int],
    baseline: str,
    margin: float,
) -> list[Summary]:
    """One summary per row. costs[label]: what `measure_in_turns` gave, if it ran; rates[label]: its learning rate."""
    adjusted = adjusted_p_values(scores, baseline, margin)
    residuals = {column: row_seed_residual(rows) if spreads_alike(rows) else None for column, rows in scores.items()}

    def cell(column: str, label: str) -> Cell:
        rows, residual = scores[column], residuals[column]
        mean = t_interval(list(rows[label].values()))
        pooled = mean if residual is None else residual.interval(mean.mean, 1.0)
        test = None if label == baseline else contrast(rows, [label], [baseline], margin)
        return Cell(pooled, dict(rows[label]), test, adjusted.get((column, label)))

    first = next(iter(scores.values()))
    return [
        Summary(
            label=label,
            cells={column: cell(column, label) for column in scores},
            rate=rates[label],
            parameters=parameters[label],
            **costs.get(label, {}),
        )
        for label in first
    ]


def headings(summaries: Sequence[Summary], metric_name: str) -> tuple[str, ...]:
    """The first line of the table."""
    columns = list(summaries[0].cells)
    scores = (f"{metric_name} (%)",) if len(columns) == 1 else tuple(f"{c} (%)" for c in columns)
    costs = ("rate", "parameters", "of encodings", "step (ms)", "memory (MiB)")
    return ("encoding", *scores, *(("difference",) if len(columns) == 1 else ()), *costs)


def cells(summary: Summary) -> tuple[str, ...]:
    """A row as people read it."""
    scores = tuple(_plus_minus(cell.score, "") for cell in summary.cells.values())
    if len(summary.cells) == 1:
        scores += (difference(summary.main),)
    step = summary.step_ms
    return (
        summary.label,
        *scores,
        f"{summary.rate:g}",
        f"{summary.parameters:,}",
        "–" if summary.encoding_parameters is None else f"{summary.encoding_parameters:,}",
        "–" if step is None else f"{step[0]:.1f} ({step[1]:.1f}–{step[2]:.1f})",
        "–" if summary.peak_bytes is None else f"{summary.peak_bytes / 2**20:,.0f}",
    )


def difference(cell: Cell) -> str:
    """The difference to the baseline, with * where it is significant after Holm's correction."""
    if cell.difference is None:
        return "baseline"
    star = " *" if cell.adjusted is not None and cell.adjusted < 0.05 else ""
    return _plus_minus(cell.difference.difference, "+") + star


def difference_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Head and rows of the table of differences to the baseline, for comparisons of several columns."""
    head = ("difference", *summaries[0].cells)
    return [head, *((s.label, *map(difference, s.cells.values())) for s in summaries)]


def best_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Head and rows of the table of maxima over seeds, as the paper reports detection in 3D."""
    seeds = len(summaries[0].main.seeds)
    head = (f"best of {seeds} seed{'s' if seeds > 1 else ''}", *(f"{column} (%)" for column in summaries[0].cells))
    return [head, *((s.label, *(f"{cell.best:.2f}" for cell in s.cells.values())) for s in summaries)]


def as_text(summaries: Sequence[Summary], metric_name: str, notes: Sequence[str], *, best: bool = False) -> str:
    """Markdown, aligned so that it reads well as it is. best: with the maxima over seeds."""
    parts = [markdown_table(headings(summaries, metric_name), [cells(s) for s in summaries]), ""]
    if len(summaries[0].cells) > 1:
        head, *rows = difference_rows(summaries)
        parts += [markdown_table(head, rows), ""]
    if best:
        head, *rows = best_rows(summaries)
        parts += [markdown_table(head, rows), ""]
    return "\n".join([*parts, *notes, ""])


def as_csv(summaries: Sequence[Summary]) -> str:
    """One line per row and column, all numbers in full."""
    lines = [_line(s, column, cell) for s in summaries for column, cell in s.cells.items()]
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _line(s: Summary, column: str, cell: Cell) -> dict[str, Any]:
    test = cell.difference
    d = Estimate(0.0, None, None, cell.score.count) if test is None else test.difference
    return {
        "encoding": s.label,
        "column": column,
        "mean": cell.score.mean,
        "low": cell.score.low,
        "high": cell.score.high,
        "best": cell.best,
        "difference": d.mean,
        "difference_low": d.low,
        "difference_high": d.high,
        "p_value": None if test is None else test.p_value,
        "p_holm": cell.adjusted,
        "rate": s.rate,
        "parameters": s.parameters,
        "encoding_parameters": s.encoding_parameters,
        "step_ms": None if s.step_ms is None else s.step_ms[0],
        "peak_bytes": s.peak_bytes,
        "seeds": " ".join(map(str, cell.seeds)),
        "scores": " ".join(map(str, cell.seeds.values())),
    }


def _plus_minus(e: Estimate, sign: str) -> str:
    half = "" if e.half_width is None else f" ± {e.half_width:.2f}"
    return f"{e.mean:{sign}.2f}{half}"
