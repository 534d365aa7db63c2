"""Where Θ comes from: (h, c, d/2), radians per unit of coordinate, one column per plane.

A spectrum is a series of magnitudes, in most classes geometric, base^(−t/n) for t = 0 … n−1, along some directions:
the coordinate axes (`Axial`, vanilla RoPE), a random orthonormal frame per head (`Mixed`, and `Circulant` of
`circulant_frequencies`), the vertices of a simplex (`Simplex`), or directions spread by the golden ratio (`Golden`).
Wavelengths are 2π / |θ|, in the units of the coordinates: with the default scale of 1 the shortest is 6.3 patches.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import ClassVar, Self, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import check_count, check_flag, check_heads, check_number, check_tensor

PERIODIC_SCALE = 8.0  # frequencies of a periodic axis start as integers up to this: an eighth of a turn is resolved


class Spectrum(TypedDict, total=False):
    """The options that all frequencies share, accepted by every named encoding.

    base: ratio of the longest to the shortest initial wavelength, one number or one per axis: 10,000 for axial
        frequencies, 100 for the others, unless given.
    scale: radians per unit of coordinate at the top of the initial spectrum, one number or one per axis. Coordinates
        in [−1, 1] over 14 patches need 7 where patch indices need 1.
    learnable: whether the frequencies are parameters. Axial, joint, simplex and golden ones are fixed by default.
    share_heads: one set for all heads in place of one per head.
    periodic: axes measured in radians with period 2π. Their frequencies are rounded to integers (straight-through
        gradient), so that −π and π are the same position. They start as integers from 1 to `scale`, which is 8 unless
        given, and never at zero.
    zero_fraction: the share of the planes of each direction, from the lowest frequency up, held at exactly zero (the
        truncation of section 2 of the paper): channels that carry meaning without position.
    """

    base: float | Sequence[float] | None
    scale: float | Sequence[float] | None
    learnable: bool | None
    share_heads: bool
    periodic: Sequence[int]
    zero_fraction: float


def planes_per_axis(planes: int, axes: int) -> list[int]:
    """Planes dealt out over the axes as evenly as possible, the first axes taking what is left: 32 over 3 is 11, 11,
    10."""
    return [planes // axes + (k < planes % axes) for k in range(axes)]


def geometric(planes: int, base: float) -> list[float]:
    """base^(−t/n), t = 0 … n−1: the paper's θ_n = λ^(−2(n−1)/d) for one axis."""
    return [base ** (-t / planes) for t in range(planes)]


def random_frames(count: int, axes: int) -> Tensor:
    """(count, c, c): orthonormal frames drawn uniformly; column k is direction k. In 2D this is Heo et al.'s random
    angle φ with the directions φ and φ + π/2."""
    q, r = torch.linalg.qr(torch.randn(count, axes, axes))
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]


def simplex_directions(axes: int) -> list[list[float]]:
    """The n + 1 corners of a regular simplex in n dimensions: unit vectors, any two with the product −1/n."""
    corners = [[0.0] * axes for _ in range(axes + 1)]
    for k in range(axes):
        corners[k][k] = math.sqrt(1 - sum(x * x for x in corners[k]))
        for other in corners[k + 1 :]:
            other[k] = (-1 / axes - sum(x * y for x, y in zip(corners[k][:k], other[:k], strict=True))) / corners[k][k]
    return corners


def golden_directions(count: int, axes: int) -> list[list[float]]:
    """`count` unit vectors spread evenly over half of the plane by the golden angle, or over the sphere by its
    generalisation: point i of the sequence frac(i / φ^k), φ^(n+1) = φ + 1, mapped to normal quantiles."""
    if axes == 2:
        turns = [math.pi * ((i + 0.5) * (math.sqrt(5) - 1) / 2 % 1) for i in range(count)]
        return [[math.cos(a), math.sin(a)] for a in turns]
    ratio = 2.0
    for _ in range(64):  # a contraction: converges to the root
        ratio = (1 + ratio) ** (1 / (axes + 1))
    quantile = NormalDist().inv_cdf
    points = [[quantile((0.5 + i * ratio**-k) % 1) for k in range(1, axes + 1)] for i in range(1, count + 1)]
    return [[x / math.hypot(*point) for x in point] for point in points]


