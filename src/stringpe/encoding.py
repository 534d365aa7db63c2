"""An encoding is a basis P and frequencies Θ, handed to one rotation:  R(r) = P · RoPE(r Θ) · Pᵀ.

The left P cancels in every q·k, so tokens only ever see RoPE(r Θ) Pᵀ z; that is what `Encoding.rotate` returns. The
named encodings (`stringpe.named`) differ in where P and Θ come from, and in nothing else.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from .basis import Basis, Unlearned
from .checks import check_count, check_finite, check_number, check_tensor
from .frequencies import Frequencies
from .rotate import angles, project, rotate, rotate_packed, rotate_pair, rotate_planes


class PositionEncoding(nn.Module, ABC):
    """What attention can apply to queries and keys: an `Encoding`, ⊗-STRING, LieRE or Spherical RoPE. Abstract.

    Its parameters stay in float32 whatever the module is cast to (float64 after `.double()`): half precision would move
    the angles. A token without a position (class token, register, text) sits at the origin.
    """

    def __init__(self, head_dim: int, num_heads: int, coord_dim: int):
        super().__init__()
        check_count("head_dim", head_dim)
        check_count("num_heads", num_heads)
        check_count("coord_dim", coord_dim)
        self.head_dim, self.num_heads, self.coord_dim = head_dim, num_heads, coord_dim

    @abstractmethod
    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1) -> Tensor:
        """Encode one tensor: x (b, groups·h, n, d) at coords (n, c) or (b, n, c)."""

    def forward(
        self, q: Tensor, k: Tensor, coords: Tensor, key_coords: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Encode queries at `coords` and keys at `key_coords` (by default the same).

        q (b, g·h, n, d), k (b, h, m, d), coords (n, c) or (b, n, c). With g > 1 query heads per key head (grouped
        queries), query head i uses the encoding of key head i // g. `**options`: as of `rotate`.
        """
        check_tensor("q", q)
        check_tensor("k", k)
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

    def rotate_pair(self, q: Tensor, k: Tensor, coords: Tensor, *, groups: int = 1) -> tuple[Tensor, Tensor]:
        """Encode queries and keys of the same tokens."""
        return self.rotate(q, coords, groups=groups), self.rotate(k, coords)

    def fit_coords(self, x: Tensor, coords: Tensor, groups: int = 1) -> Tensor:
        """coords as (b or 1, n, c), once x and coords fit each other and this encoding."""
        check_tensor("x", x)
        heads = groups * self.num_heads
        if x.ndim != 4 or x.shape[1] != heads or x.shape[3] != self.head_dim:
            raise ValueError(
                f"queries and keys must be (b, {heads}, n, {self.head_dim}) for this encoding, got {tuple(x.shape)}: "
                f"split heads before encoding, or build it for other heads"
            )
        if not x.is_floating_point():
            raise ValueError(f"queries and keys must be floating point, got {x.dtype}: use .float()")
        return self.batch_coords(coords, x, x.shape[2])

    def batch_coords(self, coords: Tensor, x: Tensor, n: int) -> Tensor:
        """coords as (b or 1, n, c), once they fit this encoding and a tensor x (b, …) of n tokens."""
        check_coords(coords, self.coord_dim)
        b = x.shape[0]
        if x.device != coords.device:
            raise ValueError(f"x is on {x.device} but coords are on {coords.device}: move them to one device")
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

    A basis that is not orthogonal (HARoPE's) keeps the relative law of scores, qᵀ P RoPE((r_j − r_i) Θ) Pᵀ k, and
    folds as any other. But P RoPE Pᵀ is then not a representation of translations: R(0) = P Pᵀ is not I, and R(a) R(b)
    is not R(a + b). So `matrix`, `whole=True` and what builds on them refuse.
    """

    basis: Basis
    frequencies: Frequencies

    def __init__(self, basis: Basis, frequencies: Frequencies, *, name: str = "custom"):
        if not isinstance(basis, Basis) or not isinstance(frequencies, Frequencies):
            raise TypeError(
                f"an Encoding takes a Basis and Frequencies, got {type(basis).__name__} and "
                f"{type(frequencies).__name__}: for a named one use stringpe.create"
            )
        super().__init__(frequencies.head_dim, frequencies.num_heads, frequencies.coord_dim)
        if (basis.head_dim, basis.num_heads) != (self.head_dim, self.num_heads):
            raise ValueError(
                f"the basis is for {basis.num_heads} heads of dim {basis.head_dim}, the frequencies for "
                f"{self.num_heads} heads of dim {self.head_dim}: build both for the same heads"
            )
        self.basis, self.frequencies, self.name = basis, frequencies, name
        self.register_load_state_dict_post_hook(_follow_weights)

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
        frequencies: Θ, where it is formed already (`stringpe.folding.form_all`).
        """
        if whole:
            self.check_group()
        coords = self.fit_coords(x, coords, groups)
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
        """`rotate` for queries and keys of the same tokens, with one set of angles and one launch on a GPU."""
        self.fit_coords(q, coords, groups)
        coords = self.fit_coords(k, coords)
        if not folded:
            q, k = self.basis.project(q, groups), self.basis.project(k)
        return rotate_pair(q, k, coords, self.frequencies() if frequencies is None else frequencies, groups)

    def rotate_packed(
        self, qk: Tensor, coords: Tensor, *, groups: int = 1, frequencies: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`rotate_pair` of queries and keys side by side, as the projection returns them, and in the basis already: qk
        (b, n, (groups + 1)·h·d)."""
        theta = self.frequencies() if frequencies is None else frequencies
        return rotate_packed(qk, self.batch_coords(coords, qk, qk.shape[1]), theta, groups)

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, *, frequencies: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`rotate_packed` of W x + b, for x (b, n, m) and weight (2 h d, m) with P in it, in one kernel: to be called
        where `rotate.can_project` allows it."""
        theta = self.frequencies() if frequencies is None else frequencies
        return project(x, weight, bias, self.batch_coords(coords, x, x.shape[1]), theta)

    def matrix(self, coords: Tensor) -> Tensor:
        """R(r), dense: coords (…, n, c) give (…, n, h, d, d). To look at and to test with; O(n h d²) memory."""
        self.check_group()
        check_coords(coords, self.coord_dim)
        angle = angles(coords.reshape(1, -1, self.coord_dim), self.frequencies())[0]  # (h, N, d/2)
        p = self.basis().to(angle.dtype)[:, None]  # (h, 1, d, d)
        rotated_rows = rotate_planes(p, angle[:, :, None])  # (RoPE(a) Pᵀ)ᵀ, (h, N, d, d)
        return (p @ rotated_rows.mT).movedim(0, 1).reshape(*coords.shape[:-1], *p.shape[:1], *p.shape[-2:])

    def check_group(self) -> None:
        """Refuse a basis that is not orthogonal, where R(r) must be a rotation."""
        if not self.basis.orthogonal:
            raise ValueError(
                f"the basis of {self.name!r} is not orthogonal, so P RoPE Pᵀ is not a rotation and has no generators: "
                f"only its scores are relative. Use it in softmax attention, or take cayley or general"
            )

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


def _follow_weights(encoding: nn.Module, _: object) -> None:
    """After loading by assignment: bases without parameters take the device of the frequencies."""
    assert isinstance(encoding, Encoding)
    for part in encoding.basis.modules():
        if isinstance(part, Unlearned) and part.anchor.is_meta:
            part.follow(encoding.frequencies.weight)


class AbsoluteEmbedding(nn.Module, ABC):
    """What is added to tokens, where attention does not encode positions: coords (…, n, c) to (…, n, dim). Abstract: a
    learned table, or sine-cosine."""

    def __init__(self, dim: int, coord_dim: int):
        super().__init__()
        check_count("dim", dim)
        check_count("coord_dim", coord_dim)
        self.dim, self.coord_dim = dim, coord_dim

    @abstractmethod
    def forward(self, coords: Tensor) -> Tensor:
        """The embedding of each token, in the dtype of its table, or of coords where there is none."""


def check_coords(coords: Tensor, coord_dim: int) -> None:
    """Refuse coordinates of another type or width than the encoding's, and, where values can be read, NaN and
    infinity."""
    check_tensor("coords", coords)
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
    check_finite("coords", coords)


def param_groups(
    module: nn.Module, *, lr: float, weight_decay: float = 0.0, encoding_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Optimiser groups: "decay" has the weights that multiply tokens; "no_decay" has everything else, at the same rate;
    "encoding" has the parameters of encodings (frequencies, S, coefficients), which learn at `lr · encoding_lr_scale`
    and do not decay: decay would pull every wavelength to infinity and P to the identity.

    A weight decays if it has two or more axes and belongs to a layer, that is, a module without submodules (or
    `nn.MultiheadAttention`, or a parametrised layer). So biases and gains do not decay, nor tables (`nn.Embedding`,
    absolute embeddings), nor tokens that a model holds itself: class tokens, registers, queries of a pooling head.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"param_groups takes a model, got {type(module).__name__}: pass the module, not its parameters")
    for what, value in {"lr": lr, "weight_decay": weight_decay, "encoding_lr_scale": encoding_lr_scale}.items():
        if check_number(what, value) < 0:
            raise ValueError(f"{what} must not be negative, got {value}")
    encoding = {id(p) for m in module.modules() if isinstance(m, PositionEncoding) for p in m.parameters()}
    layers = {id(p) for m in module.modules() if _is_layer(m) for p in m.parameters(recurse=False) if p.ndim > 1}
    layers, others = layers - encoding, layers | encoding
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"name": "decay", "params": [p for p in trained if id(p) in layers],
         "lr": lr, "weight_decay": weight_decay},
        {"name": "no_decay", "params": [p for p in trained if id(p) not in others],
         "lr": lr, "weight_decay": 0.0},
        {"name": "encoding", "params": [p for p in trained if id(p) in encoding],
         "lr": lr * encoding_lr_scale, "weight_decay": 0.0},
    ]  # fmt: skip
    return [g for g in groups if g["params"]]


def _is_layer(module: nn.Module) -> bool:
    """Whether the parameters that a module holds itself multiply tokens: it is not a table, nor a model with
    submodules."""
    if isinstance(module, (nn.MultiheadAttention, ParametrizationList)):
        return True
    is_table = isinstance(module, (nn.Embedding, nn.EmbeddingBag, AbsoluteEmbedding))
    return not is_table and not any(True for _ in module.children())
