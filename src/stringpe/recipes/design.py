"""What a comparison asks (rows, seeds, columns, and the contrasts that are named before anything runs), and the runs
that answer it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .overrides import override
from .schema import Recipe

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


TUNING_SEED = 1000
"""What is added to the recipe's seed for the runs that choose a learning rate, whose scores are not reported."""


@dataclass(frozen=True)
class Tuning:
    """How each row's learning rate is chosen. rates: what to try, the same for every row. share: the length of these
    runs as a share of the recipe's."""

    rates: Sequence[float]
    share: float = 1.0


@dataclass(frozen=True)
class Question:
    """What a comparison asks, all defaults filled in. rows: their labels. baseline: the row that the others are
    compared with. best: whether to show the best seed, too."""

    recipe: Recipe
    design: Design
    rows: list[str]
    seeds: int
    baseline: str
    tuning: Tuning | None = None
    best: bool = False


# Rows: an encoding, with options or changes of the recipe after a colon.


def expand_rows(rows: Sequence[str]) -> list[str]:
    """Rows with every list in braces written out: "circulant:block_size={4,8}" is two rows. Several lists in one row
    stand for all their combinations."""
    expanded: list[str] = []
    for row in rows:
        braces = re.search(r"\{([^{}]*,[^{}]*)\}", row)  # {encoding}, without a comma, is not a list
        if braces is None:
            expanded.append(row)
            continue
        values = [value.strip() for value in braces[1].split(",")]
        if not all(values):
            raise ValueError(f"a list in a row is {{4,8,16}}, values with commas between them; got {row!r}")
        expanded += expand_rows([row[: braces.start()] + value + row[braces.end() :] for value in values])
    return list(dict.fromkeys(expanded))


def row_changes(row: str) -> list[str]:
    """The overrides that a row stands for: "circulant:block_size=8,model.depth=none" is three. What stands after a
    colon without = is a function of the user's, which belongs to the name: "my_module:factory:turns=3"."""
    name, _, options = row.partition(":")
    if options and "=" not in options.partition(":")[0]:
        factory, _, options = options.partition(":")
        name = f"{name}:{factory}"
    changes = [f"model.encoding={name}"]
    for option in filter(None, options.split(",")):
        changes.append(option if "." in option.partition("=")[0] else f"model.encoding_options.{option}")
    return changes


# Runs: every row with every seed and variant of the recipe.


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison: the label of its row, its (first) seed, the whole recipe, the folder that it goes to,
    and the variant of the recipe, "" for the recipe as it is. Some columns of the table need a variant, and so runs of
    their own."""

    label: str
    seed: int
    recipe: Recipe
    out: Path
    variant: str = ""

    @property
    def title(self) -> str:
        """The run in words."""
        last = self.seed + self.recipe.loop.seeds - 1
        seeds = f"seed {self.seed}" if last == self.seed else f"seeds {self.seed} to {last}"
        return f"{self.label}{', ' + self.variant if self.variant else ''} {seeds}"

    def metrics_by_seed(self, result: Mapping[str, Any]) -> dict[int, dict[str, float]]:
        """The metrics of every seed of the run, from its result."""
        metrics = result["metrics"]
        if self.recipe.loop.seeds == 1:
            return {self.seed: metrics}
        return {
            seed: {k.removeprefix(f"seed{seed}/"): v for k, v in metrics.items() if k.startswith(f"seed{seed}/")}
            for seed in range(self.seed, self.seed + self.recipe.loop.seeds)
        }


def plan_runs(
    recipe: Recipe,
    rows: Sequence[str],
    seeds: int,
    out: Path,
    changes_by_row: Mapping[str, Sequence[str]] | None = None,
    *,
    variants: Mapping[str, Sequence[str]] | None = None,
    stack_seeds: bool = False,
) -> list[PlannedRun]:
    """All runs of a comparison, seed by seed, so that whole seeds are finished if it is stopped early.

    variants: overrides of the recipe by the name of the variant; the recipe alone by default. stack_seeds: train all
    seeds of a row in one run."""
    if seeds < 1 or not rows:
        raise ValueError(f"a comparison needs rows and at least one seed, got {len(rows)} rows and {seeds} seeds")
    changes_by_row, first = changes_by_row or {}, recipe.seed
    run_seeds = [first] if stack_seeds else range(first, first + seeds)
    stacked = [f"loop.seeds={seeds}"] if stack_seeds else []
    folder = f"seeds{first}-{first + seeds - 1}" if stack_seeds and seeds > 1 else "seed{}"
    return [
        PlannedRun(
            label=row,
            seed=seed,
            recipe=override(
                recipe, [*row_changes(row), *changes_by_row.get(row, ()), *changes, *stacked, f"seed={seed}"]
            ),
            out=out / "runs" / folder_name(f"{row} {variant}".strip()) / folder.format(seed),
            variant=variant,
        )
        for seed in run_seeds
        for variant, changes in (variants or {"": ()}).items()
        for row in dict.fromkeys(rows)
    ]


def folder_name(row: str) -> str:
    """A row as the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", row)
