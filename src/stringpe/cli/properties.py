"""The table of properties: every encoding's invariance, exactness, parameters and cost, measured here and now."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from .. import testing
from ..baselines import LieRE
from ..encoding import Encoding, PositionEncoding, create, names
from ..outer_product import outer


@dataclass(frozen=True)
class Row:
    """One encoding: relative score error under the shift, distance to the matrix exponential (float64; None where the
    encoding has no such form), learned numbers a layer, and milliseconds for q and k with their quartiles."""

    name: str
    shift_error: float
    dense_error: float | None
    parameters: int
    milliseconds: float
    quartiles: tuple[float, float]


def builders(head_dim: int, num_heads: int, coord_dim: int) -> dict[str, Callable[[], PositionEncoding]]:
    """Everything that the table has a row for."""
    sizes: dict[str, Any] = {"head_dim": head_dim, "num_heads": num_heads, "coord_dim": coord_dim}
    rows: dict[str, Callable[[], PositionEncoding]] = {name: partial(create, name, **sizes) for name in names()}
    return rows | {"⊗-STRING": partial(outer, **sizes), "LieRE": partial(LieRE, **sizes)}


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
    """A row at a time. Encodings are moved off their start first (normal noise of 0.1 on S, 0.01 on the rest), so that
    a basis that does nothing cannot pass for one that works."""
    for name, build in builders(head_dim, num_heads, coord_dim).items():
        torch.manual_seed(seed)
        encoding = build()
        for key, parameter in encoding.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1 if key.startswith("basis") else 0.01)
        dense = testing.dense_error(encoding.double()) if isinstance(encoding, Encoding) else None
        encoding = encoding.float()
        middle, quartiles = _milliseconds(encoding, tokens)
        yield Row(
            name=name,
            shift_error=testing.shift_error(encoding, shift=shift, seed=seed),
            dense_error=dense,
            parameters=_count(encoding),
            milliseconds=middle,
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
    low, middle, high = statistics.quantiles(times[1:], n=4)  # the first one warms up
    return middle, (low, high)
