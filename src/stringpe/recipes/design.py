"""The design of a comparison: rows, seeds, columns, and the contrasts that are named before anything runs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MORE, EQUAL = "more", "equal"
"""What theory expects of a contrast: a difference above zero, or none beyond the margin."""


@dataclass(frozen=True)
class Column:
    """One number per run. about: a sentence for the report. changes: overrides of the recipe, which need trainings of
    their own. metric: which metric of the run; the task's main one by default."""

    name: str
    about: str = ""
    changes: tuple[str, ...] = ()
    metric: str = ""


@dataclass(frozen=True)
class Contrast:
    """The mean of some rows less the mean of others. Rows that a comparison does not have are left out; a contrast with
    an empty side is not made. expected: by column, MORE or EQUAL, where theory says."""

    name: str
    plus: tuple[str, ...]
    minus: tuple[str, ...]
    expected: Mapping[str, str] = field(default_factory=dict)


ROTARY = Contrast("rotary − absolute", ("rope_mixed", "circulant", "cayley"), ("absolute",))
STRING = Contrast("STRING − RoPE-Mixed", ("circulant", "cayley"), ("rope_mixed",))


@dataclass(frozen=True)
class Design:
    """The default rows, seeds and columns of a comparison, and the contrasts that it tests. about: the first paragraph
    of the report. margin: differences smaller than this, in points, count as equal."""

    rows: tuple[str, ...] = (
        "none", "absolute", "rope", "rope:base=100", "rope:base=100,learnable=true",
        "rope_mixed", "circulant", "cayley",
    )  # fmt: skip
    seeds: int = 3
    columns: tuple[Column, ...] = (Column("as trained"),)
    contrasts: tuple[Contrast, ...] = (ROTARY, STRING)
    margin: float = 0.5
    about: str = ""

    def questions(self) -> dict[str, Any]:
        """What is fixed before the runs start, for JSON."""
        return {"contrasts": [asdict(c) for c in self.contrasts], "margin": self.margin}
