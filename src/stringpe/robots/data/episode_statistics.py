"""Statistics of episodes as LeRobot has them: extremes, moments and quantiles of each column, in its stored unit.

Numbers: one value per element. Pictures: one value per channel, (c, 1, 1); colours in 0 … 1, depth in millimetres.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .columns import Array

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_PICTURES = 20  # per episode from which statistics are computed
_SIDE = 150  # pixels of a picture along an axis from which statistics are computed, about


def pick_pictures(count: int) -> list[int]:
    """Which of an episode's pictures enter its statistics."""
    return list(range(0, count, -(-count // _PICTURES)))


def summarise(numbers: Mapping[str, Array], pictures: Mapping[str, Array]) -> dict[str, Any]:
    """Statistics of an episode: numbers (t, …); some of its pictures (k, h, w, 3) uint8 or depth (k, h, w) in steps."""
    statistics = {}
    for key, value in numbers.items():
        flat = value.astype(np.float64).reshape(len(value), -1)
        statistics[key] = _moments(flat, value.shape[1:] or (1,), 1.0, len(value))
    for key, value in pictures.items():
        step = max(max(value.shape[1:3]) // _SIDE, 1)
        channels = value.shape[3] if value.ndim == 4 else 1
        flat = value[:, ::step, ::step].reshape(-1, channels)
        statistics[key] = _moments(flat, (channels, 1, 1), 255.0 if channels == 3 else 1.0, len(value))
    return statistics


def _moments(x: Array, shape: tuple[int, ...], unit: float, count: int) -> dict[str, Any]:
    """Statistics over the rows of x (n, k), divided by `unit`, in a shape of k elements."""
    values = {"min": x.min(0), "max": x.max(0), "mean": x.mean(0, dtype=np.float64), "std": x.std(0, dtype=np.float64)}
    values |= dict(zip(QUANTILES, np.quantile(x, list(QUANTILES.values()), axis=0), strict=True))
    return {name: (v / unit).reshape(shape).tolist() for name, v in values.items()} | {"count": [count]}


def pool_statistics(episodes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Statistics of all episodes from those of each. Moments are exact; a quantile is the mean of the episodes'
    quantiles, weighted by their lengths, as in LeRobot."""
    statistics: dict[str, Any] = {}
    for key in episodes[0] if episodes else ():
        count = np.array([s[key]["count"][0] for s in episodes], np.float64)
        low, high, mean, std = (np.array([s[key][n] for s in episodes]) for n in ("min", "max", "mean", "std"))
        share = (count / count.sum()).reshape(-1, *[1] * (mean.ndim - 1))
        middle = (share * mean).sum(0)
        spread = np.sqrt((share * (std**2 + (mean - middle) ** 2)).sum(0))
        values = {"min": low.min(0), "max": high.max(0), "mean": middle, "std": spread}
        values |= {name: (share * np.array([s[key][name] for s in episodes])).sum(0) for name in QUANTILES}
        statistics[key] = {name: v.tolist() for name, v in values.items()} | {"count": [int(count.sum())]}
    return statistics
