"""Linear attention: Σ_j w_ij v_j / Σ_j w_ij with weights w_ij = φ(q_i)·φ(k_j), in O(n).

The features φ are positive, so the normaliser cannot vanish:

    "softmax"  the Performer's random features, whose products estimate exp(q·k / √d), plus 1e-12;
    "relu"     relu(x), and beside it one feature √ε s(x) with s(x) = √(|relu(x)|² + δ²), ε = 1/16 and δ = 10⁻³.

The last one is needed where φ(q) and φ(k) are rotated (encode="after"). A rotated product is as large as
|φ(q)| |φ(k)| even where φ(q)·φ(k) is zero, so the normaliser must not be smaller than a share of the norms. This
feature is not rotated and adds ε s(q) s(k_j) to the weight and to the normaliser. Hence, whatever the inputs,

    |out| ≤ (1 + 1/ε) max |v| = 17 max |v|   with encode="after",     |out| ≤ max |v|   otherwise,

and scores stay exactly invariant, since norms do not see a rotation.

⊗-STRING needs no planes, so it fits every feature map. "before" makes heads of 2md channels, whose features estimate
exp(q·k κ / √d) with κ = (1/m) Σ cos ω·(r_i − r_j); "after" multiplies the features, φ(q)·φ(k) κ, exactly invariant, and
as |κ| ≤ 1, |out| ≤ max |v|.

In the causal form a token needs of all tokens before it only two sums, Σ φ(k_j) v_jᵀ and Σ φ(k_j), whatever their
number: `LinearCache` holds them.
"""

import math
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import AttentionInputs, HeadOptions, MultiHead
from .encoding import Encoding, PositionEncoding
from .frequencies import random_frames
from .kv_cache import LinearCache
from .outer_product import Outer
from .packing import Packing, key_mask
from .rotate import full_precision

FEATURES = ("softmax", "relu")
NORM_SHARE = 1 / 16  # ε: at random, φ(q)·φ(k) is about a third of the product of the norms
LEAST_NORM = 1e-3  # δ
LEAST_FEATURE = 1e-12
BOUND = 1 + 1 / NORM_SHARE  # of |out| / max |v|
CHUNK = 64  # tokens that causal attention treats at once


