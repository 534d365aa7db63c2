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
