"""Softmax attention over tokens at coordinates: self, cross, masked, causal, packed and cached.

`MultiHead` has what softmax and linear attention (`stringpe.linear_attention`) share: the projections to queries, keys
and values, their norms, and the encoding, whose basis is folded into the projections where that is possible
(`stringpe.folding`). `prepare` works out for all layers of a model at once what depends on their parameters alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .checks import check_attention_sizes, check_choice, check_flag, check_tensor
from .encoding import Encoding, PositionEncoding
from .folding import HALF, Rows, check_precision, fold_together, form_all, linear_obstacle, norm_obstacle
from .kv_cache import KVCache, LinearCache
from .packing import Packing, attend_packed, broadcast_mask, check_packing
from .rotate import can_project, product_dtype
from .softmax_attention import causal_mask, softmax_attention

QK_NORMS = ("rms", "rms_gain", "layer")


class HeadOptions(TypedDict, total=False):
    """The options that the attention layers share.

    num_kv_heads: key and value heads, a divisor of num_heads (grouped queries).
    head_dim: channels per head; dim / num_heads unless given.
    qk_norm: None, "rms" (no gain), "rms_gain" or "layer", over each head of q and k, before the encoding.
    bias: whether the projections have one.
    """

    num_kv_heads: int | None
    head_dim: int | None
    qk_norm: str | None
    bias: bool


class Prepared(NamedTuple):
    """What a layer with an encoding needs of its parameters, worked out once per forward (see `prepare`).

    rows: for queries and keys, and for values; None where the projection is more than a matrix and has to be called.
    folded: whether P is in the former. frequencies: Θ, or None if the encoding has none of its own.
    """

    rows: tuple[Rows, Rows] | None
    folded: bool
    frequencies: Tensor | None


class AttentionInputs(NamedTuple):
    """The arguments of one call, once they fit each other: see `MultiHead.forward`. packings: of queries and keys."""

    x: Tensor
    coords: Tensor | None = None
    context: Tensor | None = None
    context_coords: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False
    packings: tuple[Packing, Packing] | None = None
    cache: Any = None
    prepared: Prepared | None = None


class MultiHead(nn.Module, ABC):
    """Attention over tokens at coordinates: projections, norms and encoding. Abstract: subclasses `attend`.

    encoding: an `Encoding` (or ⊗-STRING, LieRE), or None. With grouped queries it has one head per key head.
    fold: True puts P into the projection weights in every forward, False multiplies tokens; None folds where it can.

    `qkv` and `out` may be replaced by other modules of the same shapes, or carry hooks, parametrisations or quantised
    weights: whatever is more than a plain nn.Linear is called as a module, and its weight is not read.
    """

    cache_kind: ClassVar[type[KVCache | LinearCache]]

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
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        head_dim = check_attention_sizes(dim, num_heads, num_kv_heads, head_dim)
        _check_encoding(encoding, head_dim, num_kv_heads)
        self.dim, self.num_heads, self.num_kv_heads, self.head_dim = dim, num_heads, num_kv_heads, head_dim
        self.encoding = encoding
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * head_dim, bias=bias)
        self.out = nn.Linear(num_heads * head_dim, dim, bias=bias)
        self.q_norm, self.k_norm = _qk_norm(qk_norm, head_dim), _qk_norm(qk_norm, head_dim)
        self.fold = self._resolve_fold(fold)

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
        cache: Any = None,
        prepared: Prepared | None = None,
    ) -> Tensor:
        """x (b, n, dim) at coords (n, c) or (b, n, c), attending to itself or to context (b, m, dim) at context_coords;
        returns (b, n, dim).

        mask: boolean, True where a query may look at a key: (b, m) for padded keys, (n, m), (b, n, m), or anything
            that broadcasts to (b, h, n, m). m counts the keys, those in the cache included. For linear attention, whose
            queries all see the same keys: (b, m) or (b, 1, 1, m), where m counts the new keys alone.
        causal: a token sees itself and those before it, the cached ones included; a mask restricts it further.
        lengths: of sequences packed end to end in x (1, N, dim); each attends to itself alone, as `stringpe.packing`
            says. context_lengths: likewise of the context, one per sequence of x.
        cache: for self attention, a `KVCache` (linear: a `LinearCache`): attend to its tokens too, and add these.
        prepared: this layer's part of `prepare`, where that was done for all layers of a model at once.
        """
        self.check_inputs(x, coords, context, context_coords)
        check_flag("causal", causal)
        if causal and context is not None:
            raise ValueError("causal is for self attention: drop it or the context")
        if cache is not None and not isinstance(cache, self.cache_kind):
            raise TypeError(f"cache must be a stringpe.{self.cache_kind.__name__}, got {type(cache).__name__}")
        if cache is not None and context is not None:
            raise ValueError(
                "cache is for self attention: each call would append the context to it once more. Leave the cache out, "
                "and pass the whole context in every call"
            )
        packed = lengths is not None or context_lengths is not None
        packings = check_packing(x, context, lengths, context_lengths, mask=mask, cache=cache) if packed else None
        return self.attend(AttentionInputs(x, coords, context, context_coords, mask, causal, packings, cache, prepared))

    @abstractmethod
    def attend(self, inputs: AttentionInputs) -> Tensor:
        """What `forward` returns."""

    def fold_obstacle(self) -> str | None:
        """Why P cannot move into the weights, as a clause; None if it can."""
        if obstacle := linear_obstacle(self.qkv):
            return f"its projection qkv is {obstacle}, so it has to be called: merge it into an nn.Linear first"
        orthogonal = not isinstance(self.encoding, Encoding) or self.encoding.basis.orthogonal
        norms = (norm_obstacle(norm, "the q/k norm", orthogonal) for norm in (self.q_norm, self.k_norm))
        return next((obstacle for obstacle in norms if obstacle), None)

    def folds(self) -> bool:
        """Whether there is a P that goes into the weights in every forward, with the norms that the layer has now."""
        with_basis = isinstance(self.encoding, Encoding) and not isinstance(self.encoding.basis, Identity)
        return self.fold and with_basis and self.fold_obstacle() is None

    @torch.no_grad()
    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows permanently, and use `plain`, the encoding without P, from then on."""
        assert isinstance(self.encoding, Encoding)
        query_key, _ = self.rows()
        (folded,) = fold_together([query_key], [self.encoding.basis()])
        query_key.weight.copy_(folded.weight)
        if query_key.bias is not None and folded.bias is not None:
            query_key.bias.copy_(folded.bias)
        self.encoding, self.fold = plain, True

    def _resolve_fold(self, fold: bool | None) -> bool:
        obstacle = self.fold_obstacle()
        if fold and obstacle:
            raise ValueError(f"cannot fold: {obstacle}. Use fold=False")
        if fold is None:  # a basis with another method than a product was asked for a solve or an FFT per token
            per_token = isinstance(self.encoding, Encoding) and self.encoding.basis.method != "matmul"
            return obstacle is None and not per_token
        return fold

    @property
    def sizes(self) -> list[int]:
        """How many rows of `qkv` make queries, keys and values."""
        return [self.num_heads * self.head_dim] + [self.num_kv_heads * self.head_dim] * 2

    def rows(self) -> tuple[Rows, Rows]:
        """The rows of `qkv` for queries and keys, and those for values, where it is nothing but a matrix."""
        return Rows(self.qkv.weight, self.qkv.bias).split(sum(self.sizes[:2]))

    def project(
        self, x: Tensor, context: Tensor | None = None, rows: tuple[Rows, Rows] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, h_kv, m, d), after the norms of q and k. rows: as of `project_packed`."""
        queries, keys, values = self.sizes
        if context is None:
            qk, v = self.project_packed(x, rows)
            q, k = qk.split([queries, keys], dim=-1)
        elif linear_obstacle(self.qkv):
            q, (k, v) = self.qkv(x)[..., :queries], self.qkv(context)[..., queries:].split([keys, values], dim=-1)
        else:
            query_key, value = self.rows() if rows is None else rows
            query, key = query_key.split(queries)
            q, k, v = F.linear(x, *query), F.linear(context, *key), F.linear(context, *value)
        q, k, v = (self.split_heads(t) for t in (q, k, v))
        return self.q_norm(q), self.k_norm(k), v

    def project_packed(self, x: Tensor, rows: tuple[Rows, Rows] | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, (b, n, (h + h_kv)·d), and values (b, n, h_kv·d), of the same tokens: in two
        products with these rows, or in one, by calling `qkv`, where there are none."""
        if rows is not None:
            return F.linear(x, *rows[0]), F.linear(x, *rows[1])
        queries, keys, values = self.sizes
        qk, v = self.qkv(x).split([queries + keys, values], dim=-1)
        return qk, v

    def split_heads(self, x: Tensor) -> Tensor:
        """(b, n, h·d) to (b, h, n, d)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """(b, h, n, d) to (b, n, dim)."""
        return self.out(heads.transpose(1, 2).flatten(2))

    def check_inputs(
        self, x: Tensor, coords: Tensor | None, context: Tensor | None, context_coords: Tensor | None
    ) -> None:
        """Refuse tokens and coordinates that do not fit this layer or each other."""
        self._check_tokens(x, "x")
        if context is not None:
            self._check_tokens(context, "context")
            if context.shape[0] != x.shape[0]:
                batches = f"{context.shape[0]} and x of {x.shape[0]}"
                raise ValueError(f"context has a batch of {batches}: they must be the same")
        if self.encoding is None:
            if coords is not None or context_coords is not None:
                raise ValueError("this attention has no encoding, so coords would be ignored: leave them out")
            return
        if coords is None:
            raise ValueError("this attention has an encoding: pass coords (n, c) or (b, n, c)")
        if (context is None) != (context_coords is None):
            raise ValueError("cross attention with an encoding needs both context and context_coords")
        check_tensor("coords", coords)
        if context_coords is not None:
            check_tensor("context_coords", context_coords)
        if coords.dtype in HALF or (context_coords is not None and context_coords.dtype in HALF):
            raise ValueError(
                "coords came in half precision, in which positions collide: pass them as float32. Under FSDP2 use "
                "MixedPrecisionPolicy(cast_forward_inputs=False), which leaves them as they are"
            )

    def _check_tokens(self, x: Tensor, name: str) -> None:
        if isinstance(x, Tensor) and x.is_nested:
            raise ValueError(
                f"{name} is a nested tensor: concatenate its sequences into (1, N, dim) and pass their lengths, or pad "
                f"it with x.to_padded_tensor(0.0) and pass a mask (b, n)"
            )
        check_tensor(name, x)
        if x.ndim != 3 or x.shape[-1] != self.dim:
            raise ValueError(f"{name} must be (b, n, {self.dim}), got {tuple(x.shape)}")
        if type(self.qkv) is nn.Linear and product_dtype(x) != product_dtype(self.qkv.weight):
            weights = self.qkv.weight.dtype
            raise ValueError(
                f"{name} is {x.dtype} and the weights are {weights}: use {name}.to({weights}), or cast the layer"
            )


class Attention(MultiHead):
    """Softmax attention: `attn(x, coords)`, or with keys from elsewhere `attn(x, coords, context, context_coords)`.

    dropout: of attention weights, in training. fold: as in `MultiHead`. `**heads`: see `HeadOptions`.

    Scores go through torch's `scaled_dot_product_attention`, except where `stringpe.softmax_attention` has a kernel of
    its own. Torch's fused kernels have first derivatives only: for second or forward-mode ones, and inside torch.func,
    use `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)` around the call.
    """

    cache_kind = KVCache

    def __init__(
        self,
        dim: int,
        num_heads: int,
        encoding: PositionEncoding | None = None,
        *,
        fold: bool | None = None,
        dropout: float = 0.0,
        **heads: Unpack[HeadOptions],
    ):
        super().__init__(dim, num_heads, encoding, fold=fold, **heads)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
        self.dropout = dropout

    def attend(self, inputs: AttentionInputs) -> Tensor:
        q, k, v = self._encode(inputs)
        mask, causal, packings, cache = inputs.mask, inputs.causal, inputs.packings, inputs.cache
        dropout = self.dropout if self.training else 0.0
        scale = self.head_dim**-0.5  # of the head before encoding: ⊗-STRING makes it wider
        if packings is not None:
            return self.merge(attend_packed(q, k, v, *packings, scale=scale, causal=causal, dropout=dropout))
        n, m = q.shape[2], k.shape[2] + (0 if cache is None else len(cache))
        if mask is not None:
            mask = broadcast_mask(mask, q.shape[0], self.num_heads, n, m, q.device)
        if cache is not None:  # last: a call that is refused leaves the cache as it was
            k, v = cache.append(k, v)
        if causal and (mask is not None or n != m):  # query i is token m − n + i, one of the last n of m
            seen = causal_mask(n, m, q.device)
            mask, causal = seen if mask is None else mask & seen, False
        return self.merge(softmax_attention(q, k, v, scale=scale, mask=mask, causal=causal, dropout=dropout))

    def _encode(self, inputs: AttentionInputs) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v, with q and k encoded."""
        x, coords, context, context_coords = inputs[:4]
        encoding = self.encoding
        if encoding is None:
            return self.project(x, context)
        assert coords is not None
        rows, folded, theta = inputs.prepared or prepare([self])[0]
        # In training, values are a product of their own: rotated queries and keys are new tensors, so that those from
        # before the rotation are not kept for backward.
        apart = rows if folded or torch.is_grad_enabled() else None
        if theta is None or context is not None or not self._rotates_first(folded):
            q, k, v = self.project(x, context, apart)
            options = {} if theta is None else {"folded": folded, "frequencies": theta}
            return *encoding(q, k, coords, context_coords, **options), v
        assert isinstance(encoding, Encoding)
        groups = self.num_heads // self.num_kv_heads
        if rows is not None and can_project(x, theta, groups):
            x = x.to(product_dtype(x))  # once for both products, which keep it for backward
            query_key, value = rows
            q, k = encoding.project(x, *query_key, coords, frequencies=theta)
            v = F.linear(x, *value)
        else:
            qk, v = self.project_packed(x, apart)
            q, k = encoding.rotate_packed(qk, coords, groups=groups, frequencies=theta)
        return self.q_norm(q), self.k_norm(k), self.split_heads(v)

    def _rotates_first(self, folded: bool) -> bool:
        """Whether queries and keys may be rotated as they leave the projection. Norms may then come after: those that
        commute with P commute with every rotation."""
        assert isinstance(self.encoding, Encoding)
        in_basis = folded or isinstance(self.encoding.basis, Identity)
        return in_basis and not any(norm_obstacle(norm, "the q/k norm") for norm in (self.q_norm, self.k_norm))


