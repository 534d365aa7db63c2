"""An encoding is a basis P and frequencies Θ, handed to one rotation:  R(r) = P · RoPE(r Θ) · Pᵀ.

The left P cancels in every q·k, so tokens only ever see RoPE(r Θ) Pᵀ z; that is what `Encoding.rotate` returns. The
named encodings below differ in where P and Θ come from, and in nothing else.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self, TypeVar, Unpack

import torch
from torch import Tensor, nn

from . import basis as bases
from . import frequencies as spectra
from . import kernels
from .basis import Basis
from .frequencies import Frequencies, Spectrum
from .io.registry import look_up
from .rotate import angles, project, rotate, rotate_packed, rotate_pair, rotate_planes


class PositionEncoding(nn.Module, ABC):
    """What attention can put on queries and keys: an `Encoding`, ⊗-STRING or LieRE. Abstract.

    Its parameters stay in float32 whatever the module is cast to (float64 after `.double()`): half precision would move
    the angles. A token without a position (class token, register, text) sits at the origin.
    """

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int):
        super().__init__()
        self.head_dim, self.num_heads, self.coord_dim = head_dim, num_heads, coord_dim

    @abstractmethod
    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1, folded: bool = False) -> Tensor:
        """Encode one tensor: x (b, groups·h, n, d) at coords (n, c) or (b, n, c)."""

    def forward(
        self, q: Tensor, k: Tensor, coords: Tensor, key_coords: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Encode queries at `coords` and keys at `key_coords` (by default the same places).

        q (b, g·h, n, d), k (b, h, m, d), coords (n, c) or (b, n, c). With g > 1 query heads a key head (grouped
        queries), query head i uses the encoding of key head i // g. `**options`: as of `rotate`.
        """
        if q.ndim != 4 or q.shape[1] == 0 or q.shape[1] % self.num_heads:
            raise ValueError(
                f"q must be (b, heads, n, d) with a multiple of {self.num_heads} heads, got {tuple(q.shape)}"
            )
        if key_coords is None and k.shape[2:3] != q.shape[2:3]:
            raise ValueError(
                f"q has shape {tuple(q.shape)}, k has {tuple(k.shape)}: pass key_coords for cross attention"
            )
        groups = q.shape[1] // self.num_heads
        if key_coords is None:
            return self.rotate_pair(q, k, coords, groups=groups, **options)
        return self.rotate(q, coords, groups=groups, **options), self.rotate(k, key_coords, **options)

    def rotate_pair(
        self, q: Tensor, k: Tensor, coords: Tensor, *, groups: int = 1, folded: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Encode queries and keys of the same tokens."""
        return self.rotate(q, coords, groups=groups, folded=folded), self.rotate(k, coords, folded=folded)

    def checked_coords(self, x: Tensor, coords: Tensor, groups: int = 1) -> Tensor:
        """coords as (b or 1, n, c), once x and coords fit each other and this encoding."""
        heads = groups * self.num_heads
        if x.ndim != 4 or x.shape[1] != heads or x.shape[3] != self.head_dim:
            raise ValueError(
                f"queries and keys must be (b, {heads}, n, {self.head_dim}) for this encoding, got {tuple(x.shape)}: "
                f"split heads before encoding, or build it for other heads"
            )
        return self._batched_coords(coords, x.shape[0], x.shape[2])

    def _batched_coords(self, coords: Tensor, b: int, n: int) -> Tensor:
        check_coords(coords, self.coord_dim)
        if coords.ndim == 2 and coords.shape[0] == n:  # comparing shapes of other lengths would compare b with n
            return coords[None]
        if coords.shape != (b, n, self.coord_dim):
            raise ValueError(
                f"coords must be ({n}, {self.coord_dim}), shared by the batch, or ({b}, {n}, {self.coord_dim}), "
                f"got {tuple(coords.shape)}: tokens without a position (class, register) need a row of zeros"
            )
        return coords

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep_precision(t: Tensor) -> Tensor:
            out = fn(t)
            return t.to(out.device) if out.dtype in (torch.float16, torch.bfloat16) else out

        return super()._apply(keep_precision, recurse)


class Encoding(PositionEncoding):
    """R(r) = P RoPE(r Θ) Pᵀ for tokens at coordinates r (definition 3.1 by way of theorem 3.4 of the paper).

    basis: a `stringpe.basis.Basis`; `enc.basis()` is P (h, d, d).
    frequencies: a `stringpe.frequencies.Frequencies`; `enc.frequencies()` is Θ (h, c, d/2), in radians per unit.
    """

    basis: Basis
    frequencies: Frequencies

    def __init__(self, basis: Basis, frequencies: Frequencies, *, name: str = "custom"):
        super().__init__(frequencies.head_dim, frequencies.num_heads, frequencies.coord_dim)
        if (basis.head_dim, basis.num_heads) != (self.head_dim, self.num_heads):
            raise ValueError(
                f"the basis is for {basis.num_heads} heads of dim {basis.head_dim}, the frequencies for "
                f"{self.num_heads} heads of dim {self.head_dim}: build both for the same heads"
            )
        self.basis, self.frequencies, self.name = basis, frequencies, name

    def rotate(
        self,
        x: Tensor,
        coords: Tensor,
        *,
        groups: int = 1,
        folded: bool = False,
        whole: bool = False,
        frequencies: Tensor | None = None,
    ) -> Tensor:
        """RoPE(r Θ) Pᵀ x, for x (b, h, n, d) at coords (n, c) or (b, n, c); same shape and dtype as x.

        groups: x has groups·h heads, and head i takes encoding head i // groups.
        folded: x is in the basis already (Pᵀ went into the projection), so rotate only.
        whole: put the left P back, giving R(r) x itself; a feature map sees the difference, q·k does not.
        frequencies: Θ, where `form` made it already.
        """
        coords = self.checked_coords(x, coords, groups)
        if not folded:
            x = self.basis.project(x, groups)
        x = rotate(x, coords, self.frequencies() if frequencies is None else frequencies, groups)
        return self.basis.restore(x, groups) if whole else x

    def rotate_pair(
        self,
        q: Tensor,
        k: Tensor,
        coords: Tensor,
        *,
        groups: int = 1,
        folded: bool = False,
        frequencies: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`rotate` for queries and keys of the same tokens: one set of angles, and one launch on a GPU."""
        self.checked_coords(q, coords, groups)
        coords = self.checked_coords(k, coords)
        if not folded:
            q, k = self.basis.project(q, groups), self.basis.project(k)
        return rotate_pair(q, k, coords, self.frequencies() if frequencies is None else frequencies, groups)

    def rotate_packed(
        self, qk: Tensor, coords: Tensor, *, groups: int = 1, frequencies: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`rotate_pair` of queries and keys side by side, as a projection leaves them, and in the basis already: qk
        (b, n, (groups + 1)·h·d)."""
        theta = self.frequencies() if frequencies is None else frequencies
        coords = self.checked_coords(kernels.heads_of(qk, theta, groups)[1], coords)
        return rotate_packed(qk, coords, theta, groups)

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, *, frequencies: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`rotate_packed` of W x + b, for x (b, n, m) and weight (2 h d, m) in the basis already, in one kernel that
        `rotate.can_project` allows."""
        theta = self.frequencies() if frequencies is None else frequencies
        return project(x, weight, bias, self._batched_coords(coords, *x.shape[:2]), theta)

    def matrix(self, coords: Tensor) -> Tensor:
        """R(r), dense: coords (…, n, c) give (…, n, h, d, d). To look at and to test with; O(n h d²) memory."""
        check_coords(coords, self.coord_dim)
        angle = angles(coords.reshape(1, -1, self.coord_dim), self.frequencies())[0]  # (h, N, d/2)
        p = self.basis().to(angle.dtype)[:, None]  # (h, 1, d, d)
        rotated_rows = rotate_planes(p, angle[:, :, None])  # (RoPE(a) Pᵀ)ᵀ, (h, N, d, d)
        return (p @ rotated_rows.mT).movedim(0, 1).reshape(*coords.shape[:-1], *p.shape[:1], *p.shape[-2:])

    def wavelengths(self) -> Tensor:
        """2π / |θ_j| for every head and plane that rotates, sorted, in units of the coordinates."""
        speed = self.frequencies().detach().norm(dim=1).flatten()
        return (2 * math.pi / speed[speed > 0]).sort().values

    def extra_repr(self) -> str:
        text = f"{self.name}, head_dim={self.head_dim}, num_heads={self.num_heads}, coord_dim={self.coord_dim}"
        if self.frequencies.weight.is_meta:
            return text
        lengths = self.wavelengths()
        if not len(lengths):
            return f"{text}, no plane rotates"
        return f"{text}, wavelengths {lengths[0].item():.3g} to {lengths[-1].item():.3g} units"


Part = TypeVar("Part", Basis, Frequencies)


def form(parts: Sequence[Part]) -> list[Tensor]:
    """P of many bases, or Θ of many frequencies, those of a model's layers say, in one computation for each kind: on
    small matrices launches cost, not arithmetic."""
    kinds: dict[Hashable, list[int]] = {}
    for i, part in enumerate(parts):
        kinds.setdefault(part.kind(), []).append(i)
    formed: dict[int, Tensor] = {}
    for members in kinds.values():
        formed |= zip(members, parts[members[0]].together([parts[i] for i in members]), strict=True)
    return [formed[i] for i in range(len(parts))]


def check_coords(coords: Tensor, coord_dim: int) -> None:
    """Refuse coordinates of another type or width than the encoding's."""
    if coords.dtype not in (torch.float32, torch.float64):
        why = "half-precision positions collide" if coords.is_floating_point() else "positions are real numbers"
        raise ValueError(
            f"coords must be float32 or float64, got {coords.dtype} ({why}): use .float() where they arise"
        )
    columns = coords.shape[-1] if coords.ndim else 0
    if columns != coord_dim:
        advice = f"build it with coord_dim={columns}" + (" or drop a column" if columns > coord_dim else "")
        raise ValueError(
            f"coords has {columns} columns but this encoding was built with coord_dim={coord_dim}: {advice}"
        )


def rope(
    *, head_dim: int, num_heads: int, coord_dim: int = 2, zero_fraction: float = 0.0, **spectrum: Unpack[Spectrum]
) -> Encoding:
    """Axial RoPE: P = I, each plane belongs to one axis; base 10,000 and fixed unless told otherwise.

    Where 2·coord_dim does not divide head_dim the first axes get one plane more: 64 over 3 axes is 11 + 11 + 10 planes.
    zero_fraction: the share of each axis's planes, lowest frequencies first, held at zero.
    `**spectrum`: see `Spectrum`.
    """
    options: Spectrum = {"base": 10_000.0, "learnable": False, **spectrum}
    theta = spectra.Axial(head_dim, num_heads, coord_dim, zero_fraction=zero_fraction, **options)
    return Encoding(bases.Identity(head_dim, num_heads), theta, name="rope")


def rope_mixed(*, head_dim: int, num_heads: int, coord_dim: int = 2, **spectrum: Unpack[Spectrum]) -> Encoding:
    """RoPE-Mixed: P = I, every plane sees every axis, frequencies learned per head from base 100 in random directions.

    `**spectrum`: see `Spectrum`.
    """
    theta = spectra.Mixed(head_dim, num_heads, coord_dim, **spectrum)
    return Encoding(bases.Identity(head_dim, num_heads), theta, name="rope_mixed")


def cayley(
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    sparsity: int | Tensor | None = None,
    method: str = "matmul",
    **spectrum: Unpack[Spectrum],
) -> Encoding:
    """Cayley-STRING: P = (I − S)(I + S)⁻¹ with S learned and skew, zero at the start; frequencies as RoPE-Mixed.

    sparsity: the entries of S that are learned: None for all, an integer for a band of that width, or a (d, d) mask.
    method: "matmul" forms P (and attention folds it into its projections); "solve" is the paper's solve per token.
    `**spectrum`: see `Spectrum`.
    """
    theta = spectra.Mixed(head_dim, num_heads, coord_dim, **spectrum)
    p = bases.Cayley(head_dim, num_heads, sparsity=sparsity, share_heads=theta.share_heads, method=method)
    return Encoding(p, theta, name="cayley")


def circulant(
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    block_size: int | None = None,
    method: str = "matmul",
    **spectrum: Unpack[Spectrum],
) -> Encoding:
    """Circulant-STRING: L_k = C_k − C_kᵀ with C_k circulant in blocks and learned; P is the Fourier basis.

    block_size: even, 4 up to the whole head; by default the largest that fits up to 16, the paper's best for
        classification. A block of b has b/2 − 1 rotating planes: at 4 half of the channels carry no position, at 16 an
        eighth.
    method: "matmul" uses the real Fourier basis (and attention folds it); "fft" is theorem 3.5, an FFT per token.
    `**spectrum`: see `Spectrum`.
    """
    if block_size is None:
        block_size = max([b for b in bases.block_sizes(head_dim) if b <= 16], default=head_dim)
    p = bases.Fourier(head_dim, num_heads, block_size=block_size, method=method)
    theta = spectra.Circulant(head_dim, num_heads, coord_dim, block_size=block_size, **spectrum)
    return Encoding(p, theta, name="circulant")


def general(
    *,
    head_dim: int,
    num_heads: int,
    coord_dim: int = 2,
    sparsity: int | Tensor | None = None,
    **spectrum: Unpack[Spectrum],
) -> Encoding:
    """STRING at its most general: P = exp(S) anywhere in SO(d), S learned and skew, zero at the start; frequencies as
    RoPE-Mixed. `sparsity` as in `cayley`; `**spectrum`: see `Spectrum`."""
    theta = spectra.Mixed(head_dim, num_heads, coord_dim, **spectrum)
    p = bases.Exponential(head_dim, num_heads, sparsity=sparsity, share_heads=theta.share_heads)
    return Encoding(p, theta, name="general")


_NAMED: dict[str, Callable[..., Encoding]] = {f.__name__: f for f in (rope, rope_mixed, cayley, circulant, general)}


def names() -> list[str]:
    """The names that `create` knows."""
    return list(_NAMED)


def create(name: str, **options: Any) -> Encoding:
    """The encoding of that name: `create("cayley", head_dim=64, num_heads=12, coord_dim=3)`."""
    return look_up("encoding", name, _NAMED)(**options)


def param_groups(
    module: nn.Module, *, lr: float, weight_decay: float = 0.0, encoding_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Optimiser groups: matrices decay; biases, gains and other vectors do not; encoding parameters (frequencies, S,
    coefficients) do not decay either and learn at `lr · encoding_lr_scale`. Decay would pull every wavelength to
    infinity and P to the identity."""
    own = {id(p) for m in module.modules() if isinstance(m, PositionEncoding) for p in m.parameters()}
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"name": "decay", "params": [p for p in trained if id(p) not in own and p.ndim > 1],
         "lr": lr, "weight_decay": weight_decay},
        {"name": "no_decay", "params": [p for p in trained if id(p) not in own and p.ndim <= 1],
         "lr": lr, "weight_decay": 0.0},
        {"name": "encoding", "params": [p for p in trained if id(p) in own],
         "lr": lr * encoding_lr_scale, "weight_decay": 0.0},
    ]  # fmt: skip
    return [g for g in groups if g["params"]]