class LinearAttention(MultiHead):
    """Attention in O(n), called as `Attention` is. Packed sequences are treated one after the other.

    features: "softmax", the Performer's positive random features, which estimate the softmax kernel; or "relu".
    encode: "before" applies the whole R(r) = P RoPE Pᵀ before the feature map, so that φ depends on P and P adds
        capacity (section 3.2). For softmax features, scores are then invariant in expectation. "after" rotates φ(q) and
        φ(k), since R(r) does not commute with φ: scores are exactly invariant, and the normaliser is not rotated;
        "relu" only, since random features have no planes (⊗-STRING, which needs none, takes both).
    num_features: random features per head, for "softmax". `**heads`: see `HeadOptions`.

    `causal` and `cache` are for "relu": softmax features of a key are scaled by the largest of all keys.
    """

    cache_kind = LinearCache
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
        **heads: Unpack[HeadOptions],
    ):
        super().__init__(dim, num_heads, encoding, fold=False, **heads)
        if features not in FEATURES:
            raise ValueError(f"features must be 'softmax' or 'relu', got {features!r}")
        if encoding is not None and not isinstance(encoding, (Encoding, Outer)):
            raise ValueError(
                f"linear attention takes an Encoding, whose R(r) is a rotation, or ⊗-STRING, not "
                f"{type(encoding).__name__}"
            )
        rotated = features == "softmax" and not isinstance(encoding, Outer)
        if encode not in ("before", "after") or (encode == "after" and rotated):
            raise ValueError(
                f"encode must be 'before', or 'after' with features='relu', got {encode!r} with {features!r}"
            )
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}")
        self.features, self.encode = features, encode
        if features == "softmax":  # persistent: the random directions belong to the function that was trained
            width = encoding.encoded_dim if isinstance(encoding, Outer) and encode == "before" else self.head_dim
            self.register_buffer("projection", torch.empty(num_features, width))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new random directions."""
        if self.features == "softmax" and not self.projection.is_meta:
            self.projection.copy_(random_directions(*self.projection.shape))

    def fold_obstacle(self) -> str | None:
        return (
            "between projection and encoding stands the feature map of linear attention, which is not linear, "
            "so P has to multiply tokens"
        )

    def attend(self, inputs: AttentionInputs) -> Tensor:
        x, coords, context, context_coords, mask, causal, packings, cache, _ = inputs
        if packings is not None:
            return self._attend_each(inputs, *packings)
        if (causal or cache is not None) and self.features == "softmax":
            option = "causal" if causal else "cache"
            raise ValueError(f"{option} is for self attention with features='relu': drop {option} or change it")
        q, k, v = self.project(x, context)
        mask = None if mask is None else key_mask(mask, k.shape[0], k.shape[2], k.device)
        places = (coords, coords if context is None else context_coords)
        if self.encode == "before":
            q, k = self._rotate(q, k, *places, whole=True)
        with full_precision(x):  # sums over all tokens: not in half precision
            wide = torch.promote_types(v.dtype, torch.float32)
            q, k = self._map_features(q.to(wide)), self._map_features(k.to(wide), keys=True, mask=mask)
            scoring = self._encode_features(q, k, *places) if self.encode == "after" else None
            heads = linear_mix(q, k, v.to(wide), scoring, mask=mask, causal=causal, cache=cache)
        return self.merge(heads.to(v.dtype))

    def _attend_each(self, inputs: AttentionInputs, queries: Packing, keys: Packing) -> Tensor:
        """Every packed sequence alone: each has sums over keys, and their scale, of its own."""
        x, coords, context, context_coords = inputs[:4]
        nothing = (None,) * len(queries)
        parts = (
            queries.split(x, 1),
            nothing if coords is None else queries.split(coords, -2),
            nothing if context is None else keys.split(context, 1),
            nothing if context_coords is None else keys.split(context_coords, -2),
        )
        return torch.cat([self(*part, causal=inputs.causal) for part in zip(*parts, strict=True)], dim=1)

    def _rotate(
        self, q: Tensor, k: Tensor, coords: Tensor | None, key_coords: Tensor | None, *, whole: bool
    ) -> tuple[Tensor, Tensor]:
        if self.encoding is None or coords is None or key_coords is None:
            return q, k
        groups = self.num_heads // self.num_kv_heads
        if isinstance(self.encoding, Outer):
            return self.encoding.rotate(q, coords, groups=groups), self.encoding.rotate(k, key_coords)
        assert isinstance(self.encoding, Encoding)
        return (
            self.encoding.rotate(q, coords, groups=groups, whole=whole),
            self.encoding.rotate(k, key_coords, whole=whole),
        )

    def _encode_features(
        self, q: Tensor, k: Tensor, coords: Tensor | None, key_coords: Tensor | None
    ) -> tuple[Tensor, Tensor] | None:
        """The features to score with, encoded: a rotation acts on all but the last, which stands for the norm; ⊗-STRING
        on all of them."""
        if self.encoding is None or coords is None or key_coords is None:
            return None
        if isinstance(self.encoding, Outer):
            groups = self.num_heads // self.num_kv_heads
            return self.encoding.multiply(q, coords, groups), self.encoding.multiply(k, key_coords)
        d = self.head_dim
        rotated = self._rotate(q[..., :d], k[..., :d], coords, key_coords, whole=False)
        scoring_q, scoring_k = (torch.cat([r, f[..., d:]], dim=-1) for r, f in zip(rotated, (q, k), strict=True))
        return scoring_q, scoring_k

    def _map_features(self, x: Tensor, *, keys: bool = False, mask: Tensor | None = None) -> Tensor:
        if self.features == "relu":
            return relu_features(x)
        return positive_features(x, self.projection, keys, mask, head_dim=self.head_dim)


def linear_mix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scoring: tuple[Tensor, ...] | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    cache: LinearCache | None = None,
) -> Tensor:
    """Σ_j (φ(q)·φ(k_j)) v_j / Σ_j φ(q)·φ(k_j) in O(n): features q (b, h, n, f), k (b, h_kv, m, f), v (b, h_kv, m, d) to
    (b, h, n, d).

    scoring: features of q and k to score with, where they differ from those that normalise. mask: boolean (b, m), True
    for the keys to attend to; without any, the result is zero. causal: query i attends to keys 0 to i. cache: earlier
    tokens, to which all queries attend and to which these keys are then added.
    """
    scoring_q, scoring_k = scoring or (q, k)
    if mask is not None:
        visible = mask[:, None, :, None]
        k, scoring_k = k * visible, scoring_k * visible
    ones = torch.ones_like(v[..., :1])
    total = _weighted_sum(q, k, ones, causal)
    mixed = _weighted_sum(scoring_q, scoring_k, v, causal)
    if cache is not None:
        cache.check_fit(scoring_k, v)
        if cache.values is not None and cache.weights is not None:
            total = total + _multiply_sums(q, cache.weights)
            mixed = mixed + _multiply_sums(scoring_q, cache.values)
        cache.add(scoring_k, k, v)
    return mixed / torch.where(total > 0, total, 1)


def _multiply_sums(q: Tensor, sums: Tensor) -> Tensor:
    """Queries (b, h, n, f) times sums over keys (b, h_kv, f, e): (b, h, n, e)."""
    return q @ sums.repeat_interleave(q.shape[1] // sums.shape[1], dim=1)


def _weighted_sum(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Σ_j (q_i·k_j) v_j over all j, or over j ≤ i: (b, h, n, f), (b, h_kv, m, f), (b, h_kv, m, e) to (b, h, n, e)."""
    groups, n = q.shape[1] // k.shape[1], q.shape[2]
    if not causal:
        return _multiply_sums(q, k.mT @ v)
    k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    q, k, v = (F.pad(t, (0, 0, 0, -n % CHUNK)).unflatten(2, (-1, CHUNK)) for t in (q, k, v))  # (b, h, chunks, 64, ·)
    earlier = F.pad((k.mT @ v).cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))  # sums of earlier chunks (b, h, chunks, f, e)
    return (q @ earlier + (q @ k.mT).tril() @ v).flatten(2, 3)[:, :, :n]


