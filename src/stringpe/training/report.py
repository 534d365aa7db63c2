"""report.html: one file with everything in it, to mail or to open without a network."""

import base64
import html
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..io.files import write_bytes, write_text
from ..io.pictures import encode_png
from ..metrics.statistics import Estimate
from ..recipes.schema import Recipe
from ..tasks.base import Sample, Task
from .sections import Section, as_html
from .story import describe_task, metric_rows
from .table import Summary

_SAMPLES = 12
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } li { margin: .2rem 0; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; } div.wide { overflow-x: auto; }
th { font-weight: 600; border-bottom: 2px solid #444; vertical-align: bottom; }
th, td { padding: .3rem .6rem; text-align: right; } th:first-child, td:first-child { text-align: left; }
td { border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text { text-align: left; white-space: normal; } details { margin: 2rem 0 1rem; }
img.figure { max-width: 100%; } p.note { color: #555; font-size: .9rem; margin: .4rem 0; }
div.samples { display: flex; flex-wrap: wrap; gap: .8rem; } figure { margin: 0; width: 9rem; }
figure img { width: 9rem; height: 9rem; image-rendering: pixelated; } figcaption { font-size: .8rem; color: #555; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: .8rem; } summary { cursor: pointer; }
"""


def write_report(
    out: Path,
    recipe: Recipe,
    sections: Sequence[Section],
    pictures: Sequence[Section],
    versions: Mapping[str, str],
    title: str = "",
) -> Path:
    """Write report.html to `out`: sections, then pictures, then the recipe, folded away; returns its path."""
    title = title or f"Position encodings on {recipe.name}"
    settings = html.escape(json.dumps(recipe.to_dict(), indent=1))
    body = [
        f"<h1>{html.escape(title)}</h1>",
        as_html([*sections, *pictures]),
        f"<details><summary>Recipe</summary><pre>{settings}</pre></details>",
        f'<p class="note">{html.escape(", ".join(f"{k} {v}" for k, v in versions.items()))}</p>',
    ]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><link rel="icon" href="data:,">'
    page = f'<!doctype html>\n<html lang="en"><head>{head}<style>{_STYLE}</style></head>\n<body>\n'
    path = out / "report.html"
    write_text(path, page + "\n".join(body) + "\n</body></html>\n")
    return path


def draw(out: Path, summaries: Sequence[Summary], runs: Mapping[str, Sequence[Path]], task: Task) -> list[Section]:
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


def show(figure: Path | None, task: Task) -> list[Section]:
    """What the models say, a PNG, if there is one, and what they see."""
    found = []
    if figure is not None:
        said = (
            "Above each column stand the row and its score on these frames. The truth is green, predictions are blue."
        )
        found.append(replace(show_picture("What the models say", "image/png", figure.read_bytes()), notes=(said,)))
    samples = "".join(map(_sample, task.samples(_SAMPLES)))
    if samples:
        found.append(Section("What the model sees", pictures=(f'<div class="samples">{samples}</div>',)))
    return found


def write_evaluation(
    out: Path,
    path: str | Path,
    task: Task,
    found: Mapping[str, Any],
    share: Estimate | None,
    versions: Mapping[str, str],
    *,
    figure: bool,
) -> Path:
    """Write report.html of the evaluation of one checkpoint to `out`; returns its path. share: of right cases, if the
    metric is one. figure: draw predictions, which reads the data where the run's own recipe says that it is."""
    recipe, score = task.recipe, 100 * found[task.metric]
    said = f"{task.metric_name}: {score:.2f} %"
    limits = ["How another training would score: this is one checkpoint. Compare seeds with stringpe compare."]
    if share is not None:
        low, high = share.bounds
        said += f", 95 % interval {100 * low:.2f} to {100 * high:.2f} % (Wilson's), from {found['count']:.0f} cases"
        limits.insert(
            0, "The interval allows for which cases the validation set happens to have, and for nothing else."
        )
    else:
        said += f", from {found['count']:.0f} cases; this metric is not a share of cases and has no simple interval"
    where = f"{recipe.data.source} {recipe.data.val}".strip()
    about = (
        f"The checkpoint {path} (encoding {recipe.model.encoding}, seed {recipe.seed}), on its validation set: {where}."
    )
    digest = "; ".join(f"{name} {value}" for name, value in found["digest"].items())
    sections = [
        Section("The task", (describe_task(recipe), about)),
        Section("Result", (f"{said}.",)),
        Section("What cannot be concluded", points=tuple(limits)),
        Section("All numbers", tables=(metric_rows(found),), notes=(f"Digests: {digest}.",)),
    ]
    drawn = task.figure({recipe.model.encoding: Path(path)}, out) if figure else None
    return write_report(out, recipe, sections, show(drawn, task), versions, f"Evaluation on {recipe.name}")


def show_picture(title: str, kind: str, content: bytes) -> Section:
    """A section with one picture, of the media type `kind`."""
    return Section(title, pictures=(_figure(title, kind, content),))


def _figure(name: str, kind: str, content: bytes) -> str:
    return f'<img class="figure" alt="{html.escape(name)}" src="{_uri(kind, content)}">'


def _sample(sample: Sample) -> str:
    text = html.escape(sample.caption)
    picture = _uri("image/png", encode_png(sample.image))
    return f'<figure><img alt="{text}" src="{picture}"><figcaption>{text}</figcaption></figure>'


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
