"""The contrasts of this page, named before its runs: prints each in every column.

python contrasts.py relations/results.json
"""

import json
import sys
from pathlib import Path

from stringpe.metrics.statistics import contrast

TRAINED, FROZEN, LINEAR = "as trained", "W_q, W_k frozen", "linear attention"
MORE, EQUAL = "more", "equal"
SIGNED = "signed_circulant:signed"
SHARED_AXIAL = "cayley:frequencies=axial,share_basis=true"
MARGIN = 0.5
CONTRASTS = [  # rows, less rows, what theory expects of the columns
    ("cayley", "rope_mixed", {TRAINED: EQUAL, FROZEN: MORE, LINEAR: MORE}),
    (SIGNED, "circulant", {TRAINED: EQUAL, LINEAR: MORE}),
    (SIGNED, "rope_mixed", {TRAINED: EQUAL}),
    ("cayley", SHARED_AXIAL, {TRAINED: MORE, FROZEN: MORE, LINEAR: MORE}),
    ("cayley", "harope", {TRAINED: MORE}),
    ("simplex", "rope_mixed", {}),
    ("golden", "rope_mixed", {}),
]


def main(path):
    scores = json.loads(Path(path).read_text())["scores"]
    columns = {
        name: {row: {int(s): v for s, v in of.items()} for row, of in rows.items()} for name, rows in scores.items()
    }
    print("| rows | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for plus, minus, expected in CONTRASTS:
        cells = []
        for column, rows in columns.items():
            test = contrast(rows, [plus], [minus], MARGIN)
            p = f"p = {test.p_value:.3f}" if test.p_value >= 0.001 else "p < 0.001"
            said = f"{test.difference.mean:+.2f} ± {test.difference.half_width:.2f}, {p}"
            said += f", equal within {MARGIN}" if test.is_equal else ""
            cells.append(said + (f" (expected: {expected[column]})" if column in expected else ""))
        print(f"| {plus} − {minus} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
