import math

import pytest
from scipy import stats

from stringpe.training.statistics import paired, t_interval, wilson


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
