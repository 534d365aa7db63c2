import math
import random

import pytest
from scipy import stats

from stringpe.metrics.statistics import mcnemar, paired, paired_shares, t_interval, wilson


def test_t_interval_is_scipys():
    values = [46.9, 48.1, 47.2]
    low, high = stats.t.interval(0.95, 2, loc=sum(values) / 3, scale=stats.sem(values))
    found = t_interval(values)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.half_width == pytest.approx((high - low) / 2)


def test_one_seed_has_a_mean_and_no_interval():
    found = t_interval([3.0])
    assert (found.mean, found.low, found.half_width, found.excludes_zero) == (3.0, None, None, False)


def test_pairing_cancels_what_seeds_share():
    baseline = {0: 40.0, 1: 50.0, 2: 60.0}
    better = {0: 41.0, 1: 51.1, 2: 60.9}
    assert paired(better, baseline).excludes_zero
    assert paired(better, baseline).mean == pytest.approx(1.0)
    apart = t_interval(list(better.values()))
    assert apart.low < 50 < apart.high  # unpaired, nothing could be told


def test_pairs_need_a_common_seed():
    with pytest.raises(ValueError, match=r"no seed in common: \[0\] and \[1\]"):
        paired({0: 1.0}, {1: 1.0})


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
    import random

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
    assert found.difference.excludes_zero
    assert found.p_value == pytest.approx(2 / 2**10)
    swapped = paired_shares(second, first).difference
    assert (swapped.low, swapped.high) == pytest.approx((-found.difference.high, -found.difference.low))
    assert paired_shares(first, first).p_value == 1
    assert not paired_shares(first, first).difference.excludes_zero
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
