"""Damaged or unusable input that does not end a job: counted, a few examples kept, and reported once."""

import warnings
from collections.abc import Iterable, Iterator

_EXAMPLES = 5


def printable(text: str) -> str:
    """The text on one line, with an escape such as \\x1b for every character that a terminal would obey: names of files
    and of samples come from elsewhere."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Problems:
    """What was left out of a data set, and why.

    problems = Problems("pictures", "photos/")
    problems.add("cat.png: cannot be decoded")
    problems.warn(total=120)       # "1 of 120 pictures of photos/ cannot be used and are left out: cat.png: …"
    """

    def __init__(self, what: str, where: str = ""):
        self.what, self.where = what, where
        self._reasons: dict[str, None] = {}  # in order, each once: the same file may be met in every epoch

    @property
    def reasons(self) -> list[str]:
        """What was wrong, in the order in which it was met."""
        return list(self._reasons)

    def add(self, reason: str) -> None:
        """Count one more; a reason that is known already, name included, is not counted again."""
        self._reasons[printable(reason)] = None

    def extend(self, reasons: Iterable[str]) -> None:
        """Count several."""
        for reason in reasons:
            self.add(reason)

    def report(self, reasons: Iterable[str]) -> None:
        """Add reasons, and warn of those that are new."""
        new = Problems(self.what, self.where)
        for reason in map(printable, reasons):
            if reason not in self._reasons:
                new.add(reason)
                self.add(reason)
        new.warn(stacklevel=3)

    def __len__(self) -> int:
        return len(self._reasons)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reasons)

    def describe(self, total: int | None = None) -> str:
        """One line: how many (of `total`) were left out, with the first few reasons."""
        count = f"{len(self)}" if total is None else f"{len(self)} of {total}"
        where = f" of {self.where}" if self.where else ""
        more = f"; and {len(self) - _EXAMPLES} more" if len(self) > _EXAMPLES else ""
        return (
            f"{count} {self.what}{where} cannot be used and are left out: {'; '.join(self.reasons[:_EXAMPLES])}{more}"
        )

    def warn(self, total: int | None = None, stacklevel: int = 2) -> None:
        """A RuntimeWarning with `describe`, if there is anything to report."""
        if self._reasons:
            warnings.warn(self.describe(total), RuntimeWarning, stacklevel + 1)
