"""Drop-in rotary layers: the same calls and results as layers that other projects compile from CUDA, in plain PyTorch.

    from stringpe.compat import RoPE2D        # CroCo, DUSt3R, MASt3R, VGGT and their descendants
    rope = RoPE2D(freq=100.0)
    q, k = rope(q, positions), rope(k, positions)

A head is cut into one block per axis, block a is rotated by coordinate a, and within a block of 2 m channels

    (x_j, x_{j+m}) turns by F0 · position / freq^(j/m),   j = 0 … m − 1

Nothing is compiled or written in place, gradients are right for any strides, and positions may be fractions. On a GPU
they go through the fused rotation of `stringpe.rotate`.
"""

from functools import partial

import torch
from torch import Tensor, nn

from .checks import check_number, check_tensor
from .constants import Constant
from .rotate import rotate


class AxialBlocks(nn.Module):
    """RoPE in one block of channels per axis. Abstract: `RoPE2D` and `PointROPE` say how many axes there are."""

    axes: int

    def __init__(self, freq: float = 100.0, F0: float = 1.0):
        super().__init__()
        self.base, self.F0 = check_number("freq", freq), check_number("F0", F0)
        if self.base <= 0:
            raise ValueError(f"freq is a base and must be positive, got {freq}")
        self._constants: dict[tuple[int, int], Constant] = {}

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """tokens (b, h, n, d) at positions (b, n, axes), integers or floats; a new tensor of the same shape and dtype.
        d must be a multiple of 2 · axes."""
        self._check(tokens, positions)
        b, h, n, d = tokens.shape
        # One head per block: a view where the heads of a token lie side by side, as a projection leaves them.
        blocks = tokens.unflatten(-1, (self.axes, -1)).transpose(2, 3).reshape(b, h * self.axes, n, d // self.axes)
        narrow = positions.dtype in (torch.float16, torch.bfloat16)
        coords = positions if positions.is_floating_point() and not narrow else positions.float()
        rotated = rotate(blocks, coords, self._frequencies(h, tokens))
        return rotated.unflatten(1, (h, self.axes)).transpose(2, 3).reshape(b, h, n, d)

    def _frequencies(self, h: int, tokens: Tensor) -> Tensor:
        """(h · axes, axes, m): the frequencies of each block, on its own axis alone."""
        m = tokens.shape[-1] // (2 * self.axes)
        constant = self._constants.setdefault((h, m), Constant(partial(self._form_frequencies, h, m)))
        return constant(torch.promote_types(tokens.dtype, torch.float32), tokens.device)

    def _form_frequencies(self, h: int, m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        frequencies = self.F0 * self.base ** (-torch.arange(m, dtype=torch.float64, device=device) / m)
        axis = torch.eye(self.axes, dtype=torch.float64, device=device)
        return (axis[:, :, None] * frequencies).repeat(h, 1, 1).to(dtype)

    def _check(self, tokens: Tensor, positions: Tensor) -> None:
        check_tensor("tokens", tokens)
        check_tensor("positions", positions)
        if tokens.ndim != 4 or tokens.shape[-1] % (2 * self.axes) or not tokens.is_floating_point():
            raise ValueError(
                f"tokens must be floats (b, h, n, d) with d a multiple of {2 * self.axes}, got {tuple(tokens.shape)} "
                f"{tokens.dtype}"
            )
        if positions.shape != (tokens.shape[0], tokens.shape[2], self.axes):
            raise ValueError(
                f"positions must be ({tokens.shape[0]}, {tokens.shape[2]}, {self.axes}) for these tokens, "
                f"got {tuple(positions.shape)}"
            )
        if positions.is_complex() or positions.dtype == torch.bool:
            raise ValueError(f"positions must be numbers, got {positions.dtype}")

    def extra_repr(self) -> str:
        return f"freq={self.base:g}, F0={self.F0:g}"


class RoPE2D(AxialBlocks):
    """Rotary encoding over (y, x), as CroCo's RoPE2D and its compiled form cuRoPE2D define it."""

    axes = 2


class PointROPE(AxialBlocks):
    """Rotary encoding over (x, y, z), as LitePT's PointROPE defines it for point clouds."""

    axes = 3
