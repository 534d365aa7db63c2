"""Folding: Pᵀ(W x) = (Pᵀ W) x, so the basis costs one small product with the weights in place of one with every token.

`fold_projection` is the only place that does it, for our layers and for those of others, in every forward and for good.
It needs a projection that is nothing but a matrix (`linear_obstacle`) and an encoding that follows it directly
(`norm_obstacle`); otherwise the projection is called as a module, and P multiplies tokens. `form_all` and
`fold_together` do for all layers of a model at once what each could do alone: for small matrices, launches cost more
than arithmetic.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .basis import Basis
from .encoding import Encoding
from .frequencies import Frequencies
from .rotate import full_precision, product_dtype

HALF = (torch.bfloat16, torch.float16)
"""The dtypes in which positions and frequencies lose their precision."""

Part = TypeVar("Part", Basis, Frequencies)
Item = TypeVar("Item")
Result = TypeVar("Result")


class Rows(NamedTuple):
    """Some rows of a projection, those of queries, keys or values: W (r, m) and b (r) or None."""

    weight: Tensor
    bias: Tensor | None

    def split(self, first: int) -> tuple["Rows", "Rows"]:
        """The rows before number `first` and the rest, as views."""
        weight, bias = self
        if bias is None:
            return Rows(weight[:first], None), Rows(weight[first:], None)
        return Rows(weight[:first], bias[:first]), Rows(weight[first:], bias[first:])


def fold_projection(p: Tensor, weight: Tensor, bias: Tensor | None) -> Rows:
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
            return Rows(folded, None)
        return Rows(folded, (turn @ bias.to(p.dtype).unflatten(-1, heads)[..., None]).flatten(-3))


def fold_together(rows: Sequence[Rows], bases: Sequence[Tensor]) -> list[Rows]:
    """`fold_projection` of the query and key rows of many layers with their P, in one product per size of projection.
    The results have the dtype that the projection multiplies in: one cast for all layers."""

    def fold(members: list[tuple[Rows, Tensor]]) -> list[Rows]:
        weights, biases = zip(*(r for r, _ in members), strict=True)
        weight, bias = fold_projection(
            torch.stack([p for _, p in members]),
            torch.stack(weights),
            None if biases[0] is None else torch.stack(biases),
        )
        dtype = product_dtype(weights[0])
        split = [None] * len(members) if bias is None else bias.to(dtype).unbind()
        return [Rows(*pair) for pair in zip(weight.to(dtype).unbind(), split, strict=True)]

    sizes = [(p.shape, r.weight.shape, r.bias is None) for r, p in zip(rows, bases, strict=True)]
    return in_groups(list(zip(rows, bases, strict=True)), sizes, fold)


def form_all(parts: Sequence[Part]) -> list[Tensor]:
    """P of many bases, or Θ of many frequencies, in one computation per kind."""
    return in_groups(parts, [part.kind() for part in parts], lambda members: members[0].form_together(members))


def in_groups(
    items: Sequence[Item], keys: Sequence[Hashable], function: Callable[[list[Item]], Sequence[Result]]
) -> list[Result]:
    """One result per item, in the order of the items, of a function that takes all items with equal keys at once."""
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    results: dict[int, Result] = {}
    for members in groups.values():
        results |= zip(members, function([items[i] for i in members]), strict=True)
    return [results[i] for i in range(len(items))]


def linear_obstacle(projection: nn.Module) -> str | None:
    """What makes a projection more than the matrix of its weight, so that it has to be called: a class of its own
    (LoRA, quantised layers, parametrisations), a hook, a replaced forward, or a weight that is not a plain tensor."""
    if type(projection) is not nn.Linear:
        return f"a {type(projection).__name__}"
    if change := _change_of_forward(projection):
        return f"an nn.Linear {change}"
    if hasattr(projection.weight, "__tensor_flatten__"):
        return f"an nn.Linear whose weight is a {type(projection.weight).__name__}"
    return None


def norm_obstacle(norm: nn.Module | None, name: str, orthogonal: bool = True) -> str | None:
    """Why P cannot pass a norm of queries or keys, as a clause: only a gain-free RMS norm commutes with P, and only
    with an orthogonal one."""
    if norm is None:
        return None
    where, kind = "between projection and encoding stands", type(norm).__name__
    if change := _change_of_forward(norm):
        return f"{where} {name} {kind} {change}, which need not commute with P"
    if type(norm) is nn.Identity:
        return None
    if type(norm) is not nn.RMSNorm or getattr(norm, "weight", None) is not None:
        return f"{where} {name} {kind} with its centring or gain, which does not commute with P"
    if not orthogonal:
        return f"{where} {name} {kind}, which does not commute with a basis that is not orthogonal"
    return None


def sharing_obstacle(model: nn.Module, rows: Sequence[Rows]) -> str | None:
    """Why rows of a layer in this model cannot be changed, as a clause: something else in it uses the same memory.
    None if nothing does."""
    modules = list(model.named_modules())  # each of them once
    uses = Counter(id(child) for _, module in modules for child in module._modules.values() if child is not None)
    places = [
        (f"{name}.{key}", uses[id(module)], parameter)
        for name, module in modules
        for key, parameter in module._parameters.items()
        if parameter is not None
    ]
    for part in (tensor for pair in rows for tensor in pair if tensor is not None):
        found = [(name, count) for name, count, parameter in places if _overlap(part, parameter)]
        if len(found) > 1 or any(count > 1 for _, count in found):
            names = " and ".join(name for name, _ in found)
            return f"its projection is used elsewhere in the model, too ({names}), which folding would change: copy it"
    return None


def _overlap(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in the same memory, wholly or in part."""
    if a.device.type == "meta" or a.device != b.device:
        return a is b
    return a.data_ptr() < b.data_ptr() + b.nbytes and b.data_ptr() < a.data_ptr() + a.nbytes


def _change_of_forward(module: nn.Module) -> str | None:
    """What has been added to a module that changes what a call does, as a clause: hooks, or another forward."""
    if module._forward_hooks or module._forward_pre_hooks:
        return "with forward hooks"
    if module._backward_hooks or module._backward_pre_hooks:
        return "with backward hooks"
    return "whose forward was replaced" if "forward" in module.__dict__ else None


def check_precision(encoding: Encoding) -> None:
    """Refuse an encoding with parameters in half precision, which would change its angles."""
    for part in (encoding.frequencies, encoding.basis):
        weight = getattr(part, "weight", None)
        if isinstance(weight, Tensor) and weight.dtype in HALF:
            raise ValueError(
                f"the parameters of this encoding came as {weight.dtype}, in which frequencies lose their precision. "
                f"Under FSDP2 shard with MixedPrecisionPolicy(), without param_dtype, and use torch.autocast for "
                f"products in half precision; elsewhere keep them in float32, as encoding.to(dtype) does"
            )
