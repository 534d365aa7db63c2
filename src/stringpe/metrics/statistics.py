"""Intervals: what a handful of seeds can say, and what cannot be told from chance."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` runs with its 95 % interval; without bounds where one run gives none."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval; endless where one run gives none."""
        return (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval: for a difference, whether it is told from chance."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_interval(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Mean and Student's t interval: mean ± t · s / √n with n − 1 degrees of freedom."""
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value, got none")
    mean = statistics.fmean(values)
    if n == 1:
        return Estimate(mean, None, None, 1)
    from scipy.stats import t  # type: ignore[import-untyped]

    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired(values: Mapping[int, float], baseline: Mapping[int, float], level: float = 0.95) -> Estimate:
    """Mean of value − baseline over the seeds that both have, with the t interval of those differences.

    Runs of one seed share data order and augmentation, so what they share cancels."""
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(values)} and {sorted(baseline)}: run both with the same seeds")
    return t_interval([values[s] - baseline[s] for s in seeds], level)


def wilson(successes: float, trials: float, level: float = 0.95) -> Estimate:
    """A proportion with Wilson's score interval: right near 0 and 1, where the normal one is not."""
    if trials <= 0 or not 0 <= successes <= trials:
        raise ValueError(f"needs 0 ≤ successes ≤ trials and trials > 0, got {successes} of {trials}")
    z = statistics.NormalDist().inv_cdf((1 + level) / 2)
    p, shrink = successes / trials, 1 + z * z / trials
    centre = (p + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return Estimate(p, max(0.0, centre - half), min(1.0, centre + half), int(trials))


@dataclass(frozen=True)
class PairedShares:
    """Success of two methods on the same trials: the difference of their shares with its interval, the trials that
    only one of them solved, and the p-value of McNemar's exact test."""

    difference: Estimate
    only_first: int
    only_second: int
    p_value: float


def paired_shares(first: Mapping[int, bool], second: Mapping[int, bool], level: float = 0.95) -> PairedShares:
    """How much more often the first succeeds than the second, on the trials (by seed) that both have.

    Newcombe's hybrid score interval for paired proportions (1998, method 10): Wilson's intervals of both shares,
    combined with their correlation. McNemar's test asks whether the trials that only one solved split like fair coins.
    """
    seeds = first.keys() & second.keys()
    if not seeds:
        raise ValueError("no trial in common: evaluate both from the same seeds")
    n = len(seeds)
    both = sum(first[s] and second[s] for s in seeds)
    one = sum(first[s] and not second[s] for s in seeds)
    other = sum(second[s] and not first[s] for s in seeds)
    neither = n - both - one - other
    a, b = wilson(both + one, n, level), wilson(both + other, n, level)
    phi = _correlation(both, one, other, neither)
    a_below, a_above = a.mean - a.bounds[0], a.bounds[1] - a.mean
    b_below, b_above = b.mean - b.bounds[0], b.bounds[1] - b.mean
    low = math.sqrt(a_below**2 - 2 * phi * a_below * b_above + b_above**2)
    high = math.sqrt(a_above**2 - 2 * phi * a_above * b_below + b_below**2)
    gap = a.mean - b.mean
    return PairedShares(Estimate(gap, gap - low, gap + high, n), one, other, mcnemar(one, other))


def mcnemar(one: int, other: int) -> float:
    """Two-sided exact p-value: how likely a split of one + other fair coins at least as uneven as this is."""
    n, few = one + other, min(one, other)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(few + 1)) / 2**n)


def _correlation(both: int, one: int, other: int, neither: int) -> float:
    """φ of a 2 × 2 table, with Newcombe's correction for continuity where it is positive; 0 where it has no meaning."""
    product = (both + one) * (other + neither) * (both + other) * (one + neither)
    if not product:
        return 0.0
    cross: float = both * neither - one * other
    if cross > 0:
        cross = max(cross - (both + one + other + neither) / 2, 0)
    return cross / math.sqrt(product)
