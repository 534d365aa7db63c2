"""Figures of reports: curves over steps, final scores, and shares with their intervals. Needs matplotlib."""

import io
import json
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from ..metrics.statistics import Estimate, Test
from .comparison_table import Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Points = list[tuple[int, float]]

_DASHES = ("-", "--", ":", "-.")


def can_draw() -> bool:
    """Whether matplotlib is installed; warns if it is not."""
    if find_spec("matplotlib") is not None:
        return True
    warnings.warn(
        "matplotlib is not installed, so the report has no figures: repeat the command where it is, on the same "
        "folder; what is finished is only read",
        RuntimeWarning,
        3,
    )
    return False


def read_curve(path: Path, key: str) -> Points:
    """(step, value) of every line of a metrics.jsonl that has `key`."""
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return [(row["step"], row[key]) for row in rows if row.get(key) is not None]


def mean_curve(curves: Sequence[Points]) -> tuple[list[int], list[float], list[float], list[float]]:
    """The steps that the curves of all seeds have, with mean, smallest and largest value there."""
    tables = [dict(c) for c in curves]
    steps = sorted(set.intersection(*(set(t) for t in tables))) if tables else []
    values = [[t[s] for t in tables] for s in steps]
    return steps, [fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values]


def draw_curves(runs: Mapping[str, Sequence[Path]], metric: str, metric_name: str) -> bytes:
    """SVG: training loss and validation score over steps; lines are means over seeds, bands their ranges. Without
    scores before the end, only the loss."""
    curves = {
        key: {label: mean_curve([read_curve(p, key) for p in paths]) for label, paths in runs.items()}
        for key in ("loss", f"val/{metric}")
    }
    panels = {"loss": ("training loss", 1.0), f"val/{metric}": (f"{metric_name} on validation (%)", 100.0)}
    shown = [key for key in curves if key == "loss" or any(len(curve[0]) > 1 for curve in curves[key].values())]
    figure = _figure(10.4, 4.0)
    styles = line_styles(list(runs))
    for ax, key in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        title, scale = panels[key]
        for label, (steps, mean, low, high) in curves[key].items():
            colour, dashes = styles[label]
            style = {"color": colour, "linestyle": dashes, "linewidth": 1.5, "marker": "o" if len(steps) < 3 else ""}
            ax.plot(steps, [scale * v for v in mean], label=label, markersize=4, **style)
            ax.fill_between(steps, [scale * v for v in low], [scale * v for v in high], color=colour, alpha=0.12)
        ax.set_title(title, fontsize=11)
        ax.set_xlabel("step")
        ax.grid(alpha=0.25)
        handles = ax.get_legend_handles_labels()
    below = {"loc": "outside lower center", "ncols": min(4, len(runs)), "frameon": False, "fontsize": 9}
    figure.legend(*handles, **below)
    return _svg(figure)


