"""Where Θ comes from: (h, c, d/2), radians per unit of coordinate, one column a plane.

A spectrum is a geometric series of magnitudes, base^(−t/n) for t = 0 … n−1, drawn once along each of c directions: the
coordinate axes (`Axial`, vanilla RoPE) or a random orthonormal frame per head (`Mixed` and what follows it).
Wavelengths are 2π / |θ|, in the units of the coordinates: with the default scale of 1 the shortest is 6.3 patches.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Self, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .constants import Constant

PERIODIC_SCALE = 8.0  # frequencies of a periodic axis start as integers up to this: an eighth of a turn is resolved


class Spectrum(TypedDict, total=False):
    """The options that all frequencies share, accepted by every named encoding.

    base: ratio of the longest to the shortest initial wavelength of an axis (10,000 for RoPE, 100 for the others).
    scale: radians per unit of coordinate at the top of the initial spectrum, a number or one per axis. Coordinates in
        [−1, 1] over 14 patches need 7 where patch indices need 1.
    learnable: whether the frequencies are parameters.
    share_heads: one set for all heads in place of one per head.
    periodic: axes measured in radians with period 2π. Their frequencies are rounded to integers (straight-through
        gradient), so that −π and π are the same place. They start with scale 8 unless told otherwise.
    """

    base: float
    scale: float | Sequence[float] | None
    learnable: bool
    share_heads: bool
    periodic: Sequence[int]


def planes_per_axis(planes: int, axes: int) -> list[int]:
    """Planes dealt out over the axes as evenly as they go, the first taking what is left: 32 over 3 is 11, 11, 10."""
    return [planes // axes + (k < planes % axes) for k in range(axes)]


def geometric(planes: int, base: float) -> list[float]:
    """base^(−t/n), t = 0 … n−1: the paper's θ_n = λ^(−2(n−1)/d) for one axis."""
    return [base ** (-t / planes) for t in range(planes)]


def random_frames(count: int, axes: int) -> Tensor:
    """(count, c, c): orthonormal frames drawn uniformly; column k is direction k. In 2D this is Heo et al.'s random
    angle φ with the directions φ and φ + π/2."""
    q, r = torch.linalg.qr(torch.randn(count, axes, axes))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]


class Frequencies(nn.Module, ABC):
    """Θ as a module: calling it returns (h, c, d/2) in float32 (float64 after `.double()`), differentiable.

    Abstract. A member says how its `weight` starts (`initial`) and how Θ follows from it (`expand`); both see one set
    per head, or a single set for all of them. Options: see `Spectrum`.
    """

    weight: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        coord_dim: int,
        *,
        base: float = 100.0,
        scale: float | Sequence[float] | None = None,
        learnable: bool = True,
        share_heads: bool = False,
        periodic: Sequence[int] = (),
    ):
        super().__init__()
        if head_dim < 2 or head_dim % 2:
            raise ValueError(f"head_dim must be even and at least 2, got {head_dim}: channels rotate in pairs")
        if num_heads < 1 or coord_dim < 1:
            raise ValueError(f"num_heads and coord_dim must be at least 1, got {num_heads} and {coord_dim}")
        if not base > 0:
            raise ValueError(f"base must be positive, got {base}: it is the ratio of longest to shortest wavelength")
        self.head_dim, self.num_heads, self.coord_dim = head_dim, num_heads, coord_dim
        self.planes = head_dim // 2
        self.base, self.learnable, self.share_heads = base, learnable, share_heads
        self.periodic = tuple(sorted({_axis(k, coord_dim) for k in periodic}))
        self.scale = self._scale_per_axis(scale)

    def _scale_per_axis(self, scale: float | Sequence[float] | None) -> tuple[float, ...]:
        if scale is None:
            return tuple(PERIODIC_SCALE if k in self.periodic else 1.0 for k in range(self.coord_dim))
        if isinstance(scale, (int, float)):
            return (float(scale),) * self.coord_dim
        if len(scale) != self.coord_dim:
            raise ValueError(f"scale has {len(scale)} numbers for coord_dim={self.coord_dim}: give one an axis, or one")
        return tuple(float(s) for s in scale)

    def _create_weight(self) -> None:
        weight = self.initial(1 if self.share_heads else self.num_heads)
        if self.learnable:
            self.weight = nn.Parameter(weight)
        else:  # persistent: a model built on the meta device is whole once its state dict is loaded
            self.register_buffer("weight", weight)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.copy_(self.initial(self.weight.shape[0]))

    @abstractmethod
    def initial(self, sets: int) -> Tensor:
        """The starting weight, (sets, …)."""

    @abstractmethod
    def expand(self, weight: Tensor) -> Tensor:
        """(sets, …) to Θ (sets, c, d/2)."""

    def forward(self) -> Tensor:
        return self.together([self])[0]

    def kind(self) -> tuple[Hashable, ...]:
        """Frequencies of one kind are formed `together`: those that expand alike."""
        return type(self), self.head_dim, self.coord_dim, self.periodic

    def together(self, members: Sequence[Self]) -> Sequence[Tensor]:
        """Θ of each of these, all of this one's kind, in one computation."""
        weights = [m.weight.to(torch.promote_types(m.weight.dtype, torch.float32)) for m in members]
        theta = self._integers(self.expand(weights[0] if len(weights) == 1 else torch.cat(weights)))
        parts = theta.split([len(w) for w in weights])
        return [part.expand(m.num_heads, -1, -1) for m, part in zip(members, parts, strict=True)]

    def _integers(self, theta: Tensor) -> Tensor:
        """Θ with the frequencies of periodic axes rounded, and their gradient passed through."""
        if not self.periodic:
            return theta
        rows = list(theta.unbind(1))
        for axis in self.periodic:
            rows[axis] = rows[axis] + (rows[axis].round() - rows[axis]).detach()
        return torch.stack(rows, dim=1)

    def mixed_spectrum(self, sets: int, planes: int) -> Tensor:
        """(sets, c, planes): the spectrum along each direction of a random frame per set."""
        counts = planes_per_axis(planes, self.coord_dim)
        magnitude = torch.tensor([m for n in counts for m in geometric(n, self.base)])
        direction = torch.tensor([k for k, n in enumerate(counts) for _ in range(n)])
        theta = random_frames(sets, self.coord_dim)[:, :, direction] * magnitude
        return theta * torch.tensor(self.scale)[:, None]


