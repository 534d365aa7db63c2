"""⊗-STRING (extension 1 of the paper): position enters tokens by an outer product in place of a rotation.

    z ↦ vec(f(r) ⊗ z),   f(r) = (1/√m) [cos ω_k·r, sin ω_k·r]_k,   so that   q·k ↦ q·k · (1/m) Σ_k cos ω_k·(r_i − r_j)

It is translation invariant and separable, but not of the form P RoPE Pᵀ: it changes the size of a head from d to 2md.
"""

from typing import Unpack

import torch
from torch import Tensor

from .checks import check_count
from .encoding import PositionEncoding
from .frequencies import Mixed, Spectrum
from .rotate import angles


class Outer(PositionEncoding):
    """⊗-STRING with m learned frequency vectors ω per head: (b, h, n, d) becomes (b, h, n, 2 m d).

    Built by `stringpe.outer`; `enc.frequencies()` is ω (h, c, m).
    """

    def __init__(self, frequencies: Mixed, head_dim: int):
        super().__init__(head_dim, frequencies.num_heads, frequencies.coord_dim)
        self.frequencies = frequencies

    @property
    def encoded_dim(self) -> int:
        """The size of an encoded head, 2 m d."""
        return 2 * self.frequencies.planes * self.head_dim

    def features(self, coords: Tensor) -> Tensor:
        """f(r): coords (b, n, c) to (b, h, n, 2m), of norm one."""
        angle = angles(coords, self.frequencies())
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * self.frequencies.planes**-0.5

    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1) -> Tensor:
        """vec(f(r) ⊗ x) (equation 12), in x's dtype."""
        self.fit_coords(x, coords, groups)
        return self.multiply(x, coords, groups)

    def multiply(self, x: Tensor, coords: Tensor, groups: int = 1) -> Tensor:
        """vec(f(r) ⊗ x) for x (b, groups·h, n, e) of any width e, such as the features of linear attention: (b,
        groups·h, n, 2 m e)."""
        f = self.features(self.batch_coords(coords, x, x.shape[2]))
        f = f.repeat_interleave(groups, dim=1) if groups > 1 else f
        return (f[..., :, None] * x[..., None, :]).flatten(-2).to(x.dtype)

    def extra_repr(self) -> str:
        return f"features={self.frequencies.planes}, head_dim={self.head_dim} to {self.encoded_dim}"


def outer(
    *, head_dim: int, num_heads: int, coord_dim: int = 2, features: int = 4, **spectrum: Unpack[Spectrum]
) -> Outer:
    """⊗-STRING with `features` learned frequencies per head, which start as RoPE-Mixed's. `**spectrum`: see `Spectrum`.

    A head grows from d to 2 · features · d channels, and attention costs that many times as much. For softmax and for
    linear attention, whatever its features."""
    check_count("features", features)
    return Outer(Mixed(2 * features, num_heads, coord_dim, **spectrum), head_dim)
