"""Frequencies through circulant coefficients: Θ of Circulant-STRING, whose basis is `stringpe.basis.Fourier`."""

import math
from collections.abc import Hashable
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from .constants import Constant
from .frequencies import Frequencies, Spectrum, planes_per_axis


class Circulant(Frequencies):
    """The spectrum of L_k = C_k − C_kᵀ, C_k circulant in blocks of size b (Circulant-STRING, equation 11).

    L sees only the antisymmetric half of the paper's coefficients, a_m = c_m − c_{b−m}, m = 1 … b/2 − 1. The
    eigenvalues of a block are ± i θ_k with

        θ_k = −2 Σ_m a_m sin(2π k m / b),    k = 1 … b/2 − 1,

    and two zeros, the constant and the alternating vector, which share the first plane of the block. What is learned is
    w = √b · a, (sets, c, d/b, b/2 − 1), so that θ = D w with D_km = −(2/√b) sin(2π k m / b) and D Dᵀ = I.

    For the optimiser: the encodings that can be reached are those of the paper's b coefficients per block, but the
    steps differ. The symmetric half c_m + c_{b−m} has no gradient, so storing it would only feed weight decay. Adam
    moves c_m and c_{b−m} in opposite directions, hence a by twice the rate, and D D = b I of unnormalised sines makes
    that a step of 2√b in θ: 8 times as far as RoPE-Mixed's at b = 16. Orthonormal coordinates remove the factor: a step
    of w moves θ as far as it moves w.

    Saved states from before hold a, under the name "weight"; loading multiplies them by √b.
    """

    stored = "coefficients"
    coefficients: Tensor

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int, *, block_size: int, **options: Unpack[Spectrum]):
        super().__init__(head_dim, num_heads, coord_dim, **options)
        self.block_size, self.blocks = block_size, head_dim // block_size
        self._sines = Constant(self._form_sines)
        self._turns = Constant(self._form_mask)
        self.create_weight()

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.coefficients

    def kind(self) -> tuple[Hashable, ...]:
        return *super().kind(), self.block_size

    def new_axis(self) -> Frequencies:
        options: Spectrum = {"base": self.base[-1], "share_heads": self.share_heads}
        return Circulant(self.head_dim, self.num_heads, 1, block_size=self.block_size, **options)

    def sines(self, like: Tensor) -> Tensor:
        """D (b/2 − 1, b/2 − 1), symmetric and orthogonal."""
        return self._sines(like.dtype, like.device)

    def _form_sines(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        m = torch.arange(1, self.block_size // 2, device=device)
        phase = (m[:, None] * m % self.block_size).to(dtype) * (2 * math.pi / self.block_size)
        return phase.sin() * (-2 / math.sqrt(self.block_size))

    def _form_mask(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        turns = torch.tensor(self.turning(), dtype=dtype, device=device)
        return turns.unflatten(0, (self.blocks, -1))[:, 1:]

    def groups(self) -> list[int]:
        """Of the planes that can turn, before they are dealt out over the blocks."""
        return planes_per_axis(self.planes - self.blocks, self.coord_dim)

    def turning(self) -> list[bool]:
        turning = super().turning()  # plane i of the spectrum is plane 1 + i // blocks of block i % blocks
        return [on for block in range(self.blocks) for on in (False, *turning[block :: self.blocks])]

    def initial(self, sets: int) -> Tensor:
        theta = self.mixed_spectrum(sets, self.groups())
        theta = theta.unflatten(2, (-1, self.blocks)).mT  # each block gets the whole range of the spectrum
        return _transform(theta, self.sines(theta))

    def expand(self, weight: Tensor) -> Tensor:
        theta = _transform(weight, self.sines(weight))
        if self.zero_fraction:
            theta = theta * self._turns(theta.dtype, theta.device)
        return F.pad(theta, (1, 0)).flatten(2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        old = state_dict.pop(f"{prefix}weight", None)
        if old is not None:
            state_dict[f"{prefix}{self.stored}"] = old * math.sqrt(self.block_size)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _transform(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix for small matrices, elementwise, so that neither autocast nor TF32 rounds a frequency."""
    return (x[..., :, None] * matrix).sum(-2)