class Axial(Frequencies):
    """Each plane belongs to one axis (vanilla RoPE, equations 2 and 5 of the paper).

    zero_fraction: the share of each axis's planes, from the lowest frequency up, held at exactly zero (the truncation
        of section 2): channels that carry meaning without position.
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        coord_dim: int,
        *,
        zero_fraction: float = 0.0,
        **options: Unpack[Spectrum],
    ):
        super().__init__(head_dim, num_heads, coord_dim, **options)
        if not 0 <= zero_fraction < 1:
            raise ValueError(f"zero_fraction must lie in [0, 1), got {zero_fraction}")
        self.counts = planes_per_axis(self.planes, coord_dim)
        if self.counts[-1] == 0:
            raise ValueError(
                f"head_dim={head_dim} has {self.planes} planes, too few for coord_dim={coord_dim} axes of axial RoPE: "
                f"use head_dim >= {2 * coord_dim}, or rope_mixed, whose planes see every axis"
            )
        self.active = [n - math.floor(zero_fraction * n) for n in self.counts]
        self._create_weight()

    def initial(self, sets: int) -> Tensor:
        series = [
            s * m
            for n, active, s in zip(self.counts, self.active, self.scale, strict=True)
            for m in geometric(n, self.base)[:active]
        ]
        return torch.tensor(series).repeat(sets, 1)

    def kind(self) -> tuple[Hashable, ...]:
        return *super().kind(), tuple(self.active)

    def expand(self, weight: Tensor) -> Tensor:
        rows, start = [], 0
        for n, part in zip(self.counts, weight.split(self.active, dim=1), strict=True):
            rows.append(F.pad(part, (start, self.planes - start - part.shape[1])))
            start += n
        return torch.stack(rows, dim=1)


class Mixed(Frequencies):
    """Every plane sees every axis, and every entry of Θ is a parameter (RoPE-Mixed, Heo et al.)."""

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int, **options: Unpack[Spectrum]):
        super().__init__(head_dim, num_heads, coord_dim, **options)
        self._create_weight()

    def initial(self, sets: int) -> Tensor:
        return self.mixed_spectrum(sets, self.planes)

    def expand(self, weight: Tensor) -> Tensor:
        return weight


class Circulant(Frequencies):
    """The spectrum of L_k = C_k − C_kᵀ, C_k circulant in blocks of size b (Circulant-STRING, equation 11).

    Let a_m = c_m − c_{b−m}, m = 1 … b/2 − 1, the antisymmetric half of the coefficients: the only part that L sees and
    the only part stored, (sets, c, d/b, b/2 − 1). The eigenvalues of a block are ± i θ_k with

        θ_k = −2 Σ_m a_m sin(2π k m / b),    k = 1 … b/2 − 1,

    and two zeros, the constant and the alternating vector, which share the first plane of the block.
    """

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int, *, block_size: int, **options: Unpack[Spectrum]):
        super().__init__(head_dim, num_heads, coord_dim, **options)
        self.block_size, self.blocks = block_size, head_dim // block_size
        self._sines = Constant(self._formed)
        self._create_weight()

    def kind(self) -> tuple[Hashable, ...]:
        return *super().kind(), self.block_size

    def sines(self, like: Tensor) -> Tensor:
        """D_mk = −2 sin(2π k m / b): (b/2 − 1, b/2 − 1), symmetric, with D D = b I."""
        return self._sines(like.dtype, like.device)

    def _formed(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        m = torch.arange(1, self.block_size // 2, device=device)
        return -2 * ((m[:, None] * m % self.block_size).to(dtype) * (2 * math.pi / self.block_size)).sin()

    def initial(self, sets: int) -> Tensor:
        rotating = self.block_size // 2 - 1
        theta = self.mixed_spectrum(sets, self.blocks * rotating)
        theta = theta.unflatten(2, (rotating, self.blocks)).mT  # each block gets the whole range of the spectrum
        return _transform(theta, self.sines(theta) / self.block_size)

    def expand(self, weight: Tensor) -> Tensor:
        return F.pad(_transform(weight, self.sines(weight)), (1, 0)).flatten(2)


class Given(Frequencies):
    """Θ as it was given: (h, c, d/2)."""

    def __init__(self, theta: Tensor, *, learnable: bool = False):
        num_heads, coord_dim, planes = theta.shape
        super().__init__(2 * planes, num_heads, coord_dim, learnable=learnable)
        self.theta = theta.detach()
        self._create_weight()

    def initial(self, sets: int) -> Tensor:
        return self.theta.clone()

    def expand(self, weight: Tensor) -> Tensor:
        return weight


class Gated(Frequencies):
    """g Θ: other frequencies behind a learned gate, one number for each head (or set) and axis.

    A gate that starts near zero puts an encoding into a trained model without changing what it computes. The spectrum
    keeps its shape meanwhile: one number a head brings all wavelengths in, where frequencies that started at zero would
    have to find theirs one by one. Gradient: of order one to the gate, of order g to whatever lies behind it.
    """

    def __init__(self, inner: Frequencies, *, start: float):
        super().__init__(inner.head_dim, inner.num_heads, inner.coord_dim, share_heads=inner.share_heads)
        self.inner, self.start = inner, start
        self._create_weight()

    def initial(self, sets: int) -> Tensor:
        return torch.full((sets, self.coord_dim, 1), self.start)

    def expand(self, weight: Tensor) -> Tensor:
        return weight * self.inner()

    def together(self, members: Sequence[Self]) -> Sequence[Tensor]:
        return [m.expand(m.weight.to(torch.promote_types(m.weight.dtype, torch.float32))) for m in members]


class Stacked(Frequencies):
    """The axes of one Θ, then those of another: (h, c, d/2) and (h, c', d/2) to (h, c + c', d/2)."""

    def __init__(self, first: Frequencies, second: Frequencies):
        super().__init__(first.head_dim, first.num_heads, first.coord_dim + second.coord_dim)
        self.first, self.second = first, second

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.first.weight

    def reset_parameters(self) -> None:
        """Nothing of its own to reset: the two parts reset themselves."""

    def initial(self, sets: int) -> Tensor:
        return torch.cat([self.first.initial(sets), self.second.initial(sets)], dim=1)

    def expand(self, weight: Tensor) -> Tensor:
        return torch.cat([self.first(), self.second()], dim=1)

    def together(self, members: Sequence[Self]) -> Sequence[Tensor]:
        return [m.expand(m.weight) for m in members]


def with_depth(frequencies: Frequencies) -> Stacked:
    """Θ with one axis more, of the same kind and its own spectrum: what lifting from 2D to 3D adds. Not zero, since
    frequencies that start at zero hardly learn; the coordinate starts at zero instead."""
    kind = frequencies.inner if isinstance(frequencies, Gated) else frequencies
    sizes = (frequencies.head_dim, frequencies.num_heads, 1)
    options: Spectrum = {"base": kind.base, "share_heads": frequencies.share_heads}
    if isinstance(kind, Circulant):
        return Stacked(frequencies, Circulant(*sizes, block_size=kind.block_size, **options))
    return Stacked(frequencies, Mixed(*sizes, **options))


def _transform(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix for small matrices, elementwise, so that neither autocast nor TF32 rounds a frequency."""
    return (x[..., :, None] * matrix).sum(-2)


def _axis(axis: int, coord_dim: int) -> int:
    if not -coord_dim <= axis < coord_dim:
        raise ValueError(f"periodic names axis {axis}, but coord_dim={coord_dim} has axes 0 to {coord_dim - 1}")
    return axis % coord_dim
