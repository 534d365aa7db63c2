"""Where P comes from: a matrix (h, d, d), orthogonal in every class but `Svd`, that does not depend on position.

A basis is a module: calling it returns P in float32 (float64 after `.double()`), differentiable; `project` takes tokens
into it, Pᵀ z. Nothing learned is cached, so P follows its parameters through eval, EMA and load_state_dict.
Learned parameters start such that P is the identity: a model that gains a basis starts as the function that it was.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from . import kernels
from .checks import check_choice, check_count, check_heads, check_tensor
from .constants import Constant
from .rotate import backend, full_precision


class Basis(nn.Module, ABC):
    """P (h, d, d). Abstract.

    method: how `project` treats tokens: "matmul" multiplies by P; a subclass may offer another way to the same result.
    orthogonal: whether PᵀP = I. If not, scores are still relative, but R(r) = P RoPE Pᵀ is not a rotation.
    starts_at_identity: whether P = I before training, so that a trained model can take it without changing.
    """

    methods: ClassVar[tuple[str, ...]] = ("matmul",)
    orthogonal: bool = True
    starts_at_identity: bool = True

    def __init__(self, head_dim: int, num_heads: int, *, method: str = "matmul"):
        super().__init__()
        check_heads(head_dim, num_heads)
        check_choice(f"method of {type(self).__name__}", method, self.methods)
        self.head_dim, self.num_heads, self.method = head_dim, num_heads, method

    @abstractmethod
    def forward(self) -> Tensor:
        """P (h, d, d)."""

    def kind(self) -> Hashable:
        """Bases of one kind are formed `form_together`; by default each is its own."""
        return id(self)

    def form_together(self, bases: Sequence[Self]) -> Sequence[Tensor]:
        """P of each of these bases, all of this one's kind."""
        return [basis() for basis in bases]

    def project(self, x: Tensor, groups: int = 1) -> Tensor:
        """Pᵀ x for every token: x (b, groups·h, n, d), same dtype. (P on the left would cancel in q·k.)"""
        return _times(x, self(), groups)

    def restore(self, x: Tensor, groups: int = 1) -> Tensor:
        """P x, the way back where P is orthogonal."""
        return _times(x, self().mT, groups)


class Unlearned(Basis):
    """A basis that follows from its sizes alone and so has nothing to store. Abstract.

    `anchor` is an empty tensor whose dtype and device are those of P. It is not in the state dict: loading by
    assignment into a model on the meta device cannot move it, so `Encoding` then calls `follow`.
    """

    anchor: Tensor

    def __init__(self, head_dim: int, num_heads: int, *, method: str = "matmul"):
        super().__init__(head_dim, num_heads, method=method)
        self.register_buffer("anchor", torch.empty(0), persistent=False)

    def follow(self, weight: Tensor) -> None:
        """Take the device and precision of the frequencies' weight."""
        dtype = torch.promote_types(weight.dtype, torch.float32)
        self.anchor = torch.empty(0, dtype=dtype, device=weight.device)


class Identity(Unlearned):
    """P = I: RoPE and RoPE-Mixed, and what folding leaves behind."""

    def forward(self) -> Tensor:
        eye = torch.eye(self.head_dim, dtype=self.anchor.dtype, device=self.anchor.device)
        return eye.expand(self.num_heads, -1, -1)

    def project(self, x: Tensor, groups: int = 1) -> Tensor:
        return x

    def restore(self, x: Tensor, groups: int = 1) -> Tensor:
        return x


