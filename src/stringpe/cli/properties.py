"""The table of properties, measured: invariance, exactness, number of parameters and cost of every encoding."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import testing
from ..catalogue import create, names
from ..checks import check_count, check_heads
from ..encoding import Encoding, PositionEncoding


@dataclass(frozen=True)
class Row:
    """One encoding: relative score error under the shift, distance to the matrix exponential (float64; None if the
    encoding does not have this form), learned parameters per layer, and the median milliseconds for q and k with their
    quartiles."""

    name: str
    shift_error: float
    dense_error: float | None
    parameters: int
    milliseconds: float
    quartiles: tuple[float, float]


def builders(head_dim: int, num_heads: int, coord_dim: int) -> dict[str, Callable[[], PositionEncoding]]:
    """Builders of the encodings that the table has a row for: encodings of STRING's form, then the baselines."""
    sizes: dict[str, Any] = {"head_dim": head_dim, "num_heads": num_heads, "coord_dim": coord_dim}
    rows = names(baselines=True)
    if coord_dim > 3:
        rows.remove("spherical")  # it has three axes to rotate about
    return {name: partial(create, name, **sizes) for name in rows}


@torch.no_grad()
def measure(
    *,
    head_dim: int = 64,
    num_heads: int = 12,
    coord_dim: int = 3,
    tokens: int = 196,
    shift: float = 1000.0,
    seed: int = 0,
) -> Iterator[Row]:
    """Measure the rows one after another. Noise is first added to the parameters (normal, 0.1 on S and 0.01 on the
    rest): many bases start at the identity, where a basis that has no effect would measure the same as one that
    works."""
    check_heads(head_dim, num_heads)
    for name, count in {"coord_dim": coord_dim, "tokens": tokens}.items():
        check_count(name, count)
    for name, build in builders(head_dim, num_heads, coord_dim).items():
        torch.manual_seed(seed)
        encoding = build()
        for key, parameter in encoding.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1 if key.startswith("basis") else 0.01)
        dense = None
        if isinstance(encoding, Encoding) and encoding.basis.orthogonal:
            dense = testing.dense_error(encoding.double())
        encoding = encoding.float()
        median, quartiles = _milliseconds(encoding, tokens)
        yield Row(
            name=name,
            shift_error=testing.shift_error(encoding, shift=shift, seed=seed),
            dense_error=dense,
            parameters=_count(encoding),
            milliseconds=median,
            quartiles=quartiles,
        )


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _milliseconds(encoding: PositionEncoding, tokens: int, repeats: int = 11) -> tuple[float, tuple[float, float]]:
    q, k, coords = testing.sample(encoding, tokens=tokens)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        encoding(q, k, coords)
        times.append(1e3 * (time.perf_counter() - start))
    low, median, high = statistics.quantiles(times[1:], n=4)  # the first call warms up
    return median, (low, high)
