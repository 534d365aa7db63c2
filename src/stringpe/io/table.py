"""Tables in Markdown, aligned so that they also read well as plain text."""

from collections.abc import Sequence


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """Lines of a Markdown table. The first `left` columns are aligned left, the others right. A pipe in a cell is
    escaped."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if i < left else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])
