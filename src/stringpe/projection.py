"""Queries, keys and values: the projections in front of attention, and the basis folded into them.

Folding: Pᵀ(W x) = (Pᵀ W) x, so the basis costs one small product with the weights in place of one with every token.
`fold_projection` is the only place that does it, for our layers and for hosts, in every forward and for good. It needs
a projection that is nothing but a matrix (`linear_obstacle`) and an encoding that follows it directly
(`norm_obstacle`); otherwise the projection is called as the module it is, and P multiplies tokens.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .basis import Identity
from .checks import check_tensor
from .encoding import Encoding, PositionEncoding, form
from .rotate import full_precision, product_dtype

QK_NORMS = ("rms", "rms_gain", "layer")
_HALF = (torch.bfloat16, torch.float16)


class Heads(TypedDict, total=False):
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

    weight, bias: the query and key rows of its projection, or None where the projection has to be called as a module.
    folded: whether P is in them. frequencies: Θ, or None if the encoding has none of its own.
    """

    weight: Tensor | None
    bias: Tensor | None
    folded: bool
    frequencies: Tensor | None


class MultiHead(nn.Module):
    """Projections, norms and encoding, shared by the attention layers. Abstract.

    encoding: an `Encoding` (or ⊗-STRING, LieRE), or None. With grouped queries it has one head per key head.
    fold: True puts P into the projection weights in every forward, False multiplies tokens; None folds where it can.

    `qkv` and `out` may be replaced by other modules of the same shapes, or carry hooks, parametrisations or quantised
    weights: whatever is more than a plain nn.Linear is called, not read.
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
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        head_dim = _check_sizes(dim, num_heads, num_kv_heads, head_dim)
        _check_encoding(encoding, head_dim, num_kv_heads)
        self.dim, self.num_heads, self.num_kv_heads, self.head_dim = dim, num_heads, num_kv_heads, head_dim
        self.encoding = encoding
        self.qkv = nn.Linear(dim, (num_heads + 2 * num_kv_heads) * head_dim, bias=bias)
        self.out = nn.Linear(num_heads * head_dim, dim, bias=bias)
        self.q_norm, self.k_norm = _qk_norm(qk_norm, head_dim), _qk_norm(qk_norm, head_dim)
        self.fold = self._resolve_fold(fold)

    def fold_obstacle(self) -> str | None:
        """Why P cannot move into the weights, as a clause; None if it can."""
        if obstacle := linear_obstacle(self.qkv):
            return f"its projection qkv is {obstacle}, so it has to be called: merge it into an nn.Linear first"
        orthogonal = not isinstance(self.encoding, Encoding) or self.encoding.basis.orthogonal
        norms = (norm_obstacle(norm, "the q/k norm", orthogonal) for norm in (self.q_norm, self.k_norm))
        return next((obstacle for obstacle in norms if obstacle), None)

    @torch.no_grad()
    def fold_basis(self, plain: Encoding) -> None:
        """Write P into the query and key rows, for good, and go on with an encoding that has none."""
        assert isinstance(self.encoding, Encoding)
        ((weight, bias),) = _fold_together([self], [self.encoding.basis()])
        self.qkv.weight[: len(weight)] = weight
        if bias is not None:
            self.qkv.bias[: len(bias)] = bias
        self.encoding, self.fold = plain, True

    @property
    def query_key_rows(self) -> int:
        """How many rows of the projection make queries and keys; those after them make values."""
        return (self.num_heads + self.num_kv_heads) * self.head_dim

    def _resolve_fold(self, fold: bool | None) -> bool:
        obstacle = self.fold_obstacle()
        if fold and obstacle:
            raise ValueError(f"cannot fold: {obstacle}. Use fold=False")
        if fold is None:
            wants_tokens = isinstance(self.encoding, Encoding) and self.encoding.basis.method != "matmul"
            return obstacle is None and not wants_tokens
        return fold

    def project(
        self, x: Tensor, context: Tensor | None = None, prepared: Prepared | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """q (b, h, n, d), k and v (b, h_kv, m, d); q and k in the basis if `prepared` has it folded."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        if context is None:
            qk, v = self.project_packed(x, prepared)
            q, k = qk.split([queries, keys], dim=-1)
        elif linear_obstacle(self.qkv):
            q, (k, v) = self.qkv(x)[..., :queries], self.qkv(context)[..., queries:].split(keys, dim=-1)
        else:
            weight, bias = (self.qkv.weight, self.qkv.bias) if prepared is None else (prepared.weight, prepared.bias)
            assert weight is not None  # a plain nn.Linear has its rows prepared
            q = F.linear(x, weight[:queries], _rows(bias, 0, queries))
            k = F.linear(context, weight[queries : queries + keys], _rows(bias, queries, queries + keys))
            v = self.project_values(context)
        q, k, v = (t.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        return self.q_norm(q), self.k_norm(k), v

    def project_packed(self, x: Tensor, prepared: Prepared | None = None) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, (b, n, (h + h_kv)·d), and values (b, n, h_kv·d), of the same tokens."""
        rows = prepared is not None and prepared.weight is not None
        if prepared is None or not rows or not (prepared.folded or torch.is_grad_enabled()):
            qk, v = self.qkv(x).split([self.query_key_rows, self.num_kv_heads * self.head_dim], dim=-1)
            return qk, v
        # Values apart: rotated queries and keys are new tensors, and in training these here need not be kept.
        assert prepared.weight is not None
        return F.linear(x, prepared.weight, prepared.bias), self.project_values(x)

    def project_values(self, x: Tensor) -> Tensor:
        """Values alone, (b, n, h_kv·d), of a projection that is a plain nn.Linear."""
        count = self.query_key_rows
        return F.linear(x, self.qkv.weight[count:], _rows(self.qkv.bias, count, None))

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
        if coords.dtype in _HALF or (context_coords is not None and context_coords.dtype in _HALF):
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


def prepare(layers: Sequence[MultiHead]) -> list[Prepared]:
    """`Prepared` for each of these layers, all of which have an encoding. The layers of a model are prepared together:
    every kind of basis is formed, and every size of projection folded, in one computation."""
    own = [(i, layer.encoding) for i, layer in enumerate(layers) if isinstance(layer.encoding, Encoding)]
    for _, encoding in own:
        check_precision(encoding)
    theta = dict(zip((i for i, _ in own), form([e.frequencies for _, e in own]), strict=True))
    called = [linear_obstacle(layer.qkv) is not None for layer in layers]
    folding = [(i, e.basis) for i, e in own if layers[i].fold and not called[i] and not isinstance(e.basis, Identity)]
    bases = form([basis for _, basis in folding])
    folded = dict(zip((i for i, _ in folding), _fold_together([layers[i] for i, _ in folding], bases), strict=True))
    prepared = []
    for i, layer in enumerate(layers):
        if called[i]:
            prepared.append(Prepared(None, None, False, theta.get(i)))
            continue
        count = layer.query_key_rows
        plain = (layer.qkv.weight[:count], _rows(layer.qkv.bias, 0, count))
        prepared.append(Prepared(*folded.get(i, plain), i in folded, theta.get(i)))
    return prepared


def is_whole(layer: MultiHead) -> bool:
    """Whether the layer's parameters are here in full. Sharded ones (FSDP) are gathered only inside its forward, where
    such a layer prepares itself."""
    weight = getattr(layer.qkv, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not hasattr(weight, "device_mesh")


def fold_projection(p: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """(Pᵀ W, Pᵀ b) of the rows that make queries and keys, in the dtype of P.

    p (…, h_kv, d, d), weight (…, (h + h_kv)·d, m), bias (…, (h + h_kv)·d). Query heads share their key head's P.
    """
    with full_precision(weight):
        kv_heads, d = p.shape[-3], p.shape[-1]
        groups = weight.shape[-2] // (kv_heads * d) - 1  # query heads per key head
        turn = torch.cat([p.repeat_interleave(groups, dim=-3), p], dim=-3).mT  # (…, h + h_kv, d, d)
        heads = turn.shape[-3:-1]
        folded = (turn @ weight.to(p.dtype).unflatten(-2, heads)).flatten(-3, -2)
        if bias is None:
            return folded, None
        return folded, (turn @ bias.to(p.dtype).unflatten(-1, heads)[..., None]).flatten(-3)


def linear_obstacle(projection: nn.Module) -> str | None:
    """What makes a projection more than the matrix that its weight is, so that it has to be called: a class of its own
    (LoRA, quantised layers, parametrisations), a hook, a forward of its own, or a weight that is not a plain tensor."""
    if type(projection) is not nn.Linear:
        return f"a {type(projection).__name__}"
    if projection._forward_hooks or projection._forward_pre_hooks:
        return "an nn.Linear with forward hooks"
    if projection._backward_hooks or projection._backward_pre_hooks:
        return "an nn.Linear with backward hooks"
    if "forward" in projection.__dict__:
        return "an nn.Linear whose forward was replaced"
    if hasattr(projection.weight, "__tensor_flatten__"):
        return f"an nn.Linear whose weight is a {type(projection.weight).__name__}"
    return None


def norm_obstacle(norm: nn.Module | None, name: str, orthogonal: bool = True) -> str | None:
    """Why P cannot pass a norm of queries or keys, as a clause: only a gain-free RMS norm commutes with P, and only
    with an orthogonal one."""
    if norm is None or isinstance(norm, nn.Identity):
        return None
    where, kind = "between projection and encoding stands", type(norm).__name__
    if not isinstance(norm, nn.RMSNorm) or getattr(norm, "weight", None) is not None:
        return f"{where} {name} {kind} with its centring or gain, which does not commute with P"
    if not orthogonal:
        return f"{where} {name} {kind}, which does not commute with a basis that is not orthogonal"
    return None


def check_precision(encoding: Encoding) -> None:
    """Refuse an encoding whose parameters arrive in half precision, which would move its angles."""
    for part in (encoding.frequencies, encoding.basis):
        weight = getattr(part, "weight", None)
        if isinstance(weight, Tensor) and weight.dtype in _HALF:
            raise ValueError(
                f"the parameters of this encoding came as {weight.dtype}, in which frequencies lose their precision. "
                f"Under FSDP2 shard with MixedPrecisionPolicy(), without param_dtype, and use torch.autocast for "
                f"products in half precision; elsewhere keep them in float32, as encoding.to(dtype) does"
            )


def _fold_together(layers: Sequence[MultiHead], bases: Sequence[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
    """`fold_projection` of each layer, in one product per size of projection."""
    sizes: dict[Hashable, list[int]] = {}
    for i, layer in enumerate(layers):
        has_bias = layer.qkv.bias is not None
        sizes.setdefault((layer.num_heads, layer.num_kv_heads, layer.qkv.weight.shape, has_bias), []).append(i)
    results: dict[int, tuple[Tensor, Tensor | None]] = {}
    for members in sizes.values():
        first = layers[members[0]]
        count = first.query_key_rows
        wanted = product_dtype(first.qkv.weight)  # what the projection would cast to, done for all layers at once
        weights = torch.stack([layers[i].qkv.weight[:count] for i in members])
        has_bias = first.qkv.bias is not None
        biases = torch.stack([layers[i].qkv.bias[:count] for i in members]) if has_bias else None
        weight, bias = fold_projection(torch.stack([bases[i] for i in members]), weights, biases)
        split: Sequence[Tensor | None] = [None] * len(members) if bias is None else bias.to(wanted).unbind()
        results |= zip(members, zip(weight.to(wanted).unbind(), split, strict=True), strict=True)
    return [results[i] for i in range(len(layers))]


def _rows(bias: Tensor | None, start: int, end: int | None) -> Tensor | None:
    return None if bias is None else bias[start:end]


def _check_sizes(dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    """The head dim, once the sizes fit each other."""
    for name, value in (("dim", dim), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if head_dim is None and dim % num_heads:
        raise ValueError(f"dim={dim} does not divide into {num_heads} heads: pass head_dim")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}")
    head_dim = dim // num_heads if head_dim is None else head_dim
    if head_dim < 1:
        raise ValueError(f"head_dim must be at least 1, got {head_dim}")
    return head_dim


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
    if kind == "layer":
        return nn.LayerNorm(head_dim)
    if kind in QK_NORMS:
        return nn.RMSNorm(head_dim, elementwise_affine=kind == "rms_gain")
    raise ValueError(f"qk_norm must be None or one of {QK_NORMS}, got {kind!r}")
