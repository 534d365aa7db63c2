"""Softmax attention over tokens at coordinates: self, cross, masked, causal and cached. Linear attention is in
`stringpe.linear_attention`."""

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .encoding import Encoding, PositionEncoding
from .projection import Heads, MultiHead, Prepared, prepare
from .rotate import can_project, product_dtype


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
            if keys.shape[0] != self.keys.shape[0]:
                held, given = self.keys.shape[0], keys.shape[0]
                raise ValueError(f"this cache holds a batch of {held}, got one of {given}: use one cache per batch")
            keys = torch.cat([self.keys, keys], dim=2)
            values = torch.cat([self.values, values], dim=2)
        self.keys, self.values = keys, values
        return keys, values


class Attention(MultiHead):
    """Multi-head softmax attention over tokens at coordinates: `attn(x, coords)`, or with keys from elsewhere
    `attn(x, coords, context, context_coords)`. x (b, n, dim), coords (n, c) or (b, n, c); returns (b, n, dim).

    fold: True puts P into the projection weights in every forward, False multiplies tokens; None folds where it can.
    dropout: of attention weights, in training. `**heads`: see `Heads`.

    Scores go through torch's `scaled_dot_product_attention`. Its fused kernels have first derivatives only: for second
    or forward-mode ones, and inside torch.func, use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` around the call.
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
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
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
        prepared: Prepared | None = None,
    ) -> Tensor:
        """mask: boolean, True where a query may look at a key: (b, m) for padded keys, (n, m), (b, n, m), or anything
            that broadcasts to (b, h, n, m). m counts the keys, those in the cache included.
        causal: a token sees itself and those before it, the cached ones included; a mask restricts it further.
        cache: append these tokens to it and attend to all of it.
        prepared: this layer's part of `prepare`, where that was done for all layers of a model at once.
        """
        self.check_inputs(x, coords, context, context_coords)
        if causal and context is not None:
            raise ValueError("causal is for self attention: drop it or the context")
        q, k, v = self._encode(x, coords, context, context_coords, prepared)
        if cache is not None:
            k, v = cache.append(k, v)
        n, m = q.shape[2], k.shape[2]
        if mask is not None:
            mask = broadcast_mask(mask, q.shape[0], self.num_heads, n, m)
        if causal and (mask is not None or n != m):  # the last n of m tokens ask: query i is token m − n + i
            seen = torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)
            mask, causal = seen if mask is None else mask & seen, False
        heads = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=mask, dropout_p=self.dropout if self.training else 0.0, is_causal=causal,
            scale=self.head_dim**-0.5,  # of the head before encoding: ⊗-STRING makes it wider
            enable_gqa=self.num_kv_heads != self.num_heads,
        )  # fmt: skip
        return self.merge(heads)

    def _encode(
        self,
        x: Tensor,
        coords: Tensor | None,
        context: Tensor | None,
        context_coords: Tensor | None,
        prepared: Prepared | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, with q and k encoded."""
        if self.encoding is None:
            return self.project(x, context)
        assert coords is not None
        prepared = prepare([self])[0] if prepared is None else prepared
        if context is None and self._rotates_packed(prepared):
            return self._encode_packed(x, coords, prepared)
        options = {} if prepared.frequencies is None else {"frequencies": prepared.frequencies}
        q, k, v = self.project(x, context, prepared)
        return *self.encoding(q, k, coords, context_coords, folded=prepared.folded, **options), v

    def _rotates_packed(self, prepared: Prepared) -> bool:
        """Whether nothing happens between the projection and the rotation."""
        plain = isinstance(self.encoding, Encoding) and isinstance(self.q_norm, nn.Identity)
        return plain and (prepared.folded or isinstance(self.encoding.basis, Identity))  # type: ignore[union-attr]

    def _encode_packed(self, x: Tensor, coords: Tensor, prepared: Prepared) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v of the same tokens, where the projection leaves queries and keys ready to be rotated."""
        theta, groups = prepared.frequencies, self.num_heads // self.num_kv_heads
        assert isinstance(self.encoding, Encoding)
        assert theta is not None
        if prepared.weight is not None and can_project(x, theta, groups):
            x = x.to(product_dtype(x))  # once for both projections, which keep it for backward
            q, k = self.encoding.project(x, prepared.weight, prepared.bias, coords, frequencies=theta)
            v = self.project_values(x)
        else:
            qk, v = self.project_packed(x, prepared)
            q, k = self.encoding.rotate_packed(qk, coords, groups=groups, frequencies=theta)
        return q, k, v.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def broadcast_mask(mask: Tensor, b: int, h: int, n: int, m: int) -> Tensor:
    """A boolean mask, True where a query may look at a key, with dimensions that broadcast to (b, h, n, m). It may be
    (b, m), for padded keys; (n, m); (b, n, m); or have four dimensions."""
    if mask.dtype != torch.bool:
        raise ValueError(
            f"mask must be boolean, True where a query may look at a key, got {mask.dtype}: use mask.bool() for zeros "
            f"and ones (a mask of numbers would be added to the scores)"
        )
    shape = tuple(mask.shape)
    if mask.ndim == 2 and shape == (n, m) == (b, m):
        raise ValueError(
            f"a mask of {shape} can mean (b, m) or (n, m) here: pass mask[:, None] for the keys of each sample, or "
            f"mask[None] for all samples"
        )
    if mask.ndim == 2:
        full = mask if shape[0] in (n, 1) else mask[:, None, None]
    else:
        full = mask[:, None] if mask.ndim == 3 else mask
    sizes = (1,) * (4 - full.ndim) + tuple(full.shape)
    if full.ndim > 4 or any(size not in (whole, 1) for size, whole in zip(sizes, (b, h, n, m), strict=True)):
        raise ValueError(
            f"mask must be (b, m) = ({b}, {m}), (n, m) = ({n}, {m}), (b, n, m) = ({b}, {n}, {m}), or broadcast to "
            f"(b, h, n, m) = ({b}, {h}, {n}, {m}); got {shape}"
        )
    return full
