"""Numbers that are the same on every device and in every batch: random draws, angles, roots and constant tables.

A scene must be the same whatever batch it is drawn in and wherever torch runs. So there is no generator state: number
n of scene i is a hash of (seed, i, n), computed in 64-bit integers that never overflow and are therefore exact on every
device. Downstream, the layout uses only operations that are correctly rounded (+ − × ÷, `root`, comparisons, table
look-ups), so that no decision can flip between a CPU and a GPU. Division by a Python number is safe for powers
of two only: a GPU multiplies by the rounded inverse.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

TURN = 1024
"""Angles in the layout are whole numbers of 1024ths of a turn: adding them is exact and their sines are a table."""

_BLOCK = 1024
_LOW32 = 0xFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """A bijection of 32-bit integers that avalanches; the multipliers are below 2^31, so int64 never overflows."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _LOW32
    x = (x ^ (x >> 15)) * 0x45D9F3B & _LOW32
    return x ^ (x >> 16)


class Dice:
    """One stream of uniform numbers per scene: `Dice(seed, indices)` draws (b, ...) tensors, scene by scene.

    `stream` numbers independent uses of the same (seed, index): the layout and the camera do not share numbers, so one
    layout can be looked at by several cameras.
    """

    def __init__(self, seed: int, indices: Tensor, stream: int = 0) -> None:
        self.device = indices.device
        seed_hash = _mix(torch.tensor([seed & _LOW32, (seed >> 32) & _LOW32, stream], device=self.device))
        low, high = indices & _LOW32, (indices >> 32) & _LOW32
        scene_hash = _mix(_mix(low ^ seed_hash[0]) ^ high ^ seed_hash[1])
        # Two keys, because with one 32-bit key about two thousand of four million scenes would have a duplicate.
        self._keys = (
            _mix(scene_hash ^ seed_hash[2]),
            _mix(_mix(low + 0x9E3779B9 & _LOW32) ^ scene_hash ^ _mix(seed_hash[2] + 1)),
        )
        self._block = self._draw(0)
        self._drawn, self._used = 1, 0

    def _draw(self, block: int) -> Tensor:
        counter = torch.arange(block * _BLOCK, (block + 1) * _BLOCK, device=self.device)
        bits = _mix(_mix(counter[None] ^ self._keys[0][:, None]) ^ self._keys[1][:, None])  # (b, _BLOCK)
        return (bits >> 8).to(torch.float32) * 2.0**-24  # 24 bits: exact in float32, and below 1

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(b, *shape) numbers in [low, high)."""
        need = math.prod(shape)
        while self._block.shape[1] - self._used < need:
            self._block = torch.cat([self._block[:, self._used :], self._draw(self._drawn)], 1)
            self._drawn, self._used = self._drawn + 1, 0
        values = self._block[:, self._used : self._used + need].reshape(-1, *shape)
        self._used += need
        return values * (high - low) + low

    def below(self, count: Tensor | int, *shape: int) -> Tensor:
        """(b, *shape) whole numbers 0 .. count − 1; `count` may be a tensor that broadcasts against the result."""
        return (self.uniform(*shape) * count).to(torch.int64)

    def chance(self, probability: Tensor | float, *shape: int) -> Tensor:
        """(b, *shape) booleans, true with the given probability."""
        return self.uniform(*shape) < probability


@functools.cache
def _circle(device: torch.device) -> Tensor:
    table = [(math.cos(2 * math.pi * k / TURN), math.sin(2 * math.pi * k / TURN)) for k in range(TURN)]
    return torch.tensor(table, device=device)


def cos_sin(angle: Tensor) -> Tensor:
    """(..., 2): cosine and sine of an angle given in 1024ths of a turn."""
    return _circle(angle.device)[angle % TURN]


def root(x: Tensor) -> Tensor:
    """√x in float32, rounded identically on every device. Vectorised float32 roots on CPUs are sometimes wrong in the
    last place; a float64 root, even if wrong in its last place, rounds to the correct float32."""
    return x.double().sqrt().float()


def turn_plane(vector: Tensor, angle: Tensor) -> Tensor:
    """The plane vector (..., 2) turned counter-clockwise by `angle` (...) in 1024ths of a turn."""
    c, s = cos_sin(angle).unbind(-1)
    x, y = vector.unbind(-1)
    return torch.stack([c * x - s * y, s * x + c * y], -1)


@functools.cache
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Nested tuples as a tensor, which all callers share: never write into it.

    The dtype is an argument and not inferred, because (1, 0) and (1.0, 0.0) are the same key in the cache.
    """
    return torch.tensor(values, device=device, dtype=dtype)
