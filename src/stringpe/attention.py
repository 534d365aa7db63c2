"""Attention layers that take coordinates: softmax (self, cross, cached) and linear. The only place that folds during
training.

Folding: Pᵀ(W x) = (Pᵀ W) x, so the basis costs one small product with the weights in place of one with every token. It
needs the encoding to follow the projection directly. A gain-free RMS norm may stand between, since it commutes with P;
a LayerNorm or a gain may not, and P then multiplies tokens.
"""

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .encoding import Encoding, PositionEncoding, form
from .frequencies import random_frames
from .rotate import full_precision

QK_NORMS = ("rms", "rms_gain", "layer")


class KVCache:
    """Keys and values of the tokens seen so far. Keys are stored encoded: each token is rotated once, at its own
    coordinates, and never again."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add (b, h, n, d) and return everything so far."""
        if self.keys is not None and self.values is not None:
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


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
        for norm in (self.q_norm, self.k_norm):
            if isinstance(norm, nn.LayerNorm) or (isinstance(norm, nn.RMSNorm) and norm.elementwise_affine):
                return f"the q/k norm {type(norm).__name__} with its centring or gain, which does not commute with P"
        return None

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
        if x.ndim != 3 or x.shape[-1] != self.qkv.in_features:
            raise ValueError(f"x must be (b, n, {self.qkv.in_features}), got {tuple(x.shape)}")
        weight, bias = (self.qkv.weight, self.qkv.bias) if prepared is None else (prepared.weight, prepared.bias)
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        wv, bv = self.qkv.weight[queries + keys :], _rows(self.qkv.bias, queries + keys, None)
        if context is not None:
            q = F.linear(x, weight[:queries], _rows(bias, 0, queries))
            k = F.linear(context, weight[queries : queries + keys], _rows(bias, queries, queries + keys))
            v = F.linear(context, wv, bv)
        elif prepared is None or not (self.folds_basis or torch.is_grad_enabled()):
            q, k, v = self.qkv(x).split([queries, keys, keys], dim=-1)
        else:  # values apart: rotated queries and keys are new tensors, and in training these here need not be kept
            q, k = F.linear(x, weight, bias).split([queries, keys], dim=-1)
            v = F.linear(x, wv, bv)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        return self.q_norm(q), self.k_norm(k), v

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


