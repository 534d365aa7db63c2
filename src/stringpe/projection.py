"""Queries, keys and values: the projections in front of attention, and the basis folded into them.

Folding: Pᵀ(W x) = (Pᵀ W) x, so the basis costs one small product with the weights in place of one with every token. It
needs the encoding to follow the projection directly. A gain-free RMS norm may stand between, since it commutes with P;
a LayerNorm or a gain may not, and P then multiplies tokens.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .encoding import Encoding, PositionEncoding, form
from .rotate import full_precision, product_dtype

QK_NORMS = ("rms", "rms_gain", "layer")


class Heads(TypedDict, total=False):
    """The options that the attention layers share.

    num_kv_heads: key and value heads, a divisor of num_heads (grouped queries).
    head_dim: channels of a head; dim / num_heads unless given.
    qk_norm: None, "rms" (no gain), "rms_gain" or "layer", over each head of q and k, before the encoding.
    bias: of the projections.
    """

    num_kv_heads: int | None
    head_dim: int | None
    qk_norm: str | None
    bias: bool


class MultiHead(nn.Module):
    """Projections, norms and encoding, shared by the attention layers. Abstract.

    encoding: an `Encoding` (or ⊗-STRING, LieRE), or None. With grouped queries it has one head a key head.
    fold: True puts P into the projection weights in every forward, False multiplies tokens; None folds where it can.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        encoding: PositionEncoding | None = None,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        qk_norm: str | None = None,
        bias: bool = True,
        fold: bool | None = None,
    ):
        super().__init__()
        num_kv_heads = num_kv_heads or num_heads
        if head_dim is None and dim % num_heads:
            raise ValueError(f"dim={dim} does not divide into {num_heads} heads: pass head_dim")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}")
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.head_dim = head_dim or dim // num_heads
        if encoding is not None and (encoding.head_dim, encoding.num_heads) != (self.head_dim, num_kv_heads):
            raise ValueError(
                f"the encoding has {encoding.num_heads} heads of dim {encoding.head_dim}, this attention needs "
                f"{num_kv_heads} of dim {self.head_dim} (one a key head)"
            )
        self.encoding = encoding
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * self.head_dim, bias=bias)
        self.out = nn.Linear(num_heads * self.head_dim, dim, bias=bias)
        self.q_norm, self.k_norm = _qk_norm(qk_norm, self.head_dim), _qk_norm(qk_norm, self.head_dim)
        self.fold = self._resolve_fold(fold)

    def fold_obstacle(self) -> str | None:
        """What stands between projection and encoding so that P cannot move into the weights; None if nothing does."""
        skewed = isinstance(self.encoding, Encoding) and not self.encoding.basis.orthogonal
        for norm in (self.q_norm, self.k_norm):
            if skewed and isinstance(norm, nn.RMSNorm):
                return "a q/k norm, which commutes with no basis that is not orthogonal"
            if isinstance(norm, nn.LayerNorm) or (isinstance(norm, nn.RMSNorm) and norm.elementwise_affine):
                return f"the q/k norm {type(norm).__name__} with its centring or gain, which does not commute with P"
        return None

    @torch.no_grad()
    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows, for good, and go on with an encoding that has none."""
        assert isinstance(self.encoding, Encoding)
        ((weight, bias),) = fold_projections([self], [self.encoding.basis()])
        self.qkv.weight[: len(weight)] = weight
        if bias is not None:
            self.qkv.bias[: len(bias)] = bias
        self.encoding, self.fold = plain, True

    @property
    def folds_basis(self) -> bool:
        """Whether there is a basis and it goes into the projections."""
        return self.fold and isinstance(self.encoding, Encoding) and not isinstance(self.encoding.basis, Identity)

    def _resolve_fold(self, fold: bool | None) -> bool:
        obstacle = self.fold_obstacle()
        if fold and obstacle:
            raise ValueError(f"cannot fold: between projection and encoding stands {obstacle}. Use fold=False")
        if fold is None:
            wants_tokens = isinstance(self.encoding, Encoding) and self.encoding.basis.method != "matmul"
            return obstacle is None and not wants_tokens
        return fold

    def project(
        self, x: Tensor, context: Tensor | None, prepared: "Prepared | None" = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, h_kv, m, d); q and k in the basis if this layer folds."""
        self._check_input(x)
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if context is None:
            qk, v = self.project_packed(x, prepared)
            q, k = qk.split([queries, keys], dim=-1)
        else:
            weight, bias = (self.qkv.weight, self.qkv.bias) if prepared is None else (prepared.weight, prepared.bias)
            q = F.linear(x, weight[:queries], _rows(bias, 0, queries))
            k = F.linear(context, weight[queries : queries + keys], _rows(bias, queries, queries + keys))
            v = F.linear(context, self.qkv.weight[queries + keys :], _rows(self.qkv.bias, queries + keys, None))
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        return self.q_norm(q), self.k_norm(k), v

    def project_packed(self, x: Tensor, prepared: "Prepared | None" = None) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, (b, n, (h + h_kv)·d), and values (b, n, h_kv·d), of the same tokens."""
        count = (self.num_heads + self.num_kv_heads) * self.head_dim
        if prepared is None or not (self.folds_basis or torch.is_grad_enabled()):
            qk, v = self.qkv(x).split([count, self.num_kv_heads * self.head_dim], dim=-1)
            return qk, v
        # Values apart: rotated queries and keys are new tensors, and in training these here need not be kept.
        return F.linear(x, prepared.weight, prepared.bias), self.project_values(x)

    def project_values(self, x: Tensor) -> Tensor:
        """Values alone, (b, n, h_kv·d)."""
        count = (self.num_heads + self.num_kv_heads) * self.head_dim
        return F.linear(x, self.qkv.weight[count:], _rows(self.qkv.bias, count, None))

    def _check_input(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.qkv.in_features:
            raise ValueError(f"x must be (b, n, {self.qkv.in_features}), got {tuple(x.shape)}")

    def merge(self, heads: Tensor) -> Tensor:
        """(b, h, n, d) to (b, n, dim)."""
        return self.out(heads.transpose(1, 2).flatten(2))

    def check_coords(self, coords: Tensor | None, context: Tensor | None, context_coords: Tensor | None) -> None:
        if self.encoding is None:
            if coords is not None or context_coords is not None:
                raise ValueError("this attention has no encoding, so coords would be ignored: leave them out")
        elif coords is None:
            raise ValueError("this attention has an encoding: pass coords (n, c) or (b, n, c)")
        elif (context is None) != (context_coords is None):
            raise ValueError("cross attention with an encoding needs both context and context_coords")


class Prepared(NamedTuple):
    """What a layer with an encoding needs of its parameters: the query and key rows of its projection, P folded into
    them if the layer folds, and Θ if its encoding has one."""

    weight: Tensor
    bias: Tensor | None
    frequencies: Tensor | None


def prepare(layers: Sequence[MultiHead]) -> list[Prepared]:
    """`Prepared` for each of these layers, all of which have an encoding. The layers of a model are prepared together:
    every kind of basis is formed, and every size of projection folded, in one computation."""
    own = [(i, layer.encoding) for i, layer in enumerate(layers) if isinstance(layer.encoding, Encoding)]
    theta = dict(zip((i for i, _ in own), form([e.frequencies for _, e in own]), strict=True))
    folding = [(i, e.basis) for i, e in own if layers[i].folds_basis]
    turns = form([basis for _, basis in folding])
    folded = dict(zip((i for i, _ in folding), fold_projections([layers[i] for i, _ in folding], turns), strict=True))
    prepared = []
    for i, layer in enumerate(layers):
        count = (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        plain = (layer.qkv.weight[:count], _rows(layer.qkv.bias, 0, count))
        prepared.append(Prepared(*folded.get(i, plain), theta.get(i)))
    return prepared


def is_whole(layer: MultiHead) -> bool:
    """Whether the layer's parameters are here in full. Sharded ones (FSDP) are gathered only inside its forward, where
    such a layer prepares itself."""
    weight = layer.qkv.weight
    return weight.ndim == 2 and not hasattr(weight, "device_mesh")


def fold_projections(layers: Sequence[MultiHead], turns: Sequence[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """(Pᵀ W, Pᵀ b) of the query and key rows of each layer, P (h_kv, d, d). Query heads share their key head's P."""
    sizes: dict[Hashable, list[int]] = {}
    for i, layer in enumerate(layers):
        bias = layer.qkv.bias is not None
        sizes.setdefault((layer.num_heads, layer.num_kv_heads, layer.qkv.weight.shape, bias), []).append(i)
    results: dict[int, tuple[Tensor, Tensor | None]] = {}
    for members in sizes.values():
        first = layers[members[0]]
        heads, d = first.num_heads + first.num_kv_heads, first.head_dim
        wanted = product_dtype(first.qkv.weight)  # what the projection would cast to, done for all layers at once
        with full_precision(first.qkv.weight):
            p = torch.stack([turns[i] for i in members])  # (layers, h_kv, d, d)
            shared = p.repeat_interleave(first.num_heads // first.num_kv_heads, dim=1)
            turn = torch.cat([shared, p], dim=1).mT  # (layers, h + h_kv, d, d)
            rows = torch.stack([layers[i].qkv.weight[: heads * d] for i in members]).to(turn.dtype)
            weight = turn @ rows.unflatten(1, (heads, d))
            weights = weight.flatten(1, 2).to(wanted).unbind()
            biases: Sequence[Tensor | None] = [None] * len(members)
            if first.qkv.bias is not None:
                offsets = torch.stack([layers[i].qkv.bias[: heads * d] for i in members]).to(turn.dtype)
                bias = turn @ offsets.unflatten(1, (heads, d))[..., None]
                biases = bias.flatten(1).to(wanted).unbind()
        results |= zip(members, zip(weights, biases, strict=True), strict=True)
    return [results[i] for i in range(len(layers))]


def turn_rows(p: Tensor, rows: Tensor) -> Tensor:
    """Pᵀ W, or Pᵀ b, of one projection: rows (heads·d, …), P (h_kv, d, d). Query heads share their key head's P."""
    with full_precision(rows):
        split = rows.to(p.dtype).unflatten(0, (len(p), -1, p.shape[-1]))  # (h_kv, groups, d, …)
        columns = split.flatten(3) if rows.ndim > 1 else split[..., None]
        return (p.mT[:, None] @ columns).reshape(rows.shape).to(rows.dtype)


def _rows(bias: Tensor | None, start: int, end: int | None) -> Tensor | None:
    return None if bias is None else bias[start:end]


def _qk_norm(kind: str | None, head_dim: int) -> nn.Module:
    if kind is None:
        return nn.Identity()
    if kind == "layer":
        return nn.LayerNorm(head_dim)
    if kind in QK_NORMS:
        return nn.RMSNorm(head_dim, elementwise_affine=kind == "rms_gain")
    raise ValueError(f"qk_norm must be None or one of {QK_NORMS}, got {kind!r}")
