"""Damaged or unusable input that does not end a job: counted, a few examples kept, and reported once."""

import warnings
from collections.abc import Iterator

_EXAMPLES = 5


class Problems:
    """What was left out of a data set, and why.

    problems = Problems("pictures", "photos/")
    problems.add("cat.png: cannot be decoded")
    problems.warn(total=120)       # "1 of 120 pictures of photos/ cannot be used and are left out: cat.png: …"
    """

    def __init__(self, what: str, where: str = ""):
        self.what, self.where = what, where
        self.reasons: list[str] = []

    def add(self, reason: str) -> None:
        """Count one more."""
        self.reasons.append(reason)

    def __len__(self) -> int:
        return len(self.reasons)

    def __iter__(self) -> Iterator[str]:
        return iter(self.reasons)

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
        if self.reasons:
            warnings.warn(self.describe(total), RuntimeWarning, stacklevel + 1)
