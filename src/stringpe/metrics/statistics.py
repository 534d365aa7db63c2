"""Intervals and tests for a handful of seeds or trials: what differs, what is equal within a margin, and what remains
open."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True)
class Estimate:
    """A mean over `count` runs with its 95 % interval; without bounds for a single run, which gives none."""

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
        """The interval; from −∞ to ∞ where a single run gives none."""
        return (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)


def t_interval(values: Sequence[float], level: float = 0.95) -> Estimate:
    """Mean and Student's t interval: mean ± t · s / √n with n − 1 degrees of freedom."""
    n = len(values)
    if n == 0:
        raise ValueError("an interval needs at least one value, got none")
    mean = statistics.fmean(values)
    if n == 1:
        return Estimate(mean, None, None, 1)
    half = _t_quantile((1 + level) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def paired_difference(values: Mapping[int, float], baseline: Mapping[int, float], level: float = 0.95) -> Estimate:
    """Mean of value − baseline over the seeds that both have, with the t interval of those differences.

    Runs of one seed share data order and augmentation, so what they share cancels."""
    seeds = sorted(values.keys() & baseline.keys())
    if not seeds:
        raise ValueError(f"no seed in common: {sorted(values)} and {sorted(baseline)}: run both with the same seeds")
    return t_interval([values[s] - baseline[s] for s in seeds], level)


def wilson(successes: float, trials: float, level: float = 0.95) -> Estimate:
    """A proportion with Wilson's score interval, which holds its level near 0 and 1, where the normal one fails."""
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


@dataclass(frozen=True)
class Residual:
    """The spread that remains in a table of rows × seeds once the means of rows and of seeds are subtracted.

    In the model y_ij = row_i + seed_j + e_ij, `deviation` estimates the standard deviation of e with `freedom`
    = (rows − 1)(seeds − 1) degrees of freedom. All differences within a table share it, which is worth more than a
    variance from three numbers for every pair of rows."""

    deviation: float
    freedom: int
    seeds: int

    def interval(self, mean: float, squares: float, level: float = 0.95) -> Estimate:
        """The interval of a contrast Σ w_i ȳ_i with Σ w_i² = squares: mean ± t · s · √(squares / seeds)."""
        half = self.error(squares) * _t_quantile((1 + level) / 2, self.freedom)
        return Estimate(mean, mean - half, mean + half, self.seeds)

    def error(self, squares: float) -> float:
        """The standard error of such a contrast."""
        return self.deviation * math.sqrt(squares / self.seeds)


def row_seed_residual(scores: Mapping[str, Mapping[int, float]]) -> Residual | None:
    """The residual of the analysis of variance by rows and seeds; None for a single row or a single seed.

    `scores[row][seed]`, every row with the same seeds."""
    rows = list(scores.values())
    seeds = sorted(rows[0]) if rows else []
    if any(sorted(row) != seeds for row in rows):
        raise ValueError(f"rows have different seeds, {[sorted(row) for row in rows]}: run all rows with the same ones")
    if len(rows) < 2 or len(seeds) < 2:
        return None
    row_means = [statistics.fmean(row.values()) for row in rows]
    seed_means = {s: statistics.fmean(row[s] for row in rows) for s in seeds}
    grand = statistics.fmean(row_means)
    squares = sum(
        (row[s] - m - seed_means[s] + grand) ** 2 for row, m in zip(rows, row_means, strict=True) for s in seeds
    )
    freedom = (len(rows) - 1) * (len(seeds) - 1)
    return Residual(math.sqrt(squares / freedom), freedom, len(seeds))


def spreads_alike(scores: Mapping[str, Mapping[int, float]], level: float = 0.05) -> bool:
    """Whether one residual may stand for all rows: Bartlett's test of equal spread between the rows' residuals does not
    reject at `level`. True below three seeds, where spreads say nothing."""
    rows = list(scores.values())
    if len(rows) < 2 or len(rows[0]) < 3:
        return True
    means = [statistics.fmean(row.values()) for row in rows]
    # Medians, so that a row with a large spread does not affect what is subtracted from the others.
    seeds = {s: statistics.median(row[s] - m for row, m in zip(rows, means, strict=True)) for s in rows[0]}
    left = [[row[s] - seeds[s] for s in seeds] for row in rows]
    flat = [statistics.pvariance(values) < 1e-18 for values in left]
    if any(flat):
        return all(flat)
    from scipy.stats import bartlett  # type: ignore[import-untyped]

    return float(bartlett(*left).pvalue) >= level


def residual_for(scores: Mapping[str, Mapping[int, float]], rows: Sequence[str]) -> Residual | None:
    """The residual to judge these rows by: that of the whole table, or of these rows alone where the rows of the table
    spread differently. For two rows alone this is the paired t test."""
    return row_seed_residual(scores if spreads_alike(scores) else {row: scores[row] for row in rows})


@dataclass(frozen=True)
class Test:
    """A contrast between rows: its estimate, the p-value that it is zero, and the p-value that it lies outside
    ± `margin` (two one-sided tests, TOST). p-values are None where there is no residual to judge by."""

    __test__ = False  # not a case for pytest

    difference: Estimate
    p_value: float | None
    p_equal: float | None
    margin: float

    @property
    def differs(self) -> bool:
        """Whether the difference is significant at 5 %; never with fewer than three seeds."""
        return self.p_value is not None and self.p_value < 0.05 and self.difference.count >= 3

    @property
    def is_equal(self) -> bool:
        """Whether the difference is shown to lie within ± margin at 5 %; never with fewer than three seeds."""
        return self.p_equal is not None and self.p_equal < 0.05 and self.difference.count >= 3


def contrast(
    scores: Mapping[str, Mapping[int, float]],
    plus: Sequence[str],
    minus: Sequence[str],
    margin: float,
) -> Test:
    """The mean of the rows `plus` less the mean of the rows `minus`, judged by `residual_for` these rows.

    Every row weighs the same on its side, so the seeds' own means cancel."""
    if not plus or not minus or set(plus) & set(minus):
        raise ValueError(f"a contrast needs different rows on both sides, got {list(plus)} and {list(minus)}")
    means = {row: statistics.fmean(scores[row].values()) for row in (*plus, *minus)}
    gap = statistics.fmean(means[row] for row in plus) - statistics.fmean(means[row] for row in minus)
    residual = residual_for(scores, [*plus, *minus])
    if residual is None:
        return Test(Estimate(gap, None, None, len(scores[plus[0]])), None, None, margin)
    squares = 1 / len(plus) + 1 / len(minus)
    error = residual.error(squares)
    p_value = 2 * _t_tail(abs(gap), error, residual.freedom)
    p_equal = max(_t_tail(margin - gap, error, residual.freedom), _t_tail(margin + gap, error, residual.freedom))
    return Test(residual.interval(gap, squares), p_value, p_equal, margin)


def holm(p_values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's adjusted p-values: of m sorted p-values, the i-th (from 0) times m − i, never below the one before it."""
    adjusted: dict[Key, float] = {}
    worst = 0.0
    for i, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        worst = max(worst, min(1.0, (len(p_values) - i) * p))
        adjusted[name] = worst
    return {name: adjusted[name] for name in p_values}


def cluster_interval(trials: Mapping[int, Sequence[bool]], level: float = 0.95) -> Estimate:
    """The success rate of a method with the interval over its trainings, trials[training] being successes.

    The unit is a training: trials of one training share its weights, and counting them as independent would make the
    interval too narrow. Every training weighs the same."""
    return t_interval(_rates(trials), level)


def cluster_difference(
    first: Mapping[int, Sequence[bool]], second: Mapping[int, Sequence[bool]], level: float = 0.95
) -> Estimate:
    """The difference of the success rates of two methods, over their trainings: paired where both have the same
    trainings (seeds), else Welch's interval for independent groups."""
    if first.keys() == second.keys():
        order = sorted(first)
        a, b = (_rates({seed: trials[seed] for seed in order}) for trials in (first, second))
        return paired_difference(dict(zip(order, a, strict=True)), dict(zip(order, b, strict=True)), level)
    a, b = _rates(first), _rates(second)
    gap, count = statistics.fmean(a) - statistics.fmean(b), min(len(a), len(b))
    if count < 2:
        return Estimate(gap, None, None, count)
    parts = [statistics.variance(rates) / len(rates) for rates in (a, b)]
    if not sum(parts):
        return Estimate(gap, gap, gap, count)
    freedom = sum(parts) ** 2 / sum(v * v / (len(r) - 1) for v, r in zip(parts, (a, b), strict=True))
    half = _t_quantile((1 + level) / 2, freedom) * math.sqrt(sum(parts))
    return Estimate(gap, gap - half, gap + half, count)


def _rates(trials: Mapping[int, Sequence[bool]]) -> list[float]:
    empty = [training for training, outcomes in trials.items() if not outcomes]
    if empty or not trials:
        raise ValueError(f"every training needs trials, got none for {empty or 'any training'}")
    return [sum(outcomes) / len(outcomes) for outcomes in trials.values()]


def _t_quantile(probability: float, freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf(probability, freedom))


def _t_tail(value: float, error: float, freedom: float) -> float:
    """P(T > value / error); without any spread 0, or 1 for a negative value, or ½ for zero."""
    if error == 0:
        return 0.5 if value == 0 else float(value < 0)
    from scipy.stats import t

    return float(t.sf(value / error, freedom))
