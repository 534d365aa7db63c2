"""What STRING is compared with and is not: LieRE, whose generators do not commute, and absolute embeddings."""

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor, nn

from .encoding import PositionEncoding, check_coords
from .frequencies import geometric, planes_per_axis
from .rotate import full_precision


class LieRE(PositionEncoding):
    """R(r) = exp(Σ_k r_k A_k) with dense learned skew A_k that need not commute (Ostmeier et al.).

    In one dimension this is STRING. In more, R(a)ᵀR(b) ≠ R(b − a): scores depend on absolute position, and every token
    needs its own d × d matrix, O(b n h d²) memory. A_k are stored below the diagonal, (h, c, d(d−1)/2), and start as
    Gaussian matrices whose largest frequencies are about 1 radian per unit, as the other encodings' are.
    """

    def __init__(self, *, head_dim: int, num_heads: int, coord_dim: int = 2):
        if head_dim < 2 or num_heads < 1 or coord_dim < 1:
            raise ValueError(f"cannot build LieRE with head_dim={head_dim}, {num_heads=}, {coord_dim=}")
        super().__init__(head_dim, num_heads, coord_dim)
        self.weight = nn.Parameter(torch.empty(num_heads, coord_dim, head_dim * (head_dim - 1) // 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.5 * self.head_dim**-0.5)  # spectral radius of a skew Gaussian: 2 σ √d

    def generators(self) -> Tensor:
        """A (h, c, d, d)."""
        d = self.head_dim
        row, column = torch.tril_indices(d, d, -1, device=self.weight.device)
        lower = self.weight.new_zeros(self.num_heads, self.coord_dim, d * d)
        lower = lower.index_copy(2, row * d + column, self.weight).unflatten(2, (d, d))
        return lower - lower.mT

    def matrix(self, coords: Tensor) -> Tensor:
        """R(r): coords (…, n, c) give (…, n, h, d, d)."""
        check_coords(coords, self.coord_dim)
        generators = self.generators()
        with full_precision(coords):
            r = coords.to(generators.dtype)[..., None, :, None, None]  # (…, n, 1, c, 1, 1)
            return torch.linalg.matrix_exp((r * generators).sum(-3))

    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1, folded: bool = False) -> Tensor:
        """R(r) x. There is no fixed basis to fold, so `folded` changes nothing."""
        matrix = self.matrix(self.checked_coords(x, coords, groups)).movedim(-3, 1)  # (b or 1, h, n, d, d)
        matrix = matrix.repeat_interleave(groups, dim=1) if groups > 1 else matrix
        with full_precision(x):
            wide = x.to(matrix.dtype)
            if len(matrix) == 1:  # coordinates shared by the batch: its tokens are columns, and no matrix is copied
                turned = (matrix[0] @ wide.permute(1, 2, 3, 0)).permute(3, 0, 1, 2)
            else:
                turned = (matrix @ wide[..., None])[..., 0]
            return turned.to(x.dtype)


class SinCos(nn.Module):
    """Fixed sine-cosine embedding of c coordinates, (…, n, c) to (…, n, dim), to be added to tokens.

    The dim/2 frequencies are dealt out over the axes as evenly as they go; each axis has base^(−t/n), t = 0 … n−1.
    """

    def __init__(self, dim: int, *, coord_dim: int = 2, base: float = 10_000.0):
        super().__init__()
        if dim % 2 or dim < 2 * coord_dim:
            raise ValueError(f"dim must be even and at least 2·coord_dim = {2 * coord_dim}, got {dim}")
        self.dim, self.coord_dim, self.base = dim, coord_dim, base

    def forward(self, coords: Tensor) -> Tensor:
        check_coords(coords, self.coord_dim)
        parts = []
        for k, n in enumerate(planes_per_axis(self.dim // 2, self.coord_dim)):
            angle = coords[..., k, None] * coords.new_tensor(geometric(n, self.base))
            parts += [angle.sin(), angle.cos()]
        return torch.cat(parts, dim=-1)


class LearnedAbsolute(nn.Module):
    """A learned table over a grid of `sizes`, read by multilinear interpolation: coords (…, n, c) to (…, n, dim).

    Coordinates are indices into the table: 0 … size − 1 on each axis, and anything outside is clamped to the border, as
    a table knows nothing beyond. Scale coordinates to use another resolution.
    """

    def __init__(self, dim: int, sizes: Sequence[int]):
        super().__init__()
        if not sizes or min(sizes) < 1:
            raise ValueError(f"sizes must be one positive number an axis, got {tuple(sizes)}")
        self.sizes, self.coord_dim = tuple(sizes), len(sizes)
        self.weight = nn.Parameter(torch.empty(math.prod(sizes), dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, coords: Tensor) -> Tensor:
        check_coords(coords, self.coord_dim)
        axes = []  # per axis: the two neighbours as (index, weight)
        for k, size in enumerate(self.sizes):
            r = coords[..., k].clamp(0, size - 1)
            low = r.detach().floor().clamp(max=max(size - 2, 0))
            high = (low + 1).clamp(max=size - 1)
            axes.append([(low.long(), 1 - (r - low)), (high.long(), r - low)])
        out = torch.zeros((), device=coords.device)
        for corner in product(*axes):
            index = torch.zeros_like(corner[0][0])
            weight = torch.ones_like(corner[0][1])
            for size, (i, w) in zip(self.sizes, corner, strict=True):
                index, weight = index * size + i, weight * w
            out = out + weight[..., None] * self.weight[index]
        return out
