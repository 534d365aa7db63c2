"""What a comparison found, in words: what was shown, what was shown to be equal, and what stays open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..metrics.statistics import Test, contrast, holm
from ..recipes.design import EQUAL, MORE, Contrast, Design

Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Percent by column, row and seed."""

SHOWN, SAME, OPEN = "shown", "equal", "open"


@dataclass(frozen=True)
class Finding:
    """A contrast that was named before the runs, in one column. expected: MORE, EQUAL or "" where theory is silent."""

    name: str
    column: str
    expected: str
    test: Test

    @property
    def outcome(self) -> str:
        """SHOWN to differ, the SAME within the margin, or OPEN. Where theory expects equality, a difference that is
        significant but within the margin counts as the same."""
        if self.test.is_equal and (self.expected == EQUAL or not self.test.differs):
            return SAME
        return SHOWN if self.test.differs else OPEN

    @property
    def as_expected(self) -> bool | None:
        """Whether theory's expectation was met; None where there is none, or where the question stays open."""
        if not self.expected or self.outcome == OPEN:
            return None
        if self.expected == EQUAL:
            return self.outcome == SAME
        return self.outcome == SHOWN and self.test.difference.mean > 0

    def sentence(self) -> str:
        """The finding in words: "rotary is 13.43 ± 1.79 points above absolute (as trained), as theory expects"."""
        d = self.test.difference
        half = "" if d.half_width is None else f" ± {d.half_width:.2f}"
        plus, _, minus = self.name.partition(" − ")
        if self.outcome == SHOWN:
            side = "above" if d.mean > 0 else "below"
            said = f"{plus} is {abs(d.mean):.2f}{half} points {side} {minus} ({self.column}; {_p(self.test.p_value)})"
        elif self.outcome == SAME:
            said = (
                f"{plus} equals {minus} within {self.test.margin:g} points ({self.column}; the difference is "
                f"{d.mean:+.2f}{half}, {_p(self.test.p_equal)})"
            )
        else:
            said = f"Whether {plus} differs from {minus} ({self.column}): the difference is {d.mean:+.2f}{half} points"
        if self.as_expected is not None:
            said += ", as theory expects" if self.as_expected else f", where theory expects {_EXPECTED[self.expected]}"
        elif self.expected:
            said += f", and theory expects {_EXPECTED[self.expected]}"
        return said[0].upper() + said[1:]


_EXPECTED = {MORE: "a difference above zero", EQUAL: "none"}


def named_findings(scores: Scores, design: Design) -> list[Finding]:
    """The design's contrasts in every column, as far as their rows are there. The tests of these are not adjusted: they
    were named before the runs."""
    found = []
    for column, rows in scores.items():
        for asked in design.contrasts:
            plus, minus = sides(asked, list(rows))
            if plus and minus:
                test = contrast(rows, plus, minus, design.margin)
                found.append(Finding(asked.name, column, asked.expected.get(column, ""), test))
    return found


def sides(asked: Contrast, rows: Sequence[str]) -> tuple[list[str], list[str]]:
    """The rows on both sides of a contrast that a comparison has."""
    return [row for row in asked.plus if row in rows], [row for row in asked.minus if row in rows]


def adjusted_p_values(scores: Scores, baseline: str, margin: float) -> dict[tuple[str, str], float]:
    """p-values, by column and row, of all differences to the baseline, adjusted together by Holm; none below three
    seeds, where nothing is called significant."""
    p_values = {}
    for column, rows in scores.items():
        for row in rows:
            test = None if row == baseline else contrast(rows, [row], [baseline], margin)
            if test is not None and test.p_value is not None and test.difference.count >= 3:
                p_values[column, row] = test.p_value
    return holm(p_values)


def conclusions(findings: Sequence[Finding], seeds: int) -> list[str]:
    """What was shown to differ, and then what was shown to be equal, a sentence each; nothing below three seeds."""
    if seeds < 3:
        return []
    return [f"{f.sentence()}." for outcome in (SHOWN, SAME) for f in findings if f.outcome == outcome]


def open_questions(findings: Sequence[Finding]) -> list[str]:
    """What is neither shown to differ nor shown to be equal, a sentence each."""
    return [
        f"{f.sentence()}; it is neither shown to differ from zero nor to lie within ± {f.test.margin:g}."
        for f in findings
        if f.outcome == OPEN
    ]


def verdict(findings: Sequence[Finding], seeds: int) -> str:
    """One sentence on theory's expectations, "" where there are none."""
    asked = [f for f in findings if f.expected]
    if not asked:
        return ""
    met, against = (sum(f.as_expected is value for f in asked) for value in (True, False))
    few = " Three seeds are the least that can decide." if seeds < 3 else ""
    undecided = len(asked) - met - against
    return (
        f"Theory has {len(asked)} expectations of this comparison: {met} met, {against} contradicted, {undecided} "
        f"undecided.{few}"
    )


def _p(value: float | None) -> str:
    return "" if value is None else "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
