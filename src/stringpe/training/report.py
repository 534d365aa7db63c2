"""report.html: one file with everything in it, to mail or to open without a network."""

import base64
import html
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from ..io.files import write_text
from ..recipes.schema import Recipe
from ..tasks.base import Sample, Task
from .table import Summary, best_rows, cells, difference_rows, headings

_SAMPLES = 12
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; } th { font-weight: 600; border-bottom: 2px solid #444; }
th, td { padding: .3rem .6rem; text-align: right; } th:first-child, td:first-child { text-align: left; }
td { border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
img.figure { width: 100%; } p.note { color: #555; font-size: .9rem; margin: .4rem 0; }
div.samples { display: flex; flex-wrap: wrap; gap: .8rem; } figure { margin: 0; width: 9rem; }
figure img { width: 9rem; height: 9rem; image-rendering: pixelated; } figcaption { font-size: .8rem; color: #555; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: .8rem; }
"""


def write_report(
    out: Path,
    recipe: Recipe,
    summaries: Sequence[Summary],
    runs: Mapping[str, Sequence[Path]],
    task: Task,
    opening: Sequence[str],
    notes: Sequence[str],
    versions: Mapping[str, str],
    figure: Path | None = None,
    best: bool = False,
) -> Path:
    """Write curves.svg, scores.svg and report.html to `out`; returns the report's path.

    runs: metrics.jsonl by row. opening: paragraphs before the table; notes: those after it. figure: a PNG of what the
    runs do, to be shown too. best: show the maxima over seeds."""
    figures = _figures(out, summaries, runs, task)
    pictures = [
        f'<img class="figure" alt="{html.escape(name)}" src="{_uri("image/svg+xml", svg)}">'
        for name, svg in figures.items()
    ]
    samples = task.samples(_SAMPLES)
    body = [
        f"<h1>Position encodings on {html.escape(recipe.name)}</h1>",
        *(f"<p>{html.escape(paragraph)}</p>" for paragraph in opening),
        _table(headings(summaries, task.metric_name), [cells(s) for s in summaries]),
        *([_table(*_split(difference_rows(summaries)))] if len(summaries[0].cells) > 1 else []),
        *([_table(*_split(best_rows(summaries)))] if best else []),
        *(f'<p class="note">{html.escape(note)}</p>' for note in notes),
        "<h2>Curves</h2>" if pictures else "",
        *pictures,
        *_shown(figure),
        "<h2>What the model sees</h2>" if samples else "",
        f'<div class="samples">{"".join(map(_sample, samples))}</div>' if samples else "",
        f"<details><summary>Recipe</summary><pre>{html.escape(json.dumps(recipe.to_dict(), indent=1))}</pre></details>",
        f'<p class="note">{html.escape(", ".join(f"{k} {v}" for k, v in versions.items()))}</p>',
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(recipe.name)}</title><link rel="icon" href="data:,">'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n'
    path = out / "report.html"
    write_text(path, page + "\n".join(body) + "\n</body></html>\n")
    return path


def _figures(
    out: Path, summaries: Sequence[Summary], runs: Mapping[str, Sequence[Path]], task: Task
) -> dict[str, bytes]:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        warnings.warn(
            "matplotlib is not installed, so the report has no curves: repeat the command where it is, on the same "
            "folder; finished runs are only read",
            RuntimeWarning,
            2,
        )
        return {}
    from .figures import draw_curves, draw_scores

    drawn = {
        "scores": draw_scores(summaries, task.metric_name),
        "curves": draw_curves(runs, task.metric, task.metric_name),
    }
    for name, svg in drawn.items():
        (out / f"{name}.svg").write_bytes(svg)
    return drawn


def _shown(figure: Path | None) -> list[str]:
    if figure is None:
        return []
    picture = _uri("image/png", figure.read_bytes())
    return ["<h2>What the models say</h2>", f'<img class="figure" alt="predictions of every row" src="{picture}">']


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    names = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>\n" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead>\n<tbody>{lines}</tbody></table>"


def _split(rows: Sequence[Sequence[str]]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    return rows[0], rows[1:]


def _sample(sample: Sample) -> str:
    text = html.escape(sample.caption)
    picture = _uri("image/png", _png(sample.image))
    return f'<figure><img alt="{text}" src="{picture}"><figcaption>{text}</figcaption></figure>'


def _png(image: Tensor) -> bytes:
    from ..io.png import png

    return png(image)


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
