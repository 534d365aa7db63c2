"""Attack the package and count what breaks: `make attack`, or `python attack/run.py --minutes 10 --seed 1`.

Every kind of attack draws its cases from the seed, so that a fault is found again by the same command.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import calls
import properties

from stringpe.io.table import markdown_table

ATTACKS = {"properties": properties.attack, "calls": calls.attack}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attacks", nargs="*", default=list(ATTACKS), help=f"of {', '.join(ATTACKS)}; all by default")
    parser.add_argument("--minutes", type=float, default=3.0, help="in all, shared equally")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=20, help="faults that are listed per attack")
    asked = parser.parse_args()
    unknown = [name for name in asked.attacks if name not in ATTACKS]
    if unknown:
        parser.error(f"there is no attack named {unknown[0]!r}: the names are {', '.join(ATTACKS)}")
    tallies = [ATTACKS[name](60 * asked.minutes / len(asked.attacks), asked.seed) for name in asked.attacks]
    for tally in tallies:
        for line in tally.faults[: asked.most]:
            print(line)
    print(markdown_table(("attack", "cases", "faults", "outcomes"), [tally.row() for tally in tallies]))
    return 1 if any(tally.faults for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
