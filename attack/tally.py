"""Counting what an attack found."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

CLEAR = (ValueError, TypeError, OSError, ImportError, NotImplementedError)
"""Errors that a user can act on, if their text says how. Anything else that escapes is a fault of ours."""

ACCIDENT = re.compile(
    r"not iterable|unsupported operand|ambiguous|not supported between|has no len|not subscriptable|cannot unpack|"
    r"argument .* must be|unhashable|object is not|only integer|has no attribute|expected scalar|same dtype"
)
"""Words of Python and torch about what went wrong inside, which tell nobody what to pass instead."""


@dataclass
class Tally:
    """The outcome of one kind of attack: cases by outcome, and a line for each fault."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(self.outcomes.values())

    def count(self, outcome: str, cases: int = 1) -> None:
        """Count cases that went as they should."""
        self.outcomes[outcome] += cases

    def note(self, line: str) -> None:
        """Keep a line about a part of the attack, for the report."""
        self.notes.append(line)

    def judge_never(self, error: BaseException, line: str) -> None:
        """Count an error where none may end the job, however clear it is."""
        first = (str(error).splitlines() or [""])[0][:160]
        self.fault("ended the job", f"{line} → {type(error).__name__}: {first}")

    def fault(self, outcome: str, line: str) -> None:
        """Count one case that did not."""
        self.outcomes[outcome] += 1
        self.faults.append(f"{outcome}: {line}")

    def judge(self, error: BaseException, line: str) -> None:
        """Count an error: clear if it is of a kind users can act on and its text says something, else a fault."""
        text = str(error)
        devices = isinstance(error, RuntimeError) and "expected device" in text  # torch's own words for mixed devices
        kind = (isinstance(error, CLEAR) and not isinstance(error, UnicodeError)) or devices
        if kind and len(text) >= 20 and "\n" not in text.strip() and not ACCIDENT.search(text):
            self.count("refused in words")
        else:
            first = (text.splitlines() or [""])[0][:160]
            self.fault("obscure error", f"{line} → {type(error).__name__}: {first}")

    def row(self) -> tuple[str, str, str, str]:
        """A row of the table: name, cases, faults, outcomes."""
        listed = ", ".join(f"{n:,} {what}" for what, n in self.outcomes.most_common())
        return self.name, f"{self.cases:,}", f"{len(self.faults):,}", listed


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError in the block if it takes longer; for the main thread, and for what returns to Python at times."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer for {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
