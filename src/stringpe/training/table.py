"""The table of a comparison: a row an encoding, with intervals over seeds."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..metrics.statistics import Estimate, paired, t_interval


@dataclass(frozen=True)
class Summary:
    """A row: score and paired difference to the baseline (in percent), the score of every seed, the learning rate, and
    costs, None where they were not measured."""

    label: str
    score: Estimate
    difference: Estimate | None
    seeds: dict[int, float]
    rate: float
    parameters: int
    encoding_parameters: int | None
    step_ms: float | None
    peak_bytes: int | None


def summarise(
    results: Mapping[str, Mapping[int, Mapping[str, Any]]],
    costs: Mapping[str, Mapping[str, Any]],
    rates: Mapping[str, float],
    metric: str,
    baseline: str,
) -> list[Summary]:
    """results[label][seed] is a run's result.json; costs[label] what `measure` gave, if it ran; rates[label] its
    learning rate."""
    scores = {label: {s: 100 * r["metrics"][metric] for s, r in runs.items()} for label, runs in results.items()}
    return [
        Summary(
            label=label,
            score=t_interval(list(values.values())),
            difference=None if label == baseline else paired(values, scores[baseline]),
            seeds=values,
            rate=rates[label],
            parameters=next(iter(results[label].values()))["parameters"],
            encoding_parameters=costs.get(label, {}).get("encoding_parameters"),
            step_ms=costs.get(label, {}).get("step_ms"),
            peak_bytes=costs.get(label, {}).get("peak_bytes"),
        )
        for label, values in scores.items()
    ]


HEADINGS = ("encoding", "{metric} (%)", "difference", "rate", "parameters", "of encodings", "step (ms)", "memory (MiB)")


def cells(summary: Summary) -> tuple[str, ...]:
    """A row as people read it."""
    d = summary.difference
    return (
        summary.label,
        _plus_minus(summary.score, ""),
        "baseline" if d is None else _plus_minus(d, "+") + (" *" if d.excludes_zero else ""),
        f"{summary.rate:g}",
        f"{summary.parameters:,}",
        "–" if summary.encoding_parameters is None else f"{summary.encoding_parameters:,}",
        "–" if summary.step_ms is None else f"{summary.step_ms:.1f}",
        "–" if summary.peak_bytes is None else f"{summary.peak_bytes / 2**20:,.0f}",
    )


def headings(metric_name: str) -> tuple[str, ...]:
    """The first line of the table."""
    return tuple(h.format(metric=metric_name) for h in HEADINGS)


def as_text(summaries: Sequence[Summary], metric_name: str, notes: Sequence[str]) -> str:
    """Markdown, aligned so that it reads well as it is."""
    rows = [headings(metric_name), *map(cells, summaries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        sides = [c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return f"| {' | '.join(sides)} |"

    rule = "|" + "|".join("-" * (w + 1) + (":" if i else "-") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:]), "", *notes, ""])


def as_csv(summaries: Sequence[Summary]) -> str:
    """One line a row, all numbers in full."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns(summaries[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_columns, summaries))
    return text.getvalue()


def _columns(s: Summary) -> dict[str, Any]:
    d = s.difference or Estimate(0.0, None, None, s.score.count)
    return {
        "encoding": s.label,
        "mean": s.score.mean,
        "low": s.score.low,
        "high": s.score.high,
        "difference": d.mean,
        "difference_low": d.low,
        "difference_high": d.high,
        "rate": s.rate,
        "parameters": s.parameters,
        "encoding_parameters": s.encoding_parameters,
        "step_ms": s.step_ms,
        "peak_bytes": s.peak_bytes,
        "seeds": " ".join(map(str, s.seeds)),
        "scores": " ".join(map(str, s.seeds.values())),
    }


def _plus_minus(e: Estimate, sign: str) -> str:
    half = "" if e.half_width is None else f" ± {e.half_width:.2f}"
    return f"{e.mean:{sign}.2f}{half}"