def relu_features(x: Tensor) -> Tensor:
    """relu(x) and one more feature, √ε √(|relu(x)|² + δ²): (b, h, n, d) to (b, h, n, d + 1)."""
    positive = F.relu(x)
    norm = (positive.square().sum(-1, keepdim=True) + LEAST_NORM**2).sqrt()
    return torch.cat([positive, math.sqrt(NORM_SHARE) * norm], dim=-1)


def positive_features(
    x: Tensor, directions: Tensor, keys: bool = False, mask: Tensor | None = None, *, head_dim: int = 0
) -> Tensor:
    """The Performer's features, whose products estimate exp(q·k / √d): x (b, h, n, d) and directions (f, d) to (b, h,
    n, f). mask: boolean (b, n), True for tokens that count. head_dim: d, where the encoding made x wider than a
    head."""
    x = x * (head_dim or x.shape[-1]) ** -0.25
    exponent = x @ directions.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
    if mask is not None:
        exponent = exponent.masked_fill(~mask[:, None, :, None], torch.finfo(x.dtype).min)
    if not exponent.numel():  # an empty tensor has no largest entry
        return exponent
    # A common factor of all keys, or of one query, cancels in the quotient: take out the largest.
    largest = exponent.detach().amax((-2, -1) if keys else -1, keepdim=True)
    return torch.exp(exponent - largest) + LEAST_FEATURE


def random_directions(count: int, d: int) -> Tensor:
    """(count, d): orthogonal in blocks of d, with the lengths of Gaussian vectors."""
    blocks = random_frames(math.ceil(count / d), d).flatten(0, 1)[:count]
    return blocks * torch.randn(count, d).norm(dim=1, keepdim=True)
