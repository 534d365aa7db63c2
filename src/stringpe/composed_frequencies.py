"""Frequencies made of other frequencies, for models that exist already: behind a gate, or with another axis."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from .constants import Constant
from .frequencies import Frequencies

GATE_START = 1e-7
"""Where gates start: close enough to zero that outputs agree to rounding, while at exactly zero no gradient would reach
the frequencies and the basis behind them (see `stringpe.attach`)."""


class Gated(Frequencies):
    """g Θ: other frequencies behind a learned gate, one number per head (or set) and axis.

    A gate that starts near zero puts an encoding into a trained model without changing what it computes. The spectrum
    keeps its shape meanwhile: one number per head brings all wavelengths in, where frequencies that started at zero
    would have to find theirs one by one. Gradient: of order one to the gate, of order g to whatever lies behind it.
    """

    def __init__(self, inner: Frequencies, *, start: float = GATE_START):
        super().__init__(inner.head_dim, inner.num_heads, inner.coord_dim, share_heads=inner.share_heads)
        self.inner, self.start = inner, start
        self.create_weight()

    def turning(self) -> list[bool]:
        return self.inner.turning()

    def new_axis(self) -> Frequencies:
        return self.inner.new_axis()

    def initial(self, sets: int) -> Tensor:
        return torch.full((sets, self.coord_dim, 1), self.start)

    def expand(self, weight: Tensor) -> Tensor:
        return weight * self.inner()

    def form_together(self, members: Sequence[Self]) -> Sequence[Tensor]:
        return [m.expand(m.weight.to(torch.promote_types(m.weight.dtype, torch.float32))) for m in members]


class Stacked(Frequencies):
    """The axes of one Θ, then those of another: (h, c, d/2) and (h, c', d/2) to (h, c + c', d/2). Planes that the first
    holds at zero stay there."""

    def __init__(self, first: Frequencies, second: Frequencies):
        super().__init__(first.head_dim, first.num_heads, first.coord_dim + second.coord_dim)
        self.first, self.second = first, second
        self._turns = Constant(self._form_mask)

    def _form_mask(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.tensor(self.turning(), dtype=dtype, device=device)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.first.weight

    def turning(self) -> list[bool]:
        return self.first.turning()

    def new_axis(self) -> Frequencies:
        return self.first.new_axis()

    def reset_parameters(self) -> None:
        """Nothing of its own to reset: the two parts reset themselves."""

    def initial(self, sets: int) -> Tensor:
        return torch.cat([self.first.initial(sets), self.second.initial(sets)], dim=1)

    def expand(self, weight: Tensor) -> Tensor:
        first, second = self.first(), self.second()
        return torch.cat([first, second * self._turns(second.dtype, second.device)], dim=1)

    def form_together(self, members: Sequence[Self]) -> Sequence[Tensor]:
        return [m.expand(m.weight) for m in members]


def with_depth(frequencies: Frequencies) -> Stacked:
    """Θ with another axis, of the same kind and with a spectrum of its own: what lifting from 2D to 3D adds. It does
    not start at zero, where frequencies hardly learn; the coordinate starts at zero instead."""
    return Stacked(frequencies, frequencies.new_axis())
