"""The tables of a comparison: one row per encoding, one column per question, with intervals over seeds."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics.statistics import Estimate, Test, contrast, holm, row_seed_residual, spreads_alike, t_interval

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Percent by column, row and seed."""


@dataclass(frozen=True)
class Cell:
    """A row in one column, in percent. score: the mean over seeds. seeds: the score of every seed. test: of the
    difference from the baseline, None for the baseline itself. adjusted: its p-value after Holm's correction, None
    below three seeds."""

    score: Estimate
    seeds: dict[int, float]
    test: Test | None
    adjusted: float | None

    @property
    def best(self) -> float:
        """The maximum over seeds, which grows with their number and says nothing about chance."""
        return max(self.seeds.values())


@dataclass(frozen=True)
class Summary:
    """A row: its cells by column, its learning rate, and its costs, None where they were not measured. step_ms: median
    and quartiles of milliseconds per step, measured in turns with the other rows; ratio: median and quartiles of that
    time over the baseline's in the same turn."""

    label: str
    cells: dict[str, Cell]
    rate: float
    parameters: int
    encoding_parameters: int | None = None
    step_ms: tuple[float, float, float] | None = None
    ratio: tuple[float, float, float] | None = None
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
    """One summary per row. costs: by row, as `measure_in_turns` gives them, where they were measured; rates: the
    learning rate of every row."""
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


def adjusted_p_values(scores: Scores, baseline: str, margin: float) -> dict[tuple[str, str], float]:
    """p-values, by column and row, of all differences from the baseline, adjusted together by Holm; none below three
    seeds, where nothing is called significant."""
    p_values = {}
    for column, rows in scores.items():
        for row in rows:
            test = None if row == baseline else contrast(rows, [row], [baseline], margin)
            if test is not None and test.p_value is not None and test.difference.count >= 3:
                p_values[column, row] = test.p_value
    return holm(p_values)


def score_rows(summaries: Sequence[Summary], metric_name: str) -> list[tuple[str, ...]]:
    """Head and rows of the table of scores; with differences from the baseline, where there is one column."""
    columns = list(summaries[0].cells)
    if len(columns) > 1:
        head = ("encoding", *(f"{column} (%)" for column in columns))
        return [head, *((s.label, *(_plus_minus(c.score, "") for c in s.cells.values())) for s in summaries)]
    head = ("encoding", f"{metric_name} (%)", "difference")
    return [head, *((s.label, _plus_minus(s.main.score, ""), show_difference(s.main)) for s in summaries)]


def cost_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Head and rows of the table of costs, without the columns that were not measured for any row."""
    baseline = next((s.label for s in summaries if s.main.test is None), "baseline")
    columns = {
        "encoding": [s.label for s in summaries],
        "learning rate": [f"{s.rate:g}" for s in summaries],
        "parameters": [f"{s.parameters:,}" for s in summaries],
        "of encodings": ["–" if s.encoding_parameters is None else f"{s.encoding_parameters:,}" for s in summaries],
        "step (ms)": [_quartiles(s.step_ms, 1) for s in summaries],
        f"× {baseline}": [_quartiles(s.ratio, 2) for s in summaries],
        "memory (MiB)": ["–" if s.peak_bytes is None else f"{s.peak_bytes / 2**20:,.0f}" for s in summaries],
    }
    measured = {name: column for name, column in columns.items() if set(column) != {"–"}}
    return [tuple(measured), *zip(*measured.values(), strict=True)]


def _quartiles(values: tuple[float, float, float] | None, digits: int) -> str:
    if values is None:
        return "–"
    return "{:.{d}f} ({:.{d}f}–{:.{d}f})".format(*values, d=digits)


def show_difference(cell: Cell) -> str:
    """The difference from the baseline, with * where it is significant after Holm's correction."""
    if cell.test is None:
        return "baseline"
    star = " *" if cell.adjusted is not None and cell.adjusted < 0.05 else ""
    return _plus_minus(cell.test.difference, "+") + star


def difference_rows(summaries: Sequence[Summary], baseline: str) -> list[tuple[str, ...]]:
    """Head and rows of the table of differences from the baseline, for comparisons of several columns."""
    head = (f"difference from {baseline}", *summaries[0].cells)
    return [head, *((s.label, *map(show_difference, s.cells.values())) for s in summaries)]


def best_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Head and rows of the table of maxima over seeds, as the paper reports detection in 3D."""
    seeds = len(summaries[0].main.seeds)
    head = (f"best of {seeds} seed{'s' if seeds > 1 else ''}", *(f"{column} (%)" for column in summaries[0].cells))
    return [head, *((s.label, *(f"{cell.best:.2f}" for cell in s.cells.values())) for s in summaries)]


def as_csv(summaries: Sequence[Summary]) -> str:
    """One line per row and column, all numbers in full."""
    lines = [_line(s, column, cell) for s in summaries for column, cell in s.cells.items()]
    text = io.StringIO()
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _line(s: Summary, column: str, cell: Cell) -> dict[str, Any]:
    test = cell.test
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
        "step_ratio": None if s.ratio is None else s.ratio[0],
        "peak_bytes": s.peak_bytes,
        "seeds": " ".join(map(str, cell.seeds)),
        "scores": " ".join(map(str, cell.seeds.values())),
    }


def _plus_minus(e: Estimate, sign: str) -> str:
    half = "" if e.half_width is None else f" ± {e.half_width:.2f}"
    return f"{e.mean:{sign}.2f}{half}"
