"""Putting rectangles on a rectangle so that none overlap: the one rule behind furniture and clutter alike."""

from __future__ import annotations

import torch
from torch import Tensor

from .dice import cos_sin


class Plot:
    """n independent rectangles [−half, half] that fill up one item at a time, all n in step, up to `room_for` items.

    Each item comes with a few candidate poses and takes the first that stays inside and keeps `gap` metres from
    everything placed before. Two turned rectangles are apart exactly if one of their four edge directions separates
    them.
    """

    def __init__(self, half: Tensor, gap: float, room_for: int) -> None:
        self.half, self.gap = half, gap  # (n, 2)
        n = len(half)
        # What found no place stays a point far away, where it blocks nobody.
        self._at = half.new_full((n, room_for, 2), 1e4)
        self._reach = half.new_zeros(n, room_for, 2)
        self._turn = half.new_zeros(n, room_for, 2)
        self._count = 0
        self._rows = torch.arange(n, device=half.device)

    def _apart(self, at: Tensor, turn: Tensor, half: Tensor) -> Tensor:
        """(n, c): candidate c overlaps nothing placed so far. `at`, `turn` (n, c, 2); `half` (n, 2)."""
        k = self._count
        x, y = (at[:, :, None] - self._at[:, None, :k]).unbind(-1)  # (n, c, k)
        c0, s0 = turn[:, :, None].unbind(-1)
        c1, s1 = self._turn[:, None, :k].unbind(-1)
        cos, sin = (c0 * c1 + s0 * s1).abs(), (s0 * c1 - c0 * s1).abs()
        u0, v0 = (half + self.gap / 2)[:, None, None].unbind(-1)
        u1, v1 = (self._reach + self.gap / 2)[:, None, :k].unbind(-1)
        clear = (x * c0 + y * s0).abs() > u0 + u1 * cos + v1 * sin
        clear = clear | ((y * c0 - x * s0).abs() > v0 + u1 * sin + v1 * cos)
        clear = clear | ((x * c1 + y * s1).abs() > u1 + u0 * cos + v0 * sin)
        clear = clear | ((y * c1 - x * s1).abs() > v1 + u0 * sin + v0 * cos)
        return clear.all(-1)

    def place(self, at: Tensor, yaw: Tensor, half: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Try candidates `at` (n, c, 2), `yaw` (n, c) for an item of half size (n, 2) where it is `wanted` (n,).

        Returns its centre (n, 2), its yaw (n,) and whether it found a place (n,).
        """
        turn = cos_sin(yaw)
        cos, sin = turn.abs().unbind(-1)
        u, v = half[:, None].unbind(-1)
        reach = torch.stack([cos * u + sin * v, sin * u + cos * v], -1)  # (n, c, 2)
        fits = (at.abs() + reach <= self.half[:, None]).all(-1) & wanted[:, None]
        if self._count:
            fits = fits & self._apart(at, turn, half)
        weights = torch.arange(fits.shape[1], 0, -1, device=at.device)
        choice = (fits * weights).argmax(1)  # the first that fits has the largest weight
        found, centre = fits[self._rows, choice], at[self._rows, choice]
        self._at[:, self._count] = torch.where(found[:, None], centre, 1e4)
        self._reach[:, self._count] = half * found[:, None]
        self._turn[:, self._count] = turn[self._rows, choice]
        self._count += 1
        return centre, yaw[self._rows, choice], found
