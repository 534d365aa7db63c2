"""Curves of a comparison: means over seeds, and one style per row."""

import re

import pytest

from stringpe.metrics.statistics import contrast
from stringpe.training.figures import draw_contrasts, line_styles, mean_curve, read_curve


def test_curves_are_means_over_common_steps(tmp_path):
    (tmp_path / "m").write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "val/top1": 0.5}\n{"step": 3, "loss": null}\n')
    assert read_curve(tmp_path / "m", "loss") == [(1, 2.0)]
    steps, mean, low, high = mean_curve([[(1, 2.0), (2, 3.0)], [(1, 4.0)]])
    assert (steps, mean, low, high) == ([1], [3.0], [2.0], [4.0])


def test_rows_of_one_encoding_share_a_colour_and_equal_changes_their_dashes():
    styles = line_styles(["rope", "cayley", "rope:model.depth=none", "cayley:model.depth=none"])
    assert len(set(styles.values())) == 4
    assert styles["rope"][0] == styles["rope:model.depth=none"][0] != styles["cayley"][0]
    assert styles["rope:model.depth=none"][1] == styles["cayley:model.depth=none"][1] != styles["rope"][1]


def test_contrasts_are_drawn_with_their_numbers():
    pytest.importorskip("matplotlib")
    rows = {"a": {0: 50.0, 1: 50.2, 2: 50.1}, "b": {0: 70.0, 1: 70.3, 2: 70.2}, "c": {0: 50.1, 1: 50.1, 2: 50.2}}
    tests = {"b − a": {"near": contrast(rows, ["b"], ["a"], 0.5), "far": contrast(rows, ["b"], ["c"], 0.5)}}
    tests["c − a"] = {"near": contrast(rows, ["c"], ["a"], 0.5), "far": contrast(rows, ["a"], ["c"], 0.5)}
    drawing = draw_contrasts(tests, 0.5).decode()
    texts = re.findall(r"<!-- (.*?) -->", drawing)
    shown = [t for t in texts if "±" in t]
    assert len(shown) == 4
    assert [t.split(" ±")[0] for t in shown] == ["+20.07", "+20.03", "+0.03", "−0.03"]
    assert {"b − a", "c − a", "near", "far", "0", "+20", "−20"} <= set(texts)
    assert "difference in points, with its 95 % interval; grey: equal within 0.5" in texts
    alone = draw_contrasts({"b − a": {"near": tests["b − a"]["near"]}}, 0.5).decode()
    assert "near" not in re.findall(r"<!-- (.*?) -->", alone)  # one column needs no legend