class Skew(Basis):
    """P as a function of a learned skew matrix S = −Sᵀ that starts at zero. Abstract: Cayley transform or exponential.

    sparsity: which entries of S may differ from zero: None, all of them; an integer w, the band 0 < |i − j| ≤ w; or a
        symmetric boolean (d, d) mask. Only the entries below the diagonal are stored, as `weight` (sets, entries).
    """

    index: Tensor

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        *,
        sparsity: int | Tensor | None = None,
        share_heads: bool = False,
        method: str = "matmul",
    ):
        super().__init__(head_dim, num_heads, method=method)
        row, column = torch.tril_indices(head_dim, head_dim, -1, device="cpu")
        keep = _sparsity_mask(sparsity, head_dim)[row, column]
        self.positions = (row * head_dim + column)[keep]  # of the free entries in S, flat
        self.weight = nn.Parameter(torch.zeros(1 if share_heads else num_heads, len(self.positions)))
        # Persistent, so that a model built on the meta device is complete once its state dict is loaded.
        self.register_buffer("index", self.positions.to(self.weight.device))
        self.sparsity = sparsity if sparsity is None or isinstance(sparsity, int) else "mask"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.zero_()
        self.index.copy_(self.positions)

    def skew(self) -> Tensor:
        """S (sets, d, d)."""
        weight = self.weight.to(torch.promote_types(self.weight.dtype, torch.float32))
        lower = weight.new_zeros(len(weight), self.head_dim**2).index_copy(1, self.index, weight)
        lower = lower.unflatten(1, (self.head_dim, self.head_dim))
        return lower - lower.mT

    @abstractmethod
    def transform(self, skew: Tensor) -> Tensor:
        """S (…, d, d) to P (…, d, d)."""

    def forward(self) -> Tensor:
        return self.form_together([self])[0]

    def kind(self) -> Hashable:
        return type(self), self.head_dim

    def form_together(self, bases: Sequence[Self]) -> Sequence[Tensor]:
        with full_precision(self.weight):
            skews = [basis.skew() for basis in bases]
            formed = self.transform(torch.cat(skews)).split([len(skew) for skew in skews])
        return [p.expand(basis.num_heads, -1, -1) for basis, p in zip(bases, formed, strict=True)]


class Cayley(Skew):
    """P = (I − S)(I + S)⁻¹ (Cayley-STRING, equation 10), which is 2 (I + S)⁻¹ − I.

    The symmetric part of I + S is I, so it is invertible for every S. The transform reaches every rotation but those
    with an eigenvalue of −1, which it approaches as S grows.

    method="solve" is the paper's way: a linear solve per token, Pᵀ z = 2 (I + S)⁻ᵀ z − z, and P is never formed.
    """

    methods = ("matmul", "solve")

    def transform(self, skew: Tensor) -> Tensor:
        eye = torch.eye(self.head_dim, dtype=skew.dtype, device=skew.device)
        fused = self.head_dim <= kernels.LARGEST_INVERSE and skew.dtype == torch.float32 and backend(skew) == "triton"
        return 2 * (kernels.invert(eye + skew) if fused else torch.linalg.inv(eye + skew)) - eye

    def project(self, x: Tensor, groups: int = 1) -> Tensor:
        if self.method == "matmul":
            return super().project(x, groups)
        with full_precision(x):
            skew = self.skew().expand(self.num_heads, -1, -1)
            eye = torch.eye(self.head_dim, dtype=skew.dtype, device=skew.device)
            grouped = x.to(skew.dtype).unflatten(1, (-1, groups))  # (b, h, g, n, d)
            tokens = grouped.permute(1, 4, 0, 2, 3)  # (h, d, b, g, n)
            solved = 2 * torch.linalg.solve(eye - skew, tokens.flatten(2)) - tokens.flatten(2)
            return solved.view_as(tokens).permute(2, 0, 3, 4, 1).flatten(1, 2).to(x.dtype)


class Exponential(Skew):
    """P = exp(S): every rotation of SO(d) (the `general` encoding)."""

    def transform(self, skew: Tensor) -> Tensor:
        return matrix_exponential(skew)


class Svd(Basis):
    """P = V Σ Uᵀ, so that tokens see Pᵀ z = A z with A = U Σ Vᵀ per head: HARoPE's matrix, not orthogonal.

    U and V are Cayley transforms and Σ = diag(exp s), all of them the identity at the start.
    """

    orthogonal = False

    def __init__(self, head_dim: int, num_heads: int, *, share_heads: bool = False):
        super().__init__(head_dim, num_heads)
        self.left = Cayley(head_dim, num_heads, share_heads=share_heads)
        self.right = Cayley(head_dim, num_heads, share_heads=share_heads)
        self.log_scale = nn.Parameter(torch.zeros(1 if share_heads else num_heads, head_dim))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.log_scale.zero_()

    def forward(self) -> Tensor:
        left, right = self.left.form_together([self.left, self.right])
        with full_precision(left):
            return (right * self.log_scale.to(right.dtype).exp()[:, None]) @ left.mT


