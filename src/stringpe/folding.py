"""Folding: Pᵀ(W x) = (Pᵀ W) x, so the basis costs one small product with the weights in place of one with every token.

`fold_projection` is the only place that does it, for our layers and for those of others, in every forward and for good.
It needs a projection that is nothing but a matrix (`linear_obstacle`) and an encoding that follows it directly
(`norm_obstacle`); otherwise the projection is called as the module it is, and P multiplies tokens. `prepare` folds all
layers of a model at once.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from .basis import Identity
from .encoding import Encoding, PositionEncoding, form
from .rotate import full_precision, product_dtype

HALF = (torch.bfloat16, torch.float16)
"""The dtypes in which positions and frequencies lose their precision."""


class FoldableLayer(Protocol):
    """What folding needs of an attention layer: `stringpe.attention.MultiHead` has it."""

    encoding: PositionEncoding | None
    qkv: nn.Linear
    num_heads: int
    num_kv_heads: int
    fold: bool

    @property
    def query_key_rows(self) -> int: ...


class Prepared(NamedTuple):
    """What a layer with an encoding needs of its parameters, worked out once per forward (see `prepare`).

    weight, bias: the query and key rows of its projection, or None where the projection has to be called as a module.
    folded: whether P is in them. frequencies: Θ, or None if the encoding has none of its own.
    """

    weight: Tensor | None
    bias: Tensor | None
    folded: bool
    frequencies: Tensor | None


def prepare(layers: Sequence[FoldableLayer]) -> list[Prepared]:
    """`Prepared` for each of these layers, all of which have an encoding. The layers of a model are prepared together:
    every kind of basis is formed, and every size of projection folded, in one computation."""
    own = [(i, layer.encoding) for i, layer in enumerate(layers) if isinstance(layer.encoding, Encoding)]
    for _, encoding in own:
        check_precision(encoding)
    theta = dict(zip((i for i, _ in own), form([e.frequencies for _, e in own]), strict=True))
    called = [linear_obstacle(layer.qkv) is not None for layer in layers]
    folding = [(i, e.basis) for i, e in own if layers[i].fold and not called[i] and not isinstance(e.basis, Identity)]
    bases = form([basis for _, basis in folding])
    folded = dict(zip((i for i, _ in folding), fold_together([layers[i] for i, _ in folding], bases), strict=True))
    prepared = []
    for i, layer in enumerate(layers):
        if called[i]:
            prepared.append(Prepared(None, None, False, theta.get(i)))
            continue
        count = layer.query_key_rows
        plain = (layer.qkv.weight[:count], take_rows(layer.qkv.bias, 0, count))
        prepared.append(Prepared(*folded.get(i, plain), i in folded, theta.get(i)))
    return prepared


def is_whole(layer: FoldableLayer) -> bool:
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
        if isinstance(weight, Tensor) and weight.dtype in HALF:
            raise ValueError(
                f"the parameters of this encoding came as {weight.dtype}, in which frequencies lose their precision. "
                f"Under FSDP2 shard with MixedPrecisionPolicy(), without param_dtype, and use torch.autocast for "
                f"products in half precision; elsewhere keep them in float32, as encoding.to(dtype) does"
            )


def fold_together(layers: Sequence[FoldableLayer], bases: Sequence[Tensor]) -> list[tuple[Tensor, Tensor | None]]:
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


def take_rows(bias: Tensor | None, start: int, end: int | None) -> Tensor | None:
    """Some entries of a bias, where there is one."""
    return None if bias is None else bias[start:end]
