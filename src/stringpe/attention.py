"""Attention over tokens at coordinates: softmax (self, cross, cached) and linear."""

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .encoding import Encoding, PositionEncoding
from .frequencies import random_frames
from .projection import Heads, MultiHead, Prepared, prepare
from .rotate import full_precision


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
        q, k, v = self._encoded(x, coords, context, context_coords, prepared)
        scale = self.head_dim**-0.5  # of the head before encoding: ⊗-STRING makes it wider
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

    def _encoded(
        self,
        x: Tensor,
        coords: Tensor | None,
        context: Tensor | None,
        context_coords: Tensor | None,
        prepared: "Prepared | None",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, with q and k encoded."""
        if self.encoding is None:
            return self.project(x, context)
        assert coords is not None
        prepared = prepare([self])[0] if prepared is None else prepared
        options = {} if prepared.frequencies is None else {"frequencies": prepared.frequencies}
        if context is None and self._rotates_packed:
            assert isinstance(self.encoding, Encoding)
            self._check_input(x)
            qk, v = self.project_packed(x, prepared)
            groups = self.num_heads // self.num_kv_heads
            q, k = self.encoding.rotate_packed(qk, coords, groups=groups, **options)
            return q, k, v.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = self.project(x, context, prepared)
        return *self.encoding(q, k, coords, context_coords, folded=self.fold, **options), v

    @property
    def _rotates_packed(self) -> bool:
        """Whether nothing happens between the projection and the rotation."""
        plain = isinstance(self.encoding, Encoding) and isinstance(self.q_norm, nn.Identity)
        return plain and (self.fold or isinstance(self.encoding.basis, Identity))  # type: ignore[union-attr]


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
        """Draw new random directions."""
        if self.features == "softmax" and not self.projection.is_meta:
            self.projection.copy_(random_directions(*self.projection.shape))

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
            turned = self._encoded(q, k, *places, whole=False) if self.encode == "after" else (q, k)
            heads = linear_mix(q, k, v.to(wide), turned)
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
        return F.relu(x) if self.features == "relu" else positive_features(x, self.projection, keys=keys)


def linear_mix(q: Tensor, k: Tensor, v: Tensor, turned: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Σ_j (φ(q)·φ(k_j)) v_j / Σ_j φ(q)·φ(k_j) in O(n): features q (b, h, n, f), k (b, h_kv, m, f), v (b, h_kv, m, d) to
    (b, h, n, d). turned: features to score with, where they differ from those that normalise."""
    groups = q.shape[1] // k.shape[1]
    turned_q, turned_k = turned or (q, k)
    summary = (turned_k.mT @ v).repeat_interleave(groups, dim=1)  # (b, h, f, d)
    total = k.sum(2).repeat_interleave(groups, dim=1)[..., None]  # (b, h, f, 1)
    return (turned_q @ summary) / (q @ total).clamp_min(torch.finfo(q.dtype).tiny)


def positive_features(x: Tensor, directions: Tensor, *, keys: bool = False) -> Tensor:
    """The Performer's features, whose products estimate exp(q·k / √d): x (b, h, n, d), directions (f, d), (b, h, n, f)."""
    x = x * x.shape[-1] ** -0.25
    exponent = x @ directions.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
    # A common factor of all keys, or of one query, cancels in the quotient: take out the largest.
    largest = exponent.detach().amax((-2, -1) if keys else -1, keepdim=True)
    return torch.exp(exponent - largest)


def random_directions(count: int, d: int) -> Tensor:
    """(count, d): orthogonal in blocks of d, with the lengths of Gaussian vectors."""
    blocks = random_frames(math.ceil(count / d), d).flatten(0, 1)[:count]
    return blocks * torch.randn(count, d).norm(dim=1, keepdim=True)