class Fourier(Unlearned):
    """The real Fourier basis of every block of size b, in which all circulant matrices are diagonal in planes.

    Plane k of a block holds √(2/b) cos(2π k t / b) and −√(2/b) sin(2π k t / b), k = 1 … b/2 − 1; plane 0 holds the two
    vectors that no circulant skew matrix turns, 1/√b and (−1)^t/√b. Fixed; only the frequencies are learned.

    method="fft" is the way of theorem 3.5: a real FFT of every token in place of the product with P, O(d log d).
    """

    methods = ("matmul", "fft")
    starts_at_identity = False

    def __init__(self, head_dim: int, num_heads: int, *, block_size: int, method: str = "matmul"):
        super().__init__(head_dim, num_heads, method=method)
        check_count("block_size", block_size)
        if block_size < 4 or block_size % 2 or head_dim % block_size:
            raise ValueError(
                f"block_size must be even, at least 4 and divide head_dim={head_dim}, got {block_size}: "
                f"it can be {' or '.join(map(str, block_sizes(head_dim))) or 'nothing, since head_dim is too small'}"
            )
        self.block_size = block_size
        self._matrix = Constant(self._form_matrix)

    def kind(self) -> Hashable:
        return type(self), self.head_dim, self.num_heads, self.block_size

    def form_together(self, bases: Sequence[Self]) -> Sequence[Tensor]:
        return [self()] * len(bases)  # equal: nothing is learned

    def forward(self) -> Tensor:
        return self._matrix(self.anchor.dtype, self.anchor.device).expand(self.num_heads, -1, -1)

    def _form_matrix(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        b = self.block_size
        k, t = torch.arange(b // 2, device=device), torch.arange(b, device=device)
        phase = (t[:, None] * k % b).to(dtype) * (2 * math.pi / b)  # (b, b/2)
        norm = torch.full((b // 2,), math.sqrt(2 / b), dtype=dtype, device=device)
        norm[0] = math.sqrt(1 / b)
        even = norm * phase.cos()
        odd = torch.where(k == 0, norm * (1 - 2 * (t[:, None] % 2)), -norm * phase.sin())
        eye = torch.eye(self.head_dim // b, dtype=dtype, device=device)
        return torch.cat([torch.kron(eye, even), torch.kron(eye, odd)], dim=1)

    def project(self, x: Tensor, groups: int = 1) -> Tensor:
        if self.method == "matmul" or x.numel() == 0:  # torch has no FFT of an empty tensor
            return super().project(x, groups)
        b = self.block_size
        wide = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, b))
        spectrum = torch.view_as_real(torch.fft.rfft(wide, norm="ortho"))  # (…, blocks, b/2 + 1, 2)
        rotating = spectrum[..., 1:-1, :] * math.sqrt(2)
        even = torch.cat([spectrum[..., :1, 0], rotating[..., 0]], dim=-1).flatten(-2)
        odd = torch.cat([spectrum[..., -1:, 0], rotating[..., 1]], dim=-1).flatten(-2)
        return torch.cat([even, odd], dim=-1).to(x.dtype)


class GivenBasis(Basis):
    """A given P, (h, d, d); fixed."""

    starts_at_identity = False
    weight: Tensor

    def __init__(self, matrix: Tensor):
        check_tensor("matrix", matrix)
        if matrix.ndim != 3 or matrix.shape[1] != matrix.shape[2] or not matrix.is_floating_point():
            raise ValueError(f"a basis must be floats (h, d, d), got {matrix.dtype} {tuple(matrix.shape)}")
        num_heads, head_dim, _ = matrix.shape
        super().__init__(head_dim, num_heads)
        self.given = matrix.detach()
        self.register_buffer("weight", self.given.clone())

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.weight.copy_(self.given)

    def forward(self) -> Tensor:
        return self.weight


class Interleaved(Basis):
    """P = Π P': another basis P' for heads whose planes are the channels (2j, 2j + 1), as many checkpoints have them.

    Π is the permutation between the two layouts, so a layout is a basis like any other, and folds like any other.
    """

    starts_at_identity = False

    def __init__(self, inner: Basis):
        super().__init__(inner.head_dim, inner.num_heads)
        self.inner, self.orthogonal = inner, inner.orthogonal

    def kind(self) -> Hashable:
        return type(self), self.inner.kind()

    def form_together(self, bases: Sequence[Self]) -> Sequence[Tensor]:
        return [convert_layout(p, "interleaved", dim=-2) for p in self.inner.form_together([b.inner for b in bases])]

    def forward(self) -> Tensor:
        return self.form_together([self])[0]

    def project(self, x: Tensor, groups: int = 1) -> Tensor:
        return self.inner.project(convert_layout(x, "half"), groups)

    def restore(self, x: Tensor, groups: int = 1) -> Tensor:
        return convert_layout(self.inner.restore(x, groups), "interleaved")


def convert_layout(x: Tensor, to: str, *, dim: int = -1) -> Tensor:
    """Channels of a head from one layout to the other along `dim`: activations, rows of W_q and W_k, biases or gains.

    "half": plane j is the channels (j, j + d/2), as everywhere in this library. "interleaved": (2j, 2j + 1).
    """
    if to not in ("half", "interleaved"):
        raise ValueError(f"a layout is 'half' or 'interleaved', got {to!r}")
    axis = dim % x.ndim
    pairs = x.unflatten(axis, (-1, 2) if to == "half" else (2, -1))
    return pairs.transpose(axis, axis + 1).flatten(axis, axis + 1)


def matrix_exponential(matrix: Tensor) -> Tensor:
    """exp of (…, d, d), formed in float64 where the device has it and returned in the dtype of the matrix: torch's
    float32 exponential of small matrices is off by up to 5e-5."""
    wide = matrix.dtype if matrix.device.type == "mps" else torch.float64
    return torch.linalg.matrix_exp(matrix.to(wide)).to(matrix.dtype)


def _times(x: Tensor, matrix: Tensor, groups: int) -> Tensor:
    """Row vectors x (b, groups·h, n, d) times one matrix per head (h, d, d), in x's dtype whatever autocast says."""
    with full_precision(x):
        if groups == 1:
            return x @ matrix.to(x.dtype)
        return (x.unflatten(1, (-1, groups)) @ matrix[:, None].to(x.dtype)).flatten(1, 2)


def block_sizes(head_dim: int) -> list[int]:
    """The block sizes that a head can have: even divisors from 4 up."""
    check_heads(head_dim, 1)
    return [b for b in range(4, head_dim + 1, 2) if head_dim % b == 0]


def _sparsity_mask(sparsity: int | Tensor | None, head_dim: int) -> Tensor:
    if sparsity is None:
        return torch.ones(head_dim, head_dim, dtype=torch.bool, device="cpu")
    if isinstance(sparsity, int):
        check_count("sparsity, as the width of a band,", sparsity, 0)
        if not 1 <= sparsity < head_dim:
            raise ValueError(f"sparsity, as the width of a band, must lie in 1 … {head_dim - 1}, got {sparsity}")
        i = torch.arange(head_dim, device="cpu")
        return (i[:, None] - i).abs() <= sparsity
    check_tensor("sparsity, unless it is the width of a band,", sparsity)
    mask = sparsity.cpu()
    if mask.dtype != torch.bool or mask.shape != (head_dim, head_dim) or not torch.equal(mask, mask.T):
        raise ValueError(
            f"sparsity, as a mask, must be a symmetric boolean ({head_dim}, {head_dim}) tensor, "
            f"got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    return mask
