"""Baselines for STRING: rotations that do not commute (LieRE, Spherical RoPE), and absolute embeddings, which are added
to tokens."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from .checks import check_choice, check_count, check_number
from .constants import Constant
from .encoding import AbsoluteEmbedding, PositionEncoding, check_coords
from .frequencies import geometric, planes_per_axis, random_frames
from .rotate import angles, full_precision

STARTS = ("even", "authors")


class LieRE(PositionEncoding):
    """R(r) = exp(Σ_k r_k A_k) with learned skew A_k that need not commute (Ostmeier et al.).

    In one dimension this is STRING. In more, R(a)ᵀR(b) ≠ R(b − a): scores depend on absolute position, and every token
    needs its own matrix, O(b n h d s) memory for blocks of size s.

    block_size: A_k is block-diagonal with blocks of this size, a divisor of head_dim; by default one block, all of A_k.
        The entries of every block below the diagonal are stored, (h, c, d/s, s(s−1)/2).
    start: "even", Gaussian matrices whose largest frequencies are about 1 radian per unit, as the other encodings' are
        for patch indices; or "authors", uniform in [0, 2π), which is meant for coordinates in [0, 1].
    """

    def __init__(
        self,
        *,
        head_dim: int,
        num_heads: int,
        coord_dim: int = 2,
        block_size: int | None = None,
        start: str = "even",
    ):
        super().__init__(head_dim, num_heads, coord_dim)
        self.block_size = head_dim if block_size is None else block_size
        check_count("block_size", self.block_size, 2)
        if head_dim % self.block_size:
            raise ValueError(f"block_size must divide head_dim={head_dim}, got {self.block_size}")
        check_choice("start", start, STARTS)
        self.start = start
        entries = self.block_size * (self.block_size - 1) // 2
        self.weight = nn.Parameter(torch.empty(num_heads, coord_dim, head_dim // self.block_size, entries))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.start == "authors":
            self.weight.uniform_(-2 * math.pi, 0)  # below the diagonal: the authors store the other half
        else:
            self.weight.normal_(std=0.5 * self.block_size**-0.5)  # spectral radius of a skew Gaussian: 2 σ √s

    def blocks(self) -> Tensor:
        """A, block by block: (h, c, d/s, s, s)."""
        s = self.block_size
        row, column = torch.tril_indices(s, s, -1, device=self.weight.device)
        lower = self.weight.new_zeros(*self.weight.shape[:-1], s * s)
        lower = lower.index_copy(3, row * s + column, self.weight).unflatten(3, (s, s))
        return lower - lower.mT

    def generators(self) -> Tensor:
        """A (h, c, d, d)."""
        return _on_diagonal(self.blocks())

    def _block_matrices(self, coords: Tensor) -> Tensor:
        """R(r), block by block: coords (…, n, c) give (…, n, h, d/s, s, s)."""
        check_coords(coords, self.coord_dim)
        blocks = self.blocks()
        with full_precision(coords):
            r = coords.to(blocks.dtype)[..., None, :, None, None, None]  # (…, n, 1, c, 1, 1, 1)
            return torch.linalg.matrix_exp((r * blocks).sum(-4))

    def matrix(self, coords: Tensor) -> Tensor:
        """R(r): coords (…, n, c) give (…, n, h, d, d)."""
        return _on_diagonal(self._block_matrices(coords))

    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1) -> Tensor:
        """R(r) x."""
        matrix = self._block_matrices(self.fit_coords(x, coords, groups)).movedim(-4, 1)  # (b or 1, h, n, d/s, s, s)
        matrix = matrix.repeat_interleave(groups, dim=1) if groups > 1 else matrix
        with full_precision(x):
            wide = x.to(matrix.dtype).unflatten(-1, (-1, self.block_size))  # (b, h, n, d/s, s)
            if len(matrix) == 1:  # coordinates shared by the batch: its tokens are columns, and no matrix is copied
                turned = (matrix[0] @ wide.permute(1, 2, 3, 4, 0)).permute(4, 0, 1, 2, 3)
            else:
                turned = (matrix @ wide[..., None])[..., 0]
            return turned.flatten(-2).to(x.dtype)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: object) -> None:
        weight = state_dict.get(f"{prefix}weight")
        if weight is not None and weight.ndim == 3:  # saved before there were blocks
            state_dict[f"{prefix}weight"] = weight[:, :, None]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, block_size={self.block_size}"


class Spherical(PositionEncoding):
    """Spherical RoPE (van de Geijn et al.): channels in threes, each turned by one angle per coordinate, about x, then
    about y, then about z:  R(r) = R_x(r_0 ω_0) R_y(r_1 ω_1) R_z(r_2 ω_2), for up to three coordinates.

    The turns do not commute, so scores depend on absolute position in two dimensions and more. Learned frequencies ω
    (h, c, d/3) start as a geometric series along random directions, as RoPE-Mixed's. Where 3 does not divide head_dim,
    the remaining channels carry no position.
    """

    def __init__(self, *, head_dim: int, num_heads: int, coord_dim: int = 2, base: float = 100.0, scale: float = 1.0):
        super().__init__(head_dim, num_heads, coord_dim)
        check_count("head_dim", head_dim, 3)
        if coord_dim > 3:
            raise ValueError(f"Spherical RoPE has three axes to turn about, got coord_dim={coord_dim}: use up to 3")
        if check_number("base", base) <= 0:
            raise ValueError(f"base must be positive, got {base}: it is the ratio of longest to shortest wavelength")
        self.base, self.scale = base, check_number("scale", scale)
        self.weight = nn.Parameter(torch.empty(num_heads, coord_dim, head_dim // 3))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        heads, axes, threes = self.weight.shape
        directions = random_frames(heads, axes)[:, :, [j % axes for j in range(threes)]]
        self.weight.copy_(directions * torch.tensor(geometric(threes, self.base)) * self.scale)

    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1) -> Tensor:
        """R(r) x."""
        coords = self.fit_coords(x, coords, groups)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        threes = self.head_dim // 3
        axes = list(wide[..., : 3 * threes].unflatten(-1, (3, threes)).unbind(-2))  # x, y and z of every three
        for k in reversed(range(self.coord_dim)):
            angle = angles(coords[..., k : k + 1], self.weight[:, k : k + 1]).to(wide.dtype)  # (b or 1, h, n, d/3)
            angle = angle.repeat_interleave(groups, dim=1) if groups > 1 else angle
            first, second = axes[(k + 1) % 3], axes[(k + 2) % 3]
            cos, sin = angle.cos(), angle.sin()
            axes[(k + 1) % 3], axes[(k + 2) % 3] = first * cos - second * sin, first * sin + second * cos
        return torch.cat([*axes, wide[..., 3 * threes :]], dim=-1).to(x.dtype)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, num_heads={self.num_heads}, coord_dim={self.coord_dim}"


class SinCos(AbsoluteEmbedding):
    """Fixed sine-cosine embedding of c coordinates, (…, n, c) to (…, n, dim), to be added to tokens. Depth is a
    coordinate like the others.

    The dim/2 frequencies are dealt out over the axes as evenly as possible; each axis has base^(−t/n), t = 0 … n−1.
    """

    def __init__(self, dim: int, *, coord_dim: int = 2, base: float = 10_000.0):
        super().__init__(dim, coord_dim)
        if dim % 2 or dim < 2 * coord_dim:
            raise ValueError(f"dim must be even and at least 2·coord_dim = {2 * coord_dim}, got {dim}")
        if check_number("base", base) <= 0:
            raise ValueError(f"base must be positive, got {base}: it is the ratio of longest to shortest wavelength")
        self.base = base
        self._spectra = [Constant(partial(_spectrum, n, base)) for n in planes_per_axis(dim // 2, coord_dim)]

    def forward(self, coords: Tensor) -> Tensor:
        check_coords(coords, self.coord_dim)
        parts = []
        for k, spectrum in enumerate(self._spectra):
            angle = coords[..., k, None] * spectrum(coords.dtype, coords.device)
            parts += [angle.sin(), angle.cos()]
        return torch.cat(parts, dim=-1)


class LearnedAbsolute(AbsoluteEmbedding):
    """A learned table over a grid of `sizes`, read by multilinear interpolation: coords (…, n, c) to (…, n, dim).

    Coordinates are indices into the table: 0 … size − 1 on each axis. Coordinates outside are clamped to the border,
    beyond which the table has no entries. Scale coordinates to use another resolution.

    bins: for coordinates beyond the grid's (depth), a table of that many rows each, which is added: rows 0 … bins − 1,
        read at the coordinate itself. coord_dim: how many coordinates there are in all; by default the grid's.

    Entries start normal with standard deviation 1/√dim.
    """

    def __init__(self, dim: int, sizes: Sequence[int], *, coord_dim: int | None = None, bins: int = 16):
        if not isinstance(sizes, (tuple, list, torch.Size)) or not sizes:
            raise ValueError(f"sizes must have one positive number per axis, got {sizes!r}")
        sizes = tuple(sizes)
        super().__init__(dim, len(sizes) if coord_dim is None else coord_dim)
        for size in sizes:
            check_count("a size of the table", size)
        check_count("bins", bins)
        if self.coord_dim < len(sizes):
            raise ValueError(f"coord_dim={coord_dim} is less than the {len(sizes)} axes of the table {sizes}")
        self.sizes, self.bins = sizes, bins
        self.weight = nn.Parameter(torch.empty(math.prod(sizes), dim))
        more = self.coord_dim - len(sizes)
        self.more = nn.Parameter(torch.empty(more, bins, dim)) if more else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.weight, self.more):
            if table is not None:
                nn.init.normal_(table, std=self.dim**-0.5)

    def forward(self, coords: Tensor) -> Tensor:
        check_coords(coords, self.coord_dim)
        grid = len(self.sizes)
        out = _interpolate(self.weight, self.sizes, coords[..., :grid])
        if self.more is not None:
            for k, table in enumerate(self.more):
                out = out + _interpolate(table, (self.bins,), coords[..., grid + k, None])
        return out


def learned_absolute(
    *, dim: int, sizes: Sequence[int], coord_dim: int | None = None, bins: int = 16
) -> LearnedAbsolute:
    """`LearnedAbsolute`, as the catalogue builds it: a table over the grid, and one per coordinate beyond it."""
    return LearnedAbsolute(dim, sizes, coord_dim=coord_dim, bins=bins)


def sincos(
    *, dim: int, sizes: Sequence[int] | None = None, coord_dim: int | None = None, base: float = 10_000.0
) -> SinCos:
    """`SinCos`, as the catalogue builds it. The grid matters only for the number of its axes, where coord_dim is not
    given."""
    axes = len(sizes or (0, 0)) if coord_dim is None else coord_dim
    return SinCos(dim, coord_dim=axes, base=base)


def _interpolate(table: Tensor, sizes: Sequence[int], coords: Tensor) -> Tensor:
    """Rows of a table (Π sizes, dim) at coords (…, c), mixed from the 2^c rows around."""
    axes = []  # per axis: the two neighbours as (index, weight)
    for k, size in enumerate(sizes):
        r = coords[..., k].clamp(0, size - 1)
        low = r.detach().floor().clamp(max=max(size - 2, 0))
        high = (low + 1).clamp(max=size - 1)
        axes.append([(low.long(), 1 - (r - low)), (high.long(), r - low)])
    out = torch.zeros((), device=coords.device)
    for corner in product(*axes):
        index = torch.zeros_like(corner[0][0])
        weight = torch.ones_like(corner[0][1])
        for size, (i, w) in zip(sizes, corner, strict=True):
            index, weight = index * size + i, weight * w
        out = out + weight[..., None] * table[index]
    return out


def _spectrum(planes: int, base: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A geometric series of frequencies, highest first."""
    return torch.tensor(geometric(planes, base), dtype=dtype, device=device)


def _on_diagonal(blocks: Tensor) -> Tensor:
    """(…, m, s, s) to block-diagonal (…, m s, m s)."""
    m, s = blocks.shape[-3:-1]
    eye = torch.eye(m, dtype=blocks.dtype, device=blocks.device)
    return (eye[:, None, :, None] * blocks[..., :, :, None, :]).reshape(*blocks.shape[:-3], m * s, m * s)
