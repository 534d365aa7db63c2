"""The parts of a report: a title with paragraphs, tables and points, as Markdown for a terminal and as HTML."""

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..io.table import markdown_table

_WIDTH = 110
_LONGEST_NUMBER = 24  # "100.00 ± 10.00 *" and "1,000.0 (900.0–1,100.0)"

Rows = Sequence[Sequence[str]]


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
