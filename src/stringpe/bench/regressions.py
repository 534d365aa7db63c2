"""What got worse: the ratios of a run beside those of an earlier one on the same kind of device.

Ratios, not times: multiples of the memory floor, of the model without an encoding, and of a plain training loop. All
sides of a ratio are measured in one run, so it says the same on a machine that is busier or clocked lower.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..io.files import read_record
from .results import BOTH

TOLERANCE = 0.05
"""By how much a ratio may grow before it counts as worse, relative to what it was."""


class Change(NamedTuple):
    """A ratio that both runs have."""

    what: str
    before: float
    now: float

    @property
    def growth(self) -> float:
        """How much larger it is now, relative to what it was."""
        return self.now / self.before - 1


class Check(NamedTuple):
    """What came of a comparison: changes, worst first, and which ratios only the earlier run has."""

    changes: list[Change]
    missing: list[str]

    def worse(self, tolerance: float = TOLERANCE) -> list[Change]:
        """The changes that are more than noise."""
        return [change for change in self.changes if change.growth > tolerance]


def read_earlier(path: Path) -> dict[str, Any]:
    """A bench.json to check against, once every ratio in it was found to be a positive number: a run takes minutes, and
    should not end in a file that cannot be compared with."""
    advice = "give the bench.json of another run"
    results: dict[str, Any] = read_record(path, {"runs": [{"device": str}]}, advice)
    try:
        ratios = read_ratios(results)
        wrong = [f"{what} is {ratio}" for what, ratio in ratios.items() if not (ratio > 0 and math.isfinite(ratio))]
    except (AttributeError, IndexError, KeyError, StopIteration, TypeError, ZeroDivisionError) as error:
        wrong = [f"its rows are not those of a run: {type(error).__name__} {error}"]
    if not results["runs"]:
        wrong = ["it holds no run"]
    if wrong:
        raise ValueError(f"{path} is damaged ({wrong[0]}): {advice}")
    return results


def compare_runs(results: Mapping[str, Any], earlier: Mapping[str, Any]) -> Check:
    """The ratios of two bench.json files beside each other. They must be of the same kind of device, and share some."""
    devices = [run["runs"][-1]["device"] for run in (results, earlier)]
    if devices[0] != devices[1]:
        raise ValueError(
            f"this run was made on {devices[0]} and the one to check against on {devices[1]}: ratios differ between "
            f"devices, so check against a run on the same one"
        )
    now, before = read_ratios(results), read_ratios(earlier)
    changes = [Change(what, before[what], now[what]) for what in now if what in before]
    if not changes:
        raise ValueError("the two runs have no ratio in common: measure the same parts and ways")
    parts = {what.split(":")[0] for what in now}
    missing = [what for what in before if what not in now and what.split(":")[0] in parts]
    return Check(sorted(changes, key=lambda change: -change.growth), missing)


def read_ratios(results: Mapping[str, Any]) -> dict[str, float]:
    """Every ratio of our own ways in a run, by what it is."""
    found: dict[str, float] = {}
    rows = [("op", row) for row in results.get("op", [])]
    rows += [(f"growth, {item['axis']} {item['value']}", item["row"]) for item in results.get("growth", [])]
    for part, row in rows:
        if row["way"].startswith("ours"):
            what = f"{part}: {row['way']} {row['shape']}"
            found[f"{what}, forward × floor"] = row["forward"]["median"] / row["floor"]
            if row["both"]:
                found[f"{what}, both × floor"] = row["both"]["median"] / (BOTH * row["floor"])
    for part in ("block", "vit"):
        for row in results.get(part, []):
            first = next(r for r in results[part] if r["mode"] == row["mode"])
            if row is not first:
                for kind in ("train", "inference"):
                    what = f"{part}: {row['way']}, {row['mode']}, {kind} × {first['way']}"
                    found[what] = _read_ratio(row[kind], first[kind])
    for row in results.get("train", []):
        found[f"train: {row['recipe']}, {row['encoding']}, loop × plain loop"] = row["loop"]["ratio"][1]
    for row in results.get("pairs", []):
        found[f"pairs: {row['what']} × {row['base']}"] = row["time"]["ratio"][1]
    return found


def _read_ratio(timing: Mapping[str, Any], first: Mapping[str, Any]) -> float:
    """The ratio timed in turns where there is one, else that of the medians."""
    ratio: float = timing["ratio"][1] if timing["ratio"] else timing["median"] / first["median"]
    return ratio


def describe(check: Check, tolerance: float = TOLERANCE) -> str:
    """The outcome in words: what got worse by more than the tolerance, and what was not measured."""
    worse = check.worse(tolerance)
    lines = [f"{len(check.changes)} ratios compared, {len(worse)} worse by more than {100 * tolerance:.0f} %"]
    lines += [f"  {c.what}: {c.before:.3f} → {c.now:.3f} ({100 * c.growth:+.0f} %)" for c in worse]
    if check.missing:
        lines.append(f"not measured this time: {len(check.missing)}, such as {check.missing[0]}")
    return "\n".join(lines)