class Attention(MultiHead):
    """Multi-head softmax attention over tokens at coordinates: `attn(x, coords)`, or with keys from elsewhere
    `attn(x, coords, context, context_coords)`. x (b, n, dim), coords (n, c) or (b, n, c); returns (b, n, dim).

    fold: True puts P into the projection weights in every forward, False multiplies tokens; None folds where it can.
    dropout: of attention weights, in training. `**heads`: see `Heads`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        encoding: PositionEncoding | None = None,
        *,
        fold: bool | None = None,
        dropout: float = 0.0,
        **heads: Unpack[Heads],
    ):
        super().__init__(dim, num_heads, encoding, fold=fold, **heads)
        self.dropout = dropout

    def forward(
        self,
        x: Tensor,
        coords: Tensor | None = None,
        context: Tensor | None = None,
        context_coords: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        cache: KVCache | None = None,
        prepared: "Prepared | None" = None,
    ) -> Tensor:
        """mask: boolean, True where a query may look at a key, broadcastable to (b, h, n, m). causal: a token sees
        itself and those before it, the cached ones included. cache: append these tokens to it and attend to all of it.
        prepared: this layer's part of `prepare`, where that was done for all layers of a model at once.
        """
        self.check_coords(coords, context, context_coords)
        if causal and (context is not None or mask is not None):
            raise ValueError("causal is for self attention and builds its own mask: drop it, the mask or the context")
        if self.encoding is not None and prepared is None:
            prepared = prepare([self])[0]
        q, k, v = self.project(x, context, prepared)
        scale = self.head_dim**-0.5  # of the head before encoding: ⊗-STRING makes it wider
        if self.encoding is not None:
            assert prepared is not None
            options = {} if prepared.frequencies is None else {"frequencies": prepared.frequencies}
            q, k = self.encoding(q, k, coords, context_coords, folded=self.fold, **options)
        if cache is not None:
            k, v = cache.append(k, v)
        if causal and q.shape[2] != k.shape[2]:  # the last n of m tokens ask: query i is token m − n + i
            seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
            mask, causal = seen.tril(k.shape[2] - q.shape[2]), False
        heads = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=causal, scale=scale,
            enable_gqa=self.num_kv_heads != self.num_heads,
        )  # fmt: skip
        return self.merge(heads)


class LinearAttention(MultiHead):
    """Attention in O(n): φ(q)ᵀ Σ_j φ(k_j) v_jᵀ, normalised, over the same arguments as `Attention`.

    features: "softmax", the Performer's positive random features, which estimate the softmax kernel; or "relu".
    encode: "before" applies the whole R(r) = P RoPE Pᵀ to tokens ahead of the feature map, so that φ sees P and P adds
        capacity (section 3.2). For softmax features, scores are then invariant in expectation. "after" rotates φ(q) and
        φ(k), as R(r) commutes with nothing nonlinear: scores are exactly invariant, the normaliser stays unrotated and
        positive; "relu" only, since random features have no planes.
    num_features: random features a head, for "softmax". `**heads`: see `Heads`.
    """

    projection: Tensor

    def __init__(
        self,
        dim: int,
        num_heads: int,
        encoding: PositionEncoding | None = None,
        *,
        features: str = "softmax",
        encode: str = "before",
        num_features: int = 256,
        **heads: Unpack[Heads],
    ):
        super().__init__(dim, num_heads, encoding, fold=False, **heads)
        if features not in ("softmax", "relu"):
            raise ValueError(f"features must be 'softmax' or 'relu', got {features!r}")
        if encode not in ("before", "after") or (encode == "after" and features == "softmax"):
            raise ValueError(
                f"encode must be 'before', or 'after' with features='relu', got {encode!r} with {features!r}"
            )
        if encoding is not None and not isinstance(encoding, Encoding):
            raise ValueError(
                f"linear attention takes an Encoding, whose R(r) is a rotation, not {type(encoding).__name__}"
            )
        self.features, self.encode = features, encode
        if features == "softmax":  # persistent: the random directions belong to the function that was trained
            self.register_buffer("projection", torch.empty(num_features, self.head_dim))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new random directions, orthogonal in blocks of d, with the lengths of Gaussian vectors."""
        if self.features == "softmax" and not self.projection.is_meta:
            count, d = self.projection.shape
            blocks = random_frames(math.ceil(count / d), d).flatten(0, 1)[:count]
            self.projection.copy_(blocks * torch.randn(count, d).norm(dim=1, keepdim=True))

    def fold_obstacle(self) -> str | None:
        return "the feature map of linear attention, which is not linear"

    def forward(
        self,
        x: Tensor,
        coords: Tensor | None = None,
        context: Tensor | None = None,
        context_coords: Tensor | None = None,
    ) -> Tensor:
        self.check_coords(coords, context, context_coords)
        q, k, v = self.project(x, context)
        places = (coords, coords if context is None else context_coords)
        if self.encode == "before":
            q, k = self._encoded(q, k, *places, whole=True)
        with full_precision(x):  # sums over all tokens: not in half precision
            wide = torch.promote_types(v.dtype, torch.float32)
            q, k = self._feature_map(q.to(wide)), self._feature_map(k.to(wide), keys=True)
            turned_q, turned_k = self._encoded(q, k, *places, whole=False) if self.encode == "after" else (q, k)
            groups = self.num_heads // self.num_kv_heads
            summary = (turned_k.mT @ v.to(wide)).repeat_interleave(groups, dim=1)  # (b, h, features, d)
            total = k.sum(2).repeat_interleave(groups, dim=1)[..., None]  # (b, h, features, 1)
            heads = (turned_q @ summary) / (q @ total).clamp_min(torch.finfo(wide).tiny)
        return self.merge(heads.to(v.dtype))

    def _encoded(
        self, q: Tensor, k: Tensor, coords: Tensor | None, key_coords: Tensor | None, *, whole: bool
    ) -> tuple[Tensor, Tensor]:
        if self.encoding is None or coords is None or key_coords is None:
            return q, k
        assert isinstance(self.encoding, Encoding)
        groups = self.num_heads // self.num_kv_heads
        return (
            self.encoding.rotate(q, coords, groups=groups, whole=whole),
            self.encoding.rotate(k, key_coords, whole=whole),
        )

    def _feature_map(self, x: Tensor, keys: bool = False) -> Tensor:
        if self.features == "relu":
            return F.relu(x)
        x = x * self.head_dim**-0.25
        exponent = x @ self.projection.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
        # A common factor of all keys, or of one query, cancels in the quotient: take out the largest.
        largest = exponent.detach().amax((-2, -1) if keys else -1, keepdim=True)
        return torch.exp(exponent - largest)


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
        wanted = _autocast_dtype(first.qkv.weight)  # what the projection would cast to, done for all layers at once
        with full_precision(first.qkv.weight):
            p = torch.stack([turns[i] for i in members])  # (layers, h_kv, d, d)
            shared = p.repeat_interleave(first.num_heads // first.num_kv_heads, dim=1)
            turn = torch.cat([shared, p], dim=1).mT  # (layers, h + h_kv, d, d)
            rows = torch.stack([layers[i].qkv.weight[: heads * d] for i in members]).to(turn.dtype)
            weight = turn @ rows.unflatten(1, (heads, d))
            weights = weight.flatten(1, 2).to(wanted or first.qkv.weight.dtype).unbind()
            biases: Sequence[Tensor | None] = [None] * len(members)
            if first.qkv.bias is not None:
                offsets = torch.stack([layers[i].qkv.bias[: heads * d] for i in members]).to(turn.dtype)
                bias = turn @ offsets.unflatten(1, (heads, d))[..., None]
                biases = bias.flatten(1).to(wanted or first.qkv.bias.dtype).unbind()
        results |= zip(members, zip(weights, biases, strict=True), strict=True)
    return [results[i] for i in range(len(layers))]


def _autocast_dtype(x: Tensor) -> torch.dtype | None:
    kind = x.device.type
    on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on and x.dtype == torch.float32 else None


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