def line_styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and dashes of every row: an encoding has its colour, and what a row changes after the colon its dashes."""
    parts = {label: label.partition(":")[::2] for label in labels}
    names, changes = (list(dict.fromkeys(column)) for column in zip(*parts.values(), strict=True))
    return {
        label: (f"C{names.index(name) % 10}", _DASHES[changes.index(change) % len(_DASHES)])
        for label, (name, change) in parts.items()
    }


def draw_scores(summaries: Sequence[Summary], metric_name: str) -> bytes:
    """SVG: the score of every row with its 95 % interval, and every seed as a dot; one panel per column, two of them
    side by side."""
    columns = list(summaries[0].cells)
    across = min(2, len(columns))
    down = -(-len(columns) // across)
    figure = _figure(10.4, 0.5 + down * (0.7 + 0.3 * len(summaries)))
    axes = figure.subplots(down, across, sharey=True, squeeze=False).flatten()
    for ax in axes[len(columns) :]:
        ax.set_visible(False)
    for ax, column in zip(axes, columns, strict=False):
        for y, summary in enumerate(summaries):
            cell = summary.cells[column]
            half = cell.score.half_width or 0.0
            ax.errorbar(cell.score.mean, y, xerr=half, fmt="o", color="#1f4e79", capsize=3, markersize=5, zorder=3)
            ax.plot(list(cell.seeds.values()), [y] * len(cell.seeds), "o", color="#d9822b", markersize=3, zorder=4)
        ax.set_title(column if len(columns) > 1 else "", fontsize=11)
        ax.grid(alpha=0.25)
    axes[0].set_yticks(range(len(summaries)), [s.label for s in summaries])
    axes[0].set_ylim(len(summaries) - 0.5, -0.5)
    figure.supxlabel(f"{metric_name} (%), mean and 95 % interval; orange dots are seeds", fontsize=10)
    return _svg(figure)


def draw_contrasts(contrasts: Mapping[str, Mapping[str, Test]], margin: float) -> bytes:
    """SVG: the contrasts of a comparison by name and column, as differences in points with their 95 % intervals. The
    grey band holds differences that count as equal; a marker is filled where the interval excludes zero."""
    columns = list(dict.fromkeys(column for tests in contrasts.values() for column in tests))
    figure = _figure(8.0, 1.1 + 0.28 * len(contrasts) * (1 + 0.35 * len(columns)))
    ax = figure.subplots()
    largest = 1.0
    for y, tests in enumerate(contrasts.values()):
        for column, test in tests.items():
            number, d = columns.index(column), test.difference
            half, at, colour = d.half_width or 0.0, y + 0.22 * (number - (len(columns) - 1) / 2), f"C{number % 10}"
            largest = max(largest, abs(d.mean) + half)
            face = colour if test.differs else "white"
            ax.errorbar(d.mean, at, xerr=half, fmt="o", color=colour, markerfacecolor=face, capsize=3, label=column)
            text = f"{d.mean:+.2f} ± {half:.2f}".replace("-", "−")
            ax.annotate(text, (1.01, at), xycoords=("axes fraction", "data"), va="center", fontsize=8, color=colour)
    ax.axvspan(-margin, margin, color="#dddddd", zorder=0)
    ax.axvline(0, color="#555555", linewidth=1)
    ends, ticks = 1.15 * largest, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]
    if largest > 3:  # linear up to one point and logarithmic from there, so that large effects do not hide small ones
        ax.set_xscale("symlog", linthresh=1.0)
    else:
        ticks = [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    ax.set_xlim(-ends, ends)
    ticks = [t for t in ticks if t <= ends]
    ax.set_xticks([0, *ticks, *(-t for t in ticks)], ["0", *(f"+{t:g}" for t in ticks), *(f"−{t:g}" for t in ticks)])
    ax.minorticks_off()
    ax.set_yticks(range(len(contrasts)), list(contrasts))
    ax.set_ylim(len(contrasts) - 0.4, -0.6)
    ax.set_xlabel(f"difference in points, with its 95 % interval; grey: equal within {margin:g}", fontsize=9)
    ax.grid(alpha=0.25, axis="x")
    if len(columns) > 1:
        handles, labels = ax.get_legend_handles_labels()
        keys = dict(zip(labels, handles, strict=True))  # one per column
        below = {"ncols": min(4, len(columns)), "frameon": False, "fontsize": 9}
        figure.legend(keys.values(), keys.keys(), loc="outside upper center", **below)
    return _svg(figure)


def draw_shares(groups: Mapping[str, Mapping[str, Estimate]], name: str) -> bytes:
    """SVG: shares with their intervals; one group of bars per setting, one colour per row."""
    first, *_ = groups.values()
    figure = _figure(2.2 + 1.5 * len(groups) + 0.1 * len(first), 3.2)
    ax = figure.subplots()
    width = 0.8 / len(first)
    for i, label in enumerate(first):
        shares = [group[label] for group in groups.values()]
        at = [g + (i - (len(first) - 1) / 2) * width for g in range(len(groups))]
        low, high = zip(*(s.bounds for s in shares), strict=True)
        error = [
            [100 * (s.mean - b) for s, b in zip(shares, low, strict=True)],
            [100 * (b - s.mean) for s, b in zip(shares, high, strict=True)],
        ]
        ax.bar(at, [100 * s.mean for s in shares], 0.9 * width, color=f"C{i % 10}", alpha=0.75, label=label)
        ax.errorbar(at, [100 * s.mean for s in shares], error, fmt="none", color="#333333", capsize=2, linewidth=1)
    ax.set_xticks(range(len(groups)), [g.replace(", ", "\n") for g in groups], fontsize=8)
    ax.set_ylim(0, 100)
    ax.set_ylabel(name)
    ax.grid(alpha=0.25, axis="y")
    ax.set_axisbelow(True)
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    return _svg(figure)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")  # no pyplot: no global state, no display
    FigureCanvasSVG(figure)
    return figure


def _svg(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
