"""Curves of a comparison: means over seeds, and one style per row."""

from stringpe.training.figures import line_styles, mean_curve, read_curve


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
