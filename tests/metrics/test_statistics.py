import math
import random

import pytest
from scipy import stats

from stringpe.metrics.statistics import (
    cluster_difference,
    cluster_interval,
    contrast,
    holm,
    mcnemar,
    paired_difference,
    paired_shares,
    row_seed_residual,
    spreads_alike,
    t_interval,
    wilson,
)


def test_t_interval_is_scipys():
    values = [46.9, 48.1, 47.2]
    low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    found = t_interval(values)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.half_width == pytest.approx((high - low) / 2)


def test_one_seed_has_a_mean_and_no_interval():
    found = t_interval([3.0])
    assert (found.mean, found.low, found.half_width) == (3.0, None, None)


def test_pairing_cancels_what_seeds_share():
    baseline = {0: 40.0, 1: 50.0, 2: 60.0}
    better = {0: 41.0, 1: 51.1, 2: 60.9}
    assert paired_difference(better, baseline).low > 0
    assert paired_difference(better, baseline).mean == pytest.approx(1.0)
    apart = t_interval(list(better.values()))
    assert apart.low < 50 < apart.high  # unpaired, nothing could be shown


def test_pairs_need_a_common_seed():
    with pytest.raises(ValueError, match=r"no seed in common: \[0\] and \[1\]"):
        paired_difference({0: 1.0}, {1: 1.0})


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (37, 100), (4999, 5000)])
def test_wilson_is_scipys(successes, trials):
    interval = stats.binomtest(successes, trials).proportion_ci(0.95, "wilson")
    found = wilson(successes, trials)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-12)


def test_wilson_refuses_nonsense():
    with pytest.raises(ValueError, match="got 3 of 0"):
        wilson(3, 0)
    with pytest.raises(ValueError):
        t_interval([])


def test_t_interval_covers_as_often_as_it_says():
    dice = random.Random(0)
    covered = 0
    for _ in range(1000):
        found = t_interval([dice.gauss(5, 2) for _ in range(3)])
        covered += found.low <= 5 <= found.high
    assert abs(covered / 1000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 1000)


def test_paired_shares_counts_what_only_one_solved():
    first = {s: s < 40 for s in range(50)}
    second = {s: s < 30 for s in range(50)}
    found = paired_shares(first, second)
    assert (found.only_first, found.only_second) == (10, 0)
    assert found.difference.mean == pytest.approx(0.2)
    assert found.difference.low > 0
    assert found.p_value == pytest.approx(2 / 2**10)
    swapped = paired_shares(second, first).difference
    assert (swapped.low, swapped.high) == pytest.approx((-found.difference.high, -found.difference.low))
    assert paired_shares(first, first).p_value == 1
    assert paired_shares(first, first).difference.low < 0 < paired_shares(first, first).difference.high
    with pytest.raises(ValueError, match="no trial in common"):
        paired_shares({0: True}, {1: True})


def test_paired_intervals_are_narrower_than_unpaired_ones():
    """Two policies that fail on the same hard states: pairing sees it."""
    hard = {s: s % 2 == 0 for s in range(100)}
    better = hard | dict.fromkeys(range(1, 20, 2), True)
    shuffled = {s: better[(s + 51) % 100] for s in range(100)}  # as many successes, elsewhere
    paired_width = paired_shares(better, hard).difference.half_width
    assert paired_width < 0.8 * paired_shares(shuffled, hard).difference.half_width


def test_the_paired_interval_covers():
    """In 400 draws of 50 correlated pairs, the 95 % interval holds the truth about as often as it says."""
    rng = random.Random(0)
    shares = {(True, True): 0.4, (True, False): 0.25, (False, True): 0.1, (False, False): 0.25}
    hits = 0
    for _ in range(400):
        pairs = rng.choices(list(shares), list(shares.values()), k=50)
        found = paired_shares(*({i: p[k] for i, p in enumerate(pairs)} for k in range(2))).difference
        hits += found.low <= 0.15 <= found.high
    assert 0.92 <= hits / 400 <= 0.985


def test_mcnemar_is_the_binomial_test():
    for one, other in ((7, 1), (3, 3), (0, 5), (0, 0)):
        wanted = stats.binomtest(one, one + other).pvalue if one + other else 1.0
        assert mcnemar(one, other) == pytest.approx(wanted)


# Worked by hand: rows 10, 12 and 14 in the mean, seeds −1, 0, +1, and residuals that sum to zero by rows and columns.
HAND = {"a": {0: 9.5, 1: 9.5, 2: 11.0}, "b": {0: 10.5, 1: 12.5, 2: 13.0}, "c": {0: 13.0, 1: 14.0, 2: 15.0}}


def test_the_residual_is_the_one_worked_by_hand():
    # residuals: a (0.5, -0.5, 0), b (-0.5, 0.5, 0), c (0, 0, 0): squares sum to 1, with 4 degrees of freedom
    found = row_seed_residual(HAND)
    assert (found.freedom, found.seeds) == (4, 3)
    assert found.deviation == pytest.approx(math.sqrt(1 / 4))