def prepare(layers: Sequence[MultiHead]) -> list[Prepared]:
    """`Prepared` for each of these layers, all of which have an encoding. The layers of a model are prepared together:
    every kind of basis is formed, and every size of projection folded, in one computation."""
    encodings = {i: layer.encoding for i, layer in enumerate(layers) if isinstance(layer.encoding, Encoding)}
    for encoding in encodings.values():
        check_precision(encoding)
    theta = dict(zip(encodings, form_all([e.frequencies for e in encodings.values()]), strict=True))
    rows = {i: layer.rows() for i, layer in enumerate(layers) if linear_obstacle(layer.qkv) is None}
    folding = [i for i in rows if i in encodings and layers[i].folds()]
    bases = form_all([encodings[i].basis for i in folding])
    for i, folded in zip(folding, fold_together([rows[i][0] for i in folding], bases), strict=True):
        rows[i] = folded, rows[i][1]
    return [Prepared(rows.get(i), i in folding, theta.get(i)) for i in range(len(layers))]


def prepare_together(layers: Sequence[nn.Module]) -> Sequence[Prepared | None]:
    """`prepare` for all layers of a model; None for each of them where one is not softmax attention with an encoding,
    or is sharded (FSDP): its parameters are gathered only inside its forward, where it prepares itself."""
    encoded = [layer for layer in layers if isinstance(layer, Attention) and layer.encoding is not None]
    if len(encoded) < len(layers) or any(_is_sharded(layer) for layer in encoded):
        return [None] * len(layers)
    return prepare(encoded)