class Frequencies(nn.Module, ABC):
    """Θ as a module: calling it returns (h, c, d/2) in float32 (float64 after `.double()`), differentiable.

    Abstract. A subclass says how its `weight` starts (`initial`) and how Θ follows from it (`expand`); both have one
    set per head, or a single set for all heads. Options: see `Spectrum`.
    """

    weight: Tensor
    stored: ClassVar[str] = "weight"  # the name of the weight in a state dict
    default_base: ClassVar[float] = 100.0
    default_learnable: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        coord_dim: int,
        *,
        base: float | Sequence[float] | None = None,
        scale: float | Sequence[float] | None = None,
        learnable: bool | None = None,
        share_heads: bool = False,
        periodic: Sequence[int] = (),
        zero_fraction: float = 0.0,
    ):
        super().__init__()
        check_heads(head_dim, num_heads)
        check_count("coord_dim", coord_dim)
        if not 0 <= check_number("zero_fraction", zero_fraction) < 1:
            raise ValueError(f"zero_fraction must lie in [0, 1), got {zero_fraction}")
        self.head_dim, self.num_heads, self.coord_dim = head_dim, num_heads, coord_dim
        self.planes = head_dim // 2
        self.learnable = self.default_learnable if learnable is None else learnable
        check_flag("learnable", self.learnable)
        check_flag("share_heads", share_heads)
        if not isinstance(periodic, (tuple, list)):
            raise ValueError(f"periodic must be a list of axes, such as (1,), got {periodic!r}")
        self.share_heads, self.zero_fraction = share_heads, zero_fraction
        self.periodic = tuple(sorted({_check_axis(k, coord_dim) for k in periodic}))
        self.scale = self._per_axis("scale", scale, [PERIODIC_SCALE if k in self.periodic else 1.0 for k in self._axes])
        turns = [max(abs(s), 1.0) for s in self.scale]  # on a periodic axis the slowest plane turns once per period
        default = [turns[k] if k in self.periodic else self.default_base for k in self._axes]
        self.base, self.has_base = self._per_axis("base", base, default), base is not None
        if min(self.base) <= 0:
            raise ValueError(f"base must be positive, got {base}: it is the ratio of longest to shortest wavelength")

    @property
    def _axes(self) -> range:
        return range(self.coord_dim)

    def _per_axis(self, what: str, given: float | Sequence[float] | None, default: list[float]) -> tuple[float, ...]:
        if given is None:
            return tuple(default)
        if isinstance(given, (int, float)):
            return (check_number(what, given),) * self.coord_dim
        if not isinstance(given, (tuple, list)):
            raise ValueError(f"{what} must be a number or one number per axis, got {given!r}")
        if len(given) != self.coord_dim:
            raise ValueError(
                f"{what} has {len(given)} numbers for coord_dim={self.coord_dim}: give one number, or one per axis"
            )
        return tuple(check_number(what, value) for value in given)

    def create_weight(self) -> None:
        """Create the weight, a parameter or a buffer; a subclass calls this at the end of its constructor."""
        weight = self.initial(1 if self.share_heads else self.num_heads)
        if self.learnable:
            setattr(self, self.stored, nn.Parameter(weight))
        else:  # persistent: a model built on the meta device is complete once its state dict is loaded
            self.register_buffer(self.stored, weight)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.copy_(self.initial(self.weight.shape[0]))

    @abstractmethod
    def initial(self, sets: int) -> Tensor:
        """The starting weight, (sets, …)."""

    @abstractmethod
    def expand(self, weight: Tensor) -> Tensor:
        """(sets, …) to Θ (sets, c, d/2)."""

    def groups(self) -> list[int]:
        """How many planes each direction of the spectrum has, in their order; within one, frequencies fall."""
        return [self.planes]

    def active(self) -> list[int]:
        """How many planes of each direction turn; the rest is held at zero by `zero_fraction`."""
        return [n - math.floor(self.zero_fraction * n) for n in self.groups()]

    def turning(self) -> list[bool]:
        """Whether each plane turns at all."""
        return [t < active for n, active in zip(self.groups(), self.active(), strict=True) for t in range(n)]

    def new_axis(self) -> "Frequencies":
        """Frequencies of the same kind for one coordinate more, with a spectrum of their own."""
        options: Spectrum = {"base": self.base[-1], "share_heads": self.share_heads}
        return Mixed(self.head_dim, self.num_heads, 1, **options)

    def forward(self) -> Tensor:
        return self.form_together([self])[0]

    def kind(self) -> tuple[Hashable, ...]:
        """Frequencies of one kind are formed `form_together`: those that expand alike."""
        return type(self), self.head_dim, self.coord_dim, self.periodic, self.zero_fraction

    def form_together(self, members: Sequence[Self]) -> Sequence[Tensor]:
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

    def _keep_off_zero(self, theta: Tensor) -> Tensor:
        """A starting Θ (sets, c, planes) in which no plane that sees a periodic axis rounds to zero there."""
        rows = list(theta.unbind(1))
        for axis in self.periodic:
            rows[axis] = rows[axis].sign() * rows[axis].abs().clamp_min(1.0)
        return torch.stack(rows, dim=1)

    def mixed_spectrum(self, sets: int, counts: Sequence[int]) -> Tensor:
        """(sets, c, Σ counts): a geometric series along each direction of a random frame per set."""
        magnitude = torch.tensor([m for n, b in zip(counts, self.base, strict=True) for m in geometric(n, b)])
        direction = torch.tensor([k for k, n in enumerate(counts) for _ in range(n)])
        theta = random_frames(sets, self.coord_dim)[:, :, direction] * magnitude
        return self._keep_off_zero(theta * torch.tensor(self.scale)[:, None])


