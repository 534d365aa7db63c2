"""Reports: sections of paragraphs, tables and pictures, as Markdown for a terminal and as one HTML file that needs no
network, to be mailed or kept."""

import base64
import html
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import recipes
from ..io.files import write_text
from ..io.pictures import encode_png
from ..io.table import markdown_table
from ..recipes.schema import Recipe
from ..tasks.base import Sample, Task

Rows = Sequence[Sequence[str]]
"""A table: its head, then its rows."""


@dataclass(frozen=True)
class Section:
    """A part of a report, in this order: paragraphs, tables, points, pictures (HTML, which Markdown leaves out) and
    notes, which are paragraphs in small print."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Rows, ...] = ()
    points: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.paragraphs or self.tables or self.points or self.pictures or self.notes)


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """Sections as Markdown, with lines short enough for a terminal; tables are as wide as they are."""
    parts = [f"# {title}"]
    for section in sections:
        body = [_wrap(text) for text in section.paragraphs]
        body += [markdown_table(rows[0], rows[1:]) for rows in section.tables]
        body += ["\n".join(_wrap(text, "- ", "  ") for text in section.points)] if section.points else []
        body += [_wrap(text) for text in section.notes]
        if body:
            parts += [f"## {section.title}", *body]
    return "\n\n".join(parts) + "\n"


def write_report(
    out: Path,
    recipe: Recipe,
    sections: Sequence[Section],
    pictures: Sequence[Section],
    versions: Mapping[str, str],
    title: str,
) -> Path:
    """Write report.html to `out`: the sections, the pictures, and the recipe, folded away. Returns its path."""
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


def as_html(sections: Sequence[Section]) -> str:
    """Sections as HTML; all text is escaped, names of encodings included."""
    return "\n".join(_section(section) for section in sections if not section.is_empty)


def describe_task(recipe: Recipe, about: str = "") -> str:
    """The task in words: `about`, or else the first paragraph of what the recipe says of itself."""
    if about:
        return about
    if recipe.name in recipes.names():
        return " ".join(recipes.describe(recipe.name).partition("\n\n")[0].split())
    return f"The task {recipe.task}, on data from {recipe.data.source}."


def show_samples(figure: Path | None, task: Task) -> list[Section]:
    """Sections with samples of the data and, if there is one, with the figure (PNG) of what models predict."""
    sections = []
    if figure is not None:
        legend = "Beside an encoding is its score on these frames. True boxes are green, predicted ones blue."
        sections.append(show_picture("Predictions", "image/png", figure.read_bytes(), legend))
    samples = "".join(map(_sample, task.samples(_SAMPLES)))
    if samples:
        sections.append(Section("Samples of the data", pictures=(f'<div class="samples">{samples}</div>',)))
    return sections


def show_picture(title: str, kind: str, content: bytes, *notes: str) -> Section:
    """A section with one picture, of the media type `kind`."""
    picture = f'<img class="figure" alt="{html.escape(title)}" src="{_uri(kind, content)}">'
    return Section(title, pictures=(picture,), notes=notes)


def _section(section: Section) -> str:
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
    """A table; columns of sentences are aligned left, columns of numbers right."""
    head, *body = rows
    widths = [max((len(row[i]) for row in body), default=0) for i in range(len(head))]
    kinds = [' class="text"' if width > _LONGEST_NUMBER else "" for width in widths]
    names = "".join(f"<th{kind}>{html.escape(h)}</th>" for kind, h in zip(kinds, head, strict=True))
    lines = "".join(
        f"<tr>{''.join(f'<td{kind}>{html.escape(text)}</td>' for kind, text in zip(kinds, row, strict=True))}</tr>\n"
        for row in body
    )
    return f'<div class="wide"><table><thead><tr>{names}</tr></thead>\n<tbody>{lines}</tbody></table></div>'


def _sample(sample: Sample) -> str:
    text = html.escape(sample.caption)
    picture = _uri("image/png", encode_png(sample.image))
    return f'<figure><img alt="{text}" src="{picture}"><figcaption>{text}</figcaption></figure>'


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _wrap(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


_WIDTH = 110  # characters per line of Markdown
_LONGEST_NUMBER = 24  # characters: "100.00 ± 10.00 *" and "1,000.0 (900.0–1,100.0)"
_SAMPLES = 12
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; } li { margin: .2rem 0; }
table { border-collapse: collapse; width: 100%; margin: .8rem 0; } div.wide { overflow-x: auto; }
th { font-weight: 600; border-bottom: 2px solid #444; vertical-align: bottom; }
th, td { padding: .3rem .6rem; text-align: right; } th:first-child, td:first-child { text-align: left; }
td { border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; white-space: nowrap; }
th.text, td.text { text-align: left; } td.text:not(:first-child) { white-space: normal; }
details { margin: 2rem 0 1rem; }
img.figure { max-width: 100%; } p.note { color: #555; font-size: .9rem; margin: .4rem 0; }
div.samples { display: flex; flex-wrap: wrap; gap: .8rem; } figure { margin: 0; width: 9rem; }
figure img { width: 9rem; height: 9rem; image-rendering: pixelated; } figcaption { font-size: .8rem; color: #555; }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: .8rem; } summary { cursor: pointer; }
"""
