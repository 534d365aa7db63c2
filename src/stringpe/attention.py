"""Softmax attention over tokens at coordinates: self, cross, masked, causal, packed and cached. Linear attention is in
`stringpe.linear_attention`."""

from collections.abc import Sequence
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .checks import check_count
from .encoding import Encoding, PositionEncoding
from .packing import Packing, as_packing, attend_packed
from .projection import Heads, MultiHead, Prepared, prepare
from .rotate import can_project, product_dtype


class KVCache:
    """Keys and values of the tokens seen so far. Keys are stored encoded: each token is rotated once, at its own
    coordinates, and never again.

    Where no gradient is recorded, tokens are written into room that doubles when it runs out, so that n tokens one by
    one cost O(n) copies and not O(n²). capacity: tokens to make room for at once.
    """

    def __init__(self, capacity: int = 0) -> None:
        check_count("capacity", capacity, least=0)
        self.capacity = capacity
        self._room: tuple[Tensor, Tensor] | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def keys(self) -> Tensor | None:
        """(b, h_kv, tokens so far, d), encoded; None before the first."""
        return None if self._room is None else self._room[0][:, :, : self._length]

    @property
    def values(self) -> Tensor | None:
        """(b, h_kv, tokens so far, d); None before the first."""
        return None if self._room is None else self._room[1][:, :, : self._length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add (b, h_kv, n, d) and return everything so far."""
        if self._room is not None and keys.shape[0] != self._room[0].shape[0]:
            held, given = self._room[0].shape[0], keys.shape[0]
            raise ValueError(f"this cache holds a batch of {held}, got one of {given}: use one cache per batch")
        recorded = torch.is_grad_enabled() and (keys.requires_grad or values.requires_grad)
        held = self._room is not None and torch.is_grad_enabled() and any(t.requires_grad for t in self._room)
        length = self._length + keys.shape[2]
        if recorded or held:  # autograd keeps what it has seen: nothing is written into it
            new = (keys, values)
            self._room = (
                new
                if self._room is None
                else tuple(  # type: ignore[assignment]
                    torch.cat([old[:, :, : self._length], more], dim=2)
                    for old, more in zip(self._room, new, strict=True)
                )
            )
        else:
            self._make_room(keys, values, length)
            assert self._room is not None
            for room, more in zip(self._room, (keys, values), strict=True):
                room[:, :, self._length : length] = more
        self._length = length
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def _make_room(self, keys: Tensor, values: Tensor, length: int) -> None:
        """Tensors that hold `length` tokens, with those of before in them."""
        if self._room is not None and self._room[0].shape[2] >= length and not self._room[0].requires_grad:
            return
        room = max(length, 2 * self._length, self.capacity)
        fresh = tuple(t.new_empty(*t.shape[:2], room, t.shape[3]) for t in (keys, values))
        if self._room is not None:
            for new, old in zip(fresh, self._room, strict=True):
                new[:, :, : self._length] = old[:, :, : self._length].detach()
        self._room = (fresh[0], fresh[1])


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
        lengths: Packing | Sequence[int] | Tensor | None = None,
        context_lengths: Packing | Sequence[int] | Tensor | None = None,
        cache: KVCache | None = None,
        prepared: Prepared | None = None,
    ) -> Tensor:
        """mask: boolean, True where a query may look at a key: (b, m) for padded keys, (n, m), (b, n, m), or anything
            that broadcasts to (b, h, n, m). m counts the keys, those in the cache included.
        causal: a token sees itself and those before it, the cached ones included; a mask restricts it further.
        lengths: of sequences packed end to end in x (1, N, dim); each attends to itself alone, as `stringpe.packing`
            says. context_lengths: likewise of the context, one per sequence of x.
        cache: append these tokens to it and attend to all of it.
        prepared: this layer's part of `prepare`, where that was done for all layers of a model at once.
        """
        self.check_inputs(x, coords, context, context_coords)
        if causal and context is not None:
            raise ValueError("causal is for self attention: drop it or the context")
        packings = check_packing(x, context, lengths, context_lengths, mask=mask, cache=cache)
        q, k, v = self._encode(x, coords, context, context_coords, prepared)
        dropout = self.dropout if self.training else 0.0
        scale = self.head_dim**-0.5  # of the head before encoding: ⊗-STRING makes it wider
        if packings is not None:
            return self.merge(attend_packed(q, k, v, *packings, scale=scale, causal=causal, dropout=dropout))
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
            attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale,
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


def check_packing(
    x: Tensor,
    context: Tensor | None,
    lengths: Packing | Sequence[int] | Tensor | None,
    context_lengths: Packing | Sequence[int] | Tensor | None,
    **unpacked: object,
) -> tuple[Packing, Packing] | None:
    """The packings of queries and keys, or None where nothing is packed. unpacked: what cannot go with lengths."""
    if lengths is None and context_lengths is None:
        return None
    given = [name for name, value in unpacked.items() if value is not None]
    if given:
        raise ValueError(
            f"lengths and {given[0]} do not go together: leave masked tokens out of the packed sequence, and use one "
            f"cache per sequence"
        )
    if lengths is None or (context is None) != (context_lengths is None):
        raise ValueError("packed cross attention needs both lengths (of x) and context_lengths (of context)")
    queries = as_packing(lengths, x)
    if context is None:
        return queries, queries
    assert context_lengths is not None
    keys = as_packing(context_lengths, context, "context")
    if len(keys) != len(queries):
        raise ValueError(
            f"x packs {len(queries)} sequences and the context {len(keys)}: give one length of each per sequence"
        )
    return queries, keys


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