class Axial(Frequencies):
    """Each plane belongs to one axis (vanilla RoPE, equation 2 of the paper for each axis)."""

    default_base = 10_000.0
    default_learnable = False

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int, **options: Unpack[Spectrum]):
        super().__init__(head_dim, num_heads, coord_dim, **options)
        if self.groups()[-1] == 0:
            raise ValueError(
                f"head_dim={head_dim} has {self.planes} planes, too few for coord_dim={coord_dim} axes of axial RoPE: "
                f"use head_dim >= {2 * coord_dim}, or rope_mixed, whose planes see every axis"
            )
        self.create_weight()

    def groups(self) -> list[int]:
        return planes_per_axis(self.planes, self.coord_dim)

    def initial(self, sets: int) -> Tensor:
        """(sets, number of planes that turn)."""
        rows = zip(self.groups(), self.active(), self.scale, self.base, strict=True)
        series = [[s * m for m in geometric(n, b)[:active]] for n, active, s, b in rows]
        for axis in self.periodic:
            series[axis] = [math.copysign(max(abs(m), 1.0), m) for m in series[axis]]
        return torch.tensor([m for row in series for m in row]).repeat(sets, 1)

    def expand(self, weight: Tensor) -> Tensor:
        rows, start = [], 0
        for n, part in zip(self.groups(), weight.split(self.active(), dim=1), strict=True):
            rows.append(F.pad(part, (start, self.planes - start - part.shape[1])))
            start += n
        return torch.stack(rows, dim=1)


class Free(Frequencies):
    """Every plane sees every axis, and the weight is Θ itself, without the planes held at zero: (sets, c, planes that
    turn). Abstract: subclasses say where Θ starts."""

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int, **options: Unpack[Spectrum]):
        super().__init__(head_dim, num_heads, coord_dim, **options)
        self.create_weight()

    @abstractmethod
    def spectrum(self, sets: int) -> Tensor:
        """The starting Θ of all planes, (sets, c, d/2)."""

    def initial(self, sets: int) -> Tensor:
        theta = self._keep_off_zero(self.spectrum(sets))
        return theta[:, :, [j for j, turns in enumerate(self.turning()) if turns]]

    def expand(self, weight: Tensor) -> Tensor:
        if not self.zero_fraction:
            return weight
        parts = zip(weight.split(self.active(), dim=2), self.groups(), strict=True)
        return torch.cat([F.pad(part, (0, n - part.shape[2])) for part, n in parts], dim=2)

    def _along(self, directions: Tensor, magnitudes: Sequence[float]) -> Tensor:
        """Θ (sets, c, d/2) of unit directions (sets, d/2, c), with a magnitude per plane and the scale of each axis."""
        return (directions * torch.tensor(magnitudes)[:, None] * torch.tensor(self.scale)).mT

    def _single_base(self) -> float:
        if not self.has_base:
            return self.default_base
        if len(set(self.base)) > 1:
            raise ValueError(f"{type(self).__name__} spreads its directions over all axes: give one base for all")
        return self.base[0]


