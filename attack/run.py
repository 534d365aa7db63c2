"""Attack the package and count what breaks: `make attack`, or `python attack/run.py --share 0.1 --seed 1`.

Every kind of attack draws its cases from the seed, so that a fault is found again by the same command. Kills and
writers that meet depend on the moment as well: there the seed fixes what is attacked, and the clock decides where.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("attack", "tests", "tests/robots", "tests/training"))

import calls
import corrupt
import invocations
import kills
import pictures
import properties
import writers
from tally import Tally

import conftest  # noqa: F401  (tests' own remedies for libraries of this machine)
from stringpe.io.table import markdown_table

ATTACKS: dict[str, tuple[Callable[[int, int], Tally], int]] = {
    "properties": (properties.attack, 3_000_000),
    "calls": (calls.attack, 5_000),
    "pictures": (pictures.attack, 30_000),
    "files": (corrupt.attack, 3_000),
    "invocations": (invocations.attack, 3_000),
    "kills": (kills.attack, 300),
    "writers": (writers.attack, 20),
}
"""Each attack and how many cases it has by default: pictures per path, kills, rounds of writers, and so on."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known = ", ".join(ATTACKS)
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS), help=f"of {known}, or kills=20; all by default")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases that each attack has by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=20, help="faults that are listed per attack")
    asked = parser.parse_args()
    if asked.share <= 0:
        parser.error(f"--share must be above 0, got {asked.share:g}")
    rows, faults = [], 0
    for name, _, number in (word.partition("=") for word in asked.attacks):
        if name not in ATTACKS or not (number or "1").isdigit():
            parser.error(
                f"{name!r} is not a valid attack: choose from {known}; a number of cases goes behind it, as in kills=20"
            )
        attack, count = ATTACKS[name]
        began = time.monotonic()
        tally = attack(int(number) if number else max(1, round(asked.share * count)), asked.seed)
        for line in (*tally.notes, *tally.faults[: asked.most]):
            print(line, flush=True)
        rows.append((*tally.row(), f"{time.monotonic() - began:.0f}"))
        print(markdown_table(("attack", "cases", "faults", "outcomes", "seconds"), rows[-1:]), flush=True)
        faults += len(tally.faults)
    if len(rows) > 1:
        print(markdown_table(("attack", "cases", "faults", "outcomes", "seconds"), rows))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
