"""Reports: sections of paragraphs, tables and pictures, as Markdown for a terminal and as one HTML file to mail or to
open without a network."""

import base64
import html
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import recipes
from ..io.files import write_text
from ..io.pictures import encode_png
from ..io.table import markdown_table
from ..metrics.statistics import Estimate
from ..recipes.schema import Recipe
from ..tasks.base import Sample, Task

_WIDTH = 110
_LONGEST_NUMBER = 24  # "100.00 ± 10.00 *" and "1,000.0 (900.0–1,100.0)"

Rows = Sequence[Sequence[str]]


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
class Section:
    """A part of a report, in this order: paragraphs, tables (the first row of each is its head), points, notes.
    notes: paragraphs in small print. pictures: HTML, which Markdown leaves out."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Rows, ...] = ()
    points: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.paragraphs or self.tables or self.points or self.notes or self.pictures)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """Sections as Markdown, wrapped so that it reads well in a terminal; tables are as wide as they are."""
    parts = [f"# {title}"]
    for section in sections:
        body = [_wrap(text) for text in section.paragraphs]
        body += [markdown_table(rows[0], rows[1:]) for rows in section.tables]
        body += ["\n".join(_wrap(text, "- ", "  ") for text in section.points)] if section.points else []
        body += [_wrap(text) for text in section.notes]
        if body:
            parts += [f"## {section.title}", *body]
    return "\n\n".join(parts) + "\n"


def as_html(sections: Sequence[Section]) -> str:
    """Sections as HTML; names of encodings and numbers are escaped as any text."""
    return "\n".join(_html(section) for section in sections if not section.is_empty)


def _html(section: Section) -> str:
    points = "".join(f"<li>{html.escape(text)}</li>\n" for text in section.points)
    parts = [
        f"<h2>{html.escape(section.title)}</h2>",
        *(f"<p>{html.escape(text)}</p>" for text in section.paragraphs),
        *map(_table, section.tables),
        *([f"<ul>\n{points}</ul>"] if points else []),
        *section.pictures,
        *(f'<p class="note">{html.escape(text)}</p>' for text in section.notes),
    ]
    return "\n".join(parts)


def _table(rows: Rows) -> str:
    head, *body = rows
    names = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in body)
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead>\n<tbody>{lines}</tbody></table></div>'


def _cell(text: str) -> str:
    """A cell; sentences are set from the left, unlike numbers."""
    kind = ' class="text"' if len(text) > _LONGEST_NUMBER else ""
    return f"<td{kind}>{html.escape(text)}</td>"


def _wrap(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


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


def show(figure: Path | None, task: Task) -> list[Section]:
    """Sections with the figure of what the models predict, a PNG, if there is one, and with samples of the data."""
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


def describe_task(recipe: Recipe, about: str = "") -> str:
    """The task in words: `about`, or the first paragraph of what the recipe says of itself."""
    if about:
        return about
    if recipe.name in recipes.names():
        return " ".join(recipes.describe(recipe.name).partition("\n\n")[0].split())
    return f"The task {recipe.task}, on data from {recipe.data.source}."


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