class Mixed(Free):
    """RoPE-Mixed (Heo et al.): a series along each direction of a random orthonormal frame per head, all learned."""

    def groups(self) -> list[int]:
        return planes_per_axis(self.planes, self.coord_dim)

    def spectrum(self, sets: int) -> Tensor:
        return self.mixed_spectrum(sets, self.groups())


class Joint(Free):
    """Every axis turns every plane with the same series: equation 5 of the paper as written.

    With one base for all axes, Θ has equal rows and scores depend on Σ_k r_k alone, so that positions on a diagonal
    coincide; with a base per axis they differ. This is why RoPE in 2D and 3D usually means `Axial`.
    """

    default_base = 10_000.0
    default_learnable = False

    def spectrum(self, sets: int) -> Tensor:
        rows = [[s * m for m in geometric(self.planes, b)] for s, b in zip(self.scale, self.base, strict=True)]
        return torch.tensor(rows).repeat(sets, 1, 1)


class Simplex(Free):
    """Wave vectors at the vertices of a regular simplex (nD-RoPE): planes in groups of c + 1, one scale per group.

    The magnitude falls by e^(1/c) from group to group; with a `base`, from 1 to nearly 1/base over all groups instead.
    Fixed by default. Where c + 1 does not divide d/2, the last group is incomplete.
    """

    default_learnable = False

    def spectrum(self, sets: int) -> Tensor:
        corners = simplex_directions(self.coord_dim)
        levels = math.ceil(self.planes / len(corners))
        if self.has_base:
            magnitudes = geometric(levels, self._single_base())
        else:
            magnitudes = [math.exp(-g / self.coord_dim) for g in range(levels)]
        directions = torch.tensor([corners[j % len(corners)] for j in range(self.planes)]).repeat(sets, 1, 1)
        return self._along(directions, [magnitudes[j // len(corners)] for j in range(self.planes)])


class Golden(Free):
    """Directions spread evenly by the golden ratio, over all planes of all heads, with a geometric series per head.
    Fixed by default; for any number of axes."""

    default_learnable = False

    def spectrum(self, sets: int) -> Tensor:
        directions = torch.tensor(golden_directions(sets * self.planes, self.coord_dim))
        return self._along(directions.unflatten(0, (sets, self.planes)), geometric(self.planes, self._single_base()))


FREQUENCIES: dict[str, type[Axial | Free]] = {
    "axial": Axial, "joint": Joint, "mixed": Mixed, "simplex": Simplex, "golden": Golden
}  # fmt: skip


class GivenFrequencies(Frequencies):
    """A given Θ, (h, c, d/2)."""

    def __init__(self, theta: Tensor, *, learnable: bool = False):
        check_tensor("theta", theta)
        if theta.ndim != 3 or not theta.is_floating_point():
            raise ValueError(f"theta must be floats (h, c, d/2), got {theta.dtype} {tuple(theta.shape)}")
        num_heads, coord_dim, planes = theta.shape
        super().__init__(2 * planes, num_heads, coord_dim, learnable=learnable)
        self.theta = theta.detach()
        self.create_weight()

    def initial(self, sets: int) -> Tensor:
        return self.theta.clone()

    def expand(self, weight: Tensor) -> Tensor:
        return weight


def _check_axis(axis: int, coord_dim: int) -> int:
    """The axis, counted from the front, once it is known to exist."""
    check_count("an axis of periodic", axis, -coord_dim)
    if axis >= coord_dim:
        raise ValueError(f"periodic names axis {axis}, but coord_dim={coord_dim} has axes 0 to {coord_dim - 1}")
    return axis % coord_dim