def _is_sharded(layer: MultiHead) -> bool:
    weight = getattr(layer.qkv, "weight", None)
    return not isinstance(weight, Tensor) or weight.ndim != 2 or hasattr(weight, "device_mesh")


def _check_encoding(encoding: object, head_dim: int, num_kv_heads: int) -> None:
    if encoding is None:
        return
    if not isinstance(encoding, PositionEncoding):
        call = f"stringpe.create({encoding!r}, head_dim={head_dim}, num_heads={num_kv_heads})"
        advice = f"build it with {call}" if isinstance(encoding, str) else "build one with stringpe.create"
        raise ValueError(f"encoding must be an encoding object, got {encoding!r}: {advice}")
    if (encoding.head_dim, encoding.num_heads) != (head_dim, num_kv_heads):
        raise ValueError(
            f"the encoding has {encoding.num_heads} heads of dim {encoding.head_dim}, this attention needs "
            f"{num_kv_heads} of dim {head_dim} (one per key head)"
        )


def _qk_norm(kind: str | None, head_dim: int) -> nn.Module:
    if kind is None:
        return nn.Identity()
    check_choice("qk_norm, if not None,", kind, QK_NORMS)
    if kind == "layer":
        return nn.LayerNorm(head_dim)
    return nn.RMSNorm(head_dim, elementwise_affine=kind == "rms_gain")