def test_the_residual_of_two_rows_is_the_paired_t_test():
    """With two rows, the analysis of variance is the paired t test, whose numbers scipy has."""
    rows = {"a": {0: 46.9, 1: 48.1, 2: 47.2, 3: 49.0}, "b": {0: 45.0, 1: 47.7, 2: 46.9, 3: 47.1}}
    found = contrast(rows, ["a"], ["b"], margin=0.5)
    values = [list(row.values()) for row in rows.values()]
    wanted = stats.ttest_rel(*values)
    assert found.p_value == pytest.approx(wanted.pvalue)
    interval = wanted.confidence_interval(0.95)
    assert found.difference.bounds == pytest.approx((interval.low, interval.high))
    gaps = [a - b for a, b in zip(*values, strict=True)]
    above = stats.ttest_1samp(gaps, -0.5, alternative="greater").pvalue
    below = stats.ttest_1samp(gaps, 0.5, alternative="less").pvalue
    assert found.p_equal == pytest.approx(max(above, below))


def test_a_contrast_weighs_the_rows_of_a_side_equally():
    assert spreads_alike(HAND | {"c": {0: 13.1, 1: 14.1, 2: 14.8}})
    alike = {"a": HAND["a"], "b": HAND["b"], "c": {0: 13.1, 1: 14.1, 2: 14.8}}
    residual = row_seed_residual(alike)
    found = contrast(alike, ["b", "c"], ["a"], margin=0.5)
    assert found.difference.mean == pytest.approx(3.0)
    half = stats.t.ppf(0.975, 4) * residual.deviation * math.sqrt((0.25 + 0.25 + 1) / 3)
    assert found.difference.half_width == pytest.approx(half)
    with pytest.raises(ValueError, match="different rows on both sides"):
        contrast(HAND, ["a"], ["a"], margin=0.5)


def test_rows_of_another_spread_do_not_blur_the_others():
    """A wild row beside two that agree: they are judged by their own pairs."""
    calm = {"a": {s: 78.0 + s for s in range(5)}, "b": {s: 78.1 + s + 0.02 * (s % 3) for s in range(5)}}
    wild = {"c": dict(enumerate([50.0, 58.0, 52.0, 61.0, 47.0]))}
    assert not spreads_alike(calm | wild)
    together = contrast(calm | wild, ["b"], ["a"], margin=0.5)
    assert together == contrast(calm, ["b"], ["a"], margin=0.5)
    assert together.is_equal


def test_equal_and_different_are_both_results_and_neither_needs_the_other():
    tight = {"a": {s: 50.0 + 0.01 * s for s in range(5)}, "b": {s: 50.1 + 0.01 * (s * s % 3) for s in range(5)}}
    found = contrast(tight, ["b"], ["a"], margin=0.5)
    assert found.differs
    assert found.is_equal
    loose = {"a": {0: 50.0, 1: 52.0, 2: 51.0}, "b": {0: 51.0, 1: 50.0, 2: 52.5}}
    found = contrast(loose, ["b"], ["a"], margin=0.5)
    assert not found.differs
    assert not found.is_equal


def test_two_seeds_show_nothing_and_one_has_no_interval():
    two = {"a": {0: 10.0, 1: 11.0}, "b": {0: 30.0, 1: 31.0}, "c": {0: 10.0, 1: 11.0}}
    found = contrast(two, ["b"], ["a"], margin=0.5)
    assert found.p_value < 0.05
    assert not found.differs
    assert not contrast(two, ["c"], ["a"], margin=0.5).is_equal
    one = {"a": {0: 10.0}, "b": {0: 30.0}}
    assert row_seed_residual(one) is None
    found = contrast(one, ["b"], ["a"], margin=0.5)
    assert (found.difference.mean, found.difference.low, found.p_value) == (20.0, None, None)


def test_rows_with_other_seeds_are_refused():
    with pytest.raises(ValueError, match="run all rows with the same ones"):
        row_seed_residual({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 2: 2.0}})


def test_one_residual_covers_as_often_as_it_says():
    """In 500 tables of 6 rows × 3 seeds with large seed effects, the interval of a difference holds the truth."""
    dice = random.Random(0)
    covered = 0
    for _ in range(500):
        effects = [dice.gauss(0, 5) for _ in range(3)]
        table = {f"r{i}": {s: i + effects[s] + dice.gauss(0, 1) for s in range(3)} for i in range(6)}
        found = contrast(table, ["r5"], ["r2"], margin=0.5).difference
        covered += found.low <= 3 <= found.high
    assert abs(covered / 500 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 500)


def test_holm_worked_by_hand():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.5, "b": 0.9}) == pytest.approx({"a": 1.0, "b": 1.0})
    assert holm({}) == {}


def test_trials_of_one_training_are_not_independent():
    """Trainings that succeed always or never: fifty trials each say no more than one."""
    trials = {0: [True] * 50, 1: [False] * 50, 2: [True] * 50}
    found = cluster_interval(trials)
    assert found.mean == pytest.approx(2 / 3)
    assert found.half_width == pytest.approx(t_interval([1.0, 0.0, 1.0]).half_width)
    assert found.half_width > 5 * wilson(100, 150).half_width
    with pytest.raises(ValueError, match="every training needs trials, got none for \\[1\\]"):
        cluster_interval({0: [True], 1: []})


def test_differences_over_trainings_are_scipys():
    rates = ([0.8, 0.6, 0.7], [0.5, 0.4, 0.6])
    first, second = ({i: [j < 10 * r for j in range(10)] for i, r in enumerate(side)} for side in rates)
    wanted = stats.ttest_rel(*rates).confidence_interval(0.95)
    assert cluster_difference(first, second).bounds == pytest.approx((wanted.low, wanted.high))
    other = {i + 7: trials for i, trials in second.items()}  # trainings of other seeds: no pairs
    wanted = stats.ttest_ind(*rates, equal_var=False).confidence_interval(0.95)
    assert cluster_difference(first, other).bounds == pytest.approx((wanted.low, wanted.high))
