# mypy: disable-error-code="untyped-decorator"
"""Every kernel as a PyTorch operator: schemas, implementations, fake tensors and derivatives.

With y = RoPE(a) x, a = r Θ and g the gradient at y, for plane j = (j, j + d/2):

    dx = RoPE(−a) g        da_j = g_{j+d/2} y_j − g_j y_{j+d/2}        dΘ = Σ_tokens r da        dr = Σ_planes Θ da

so backward needs the outputs and not the inputs. That costs no memory: attention keeps rotated queries and keys too.
For x = A⁻¹, d(A⁻¹) = −A⁻¹ dA A⁻¹.

With create_graph=True the derivative is computed by the torch formula instead, which can be differentiated again.
Forward mode and torch.func never come here: `stringpe.rotate.backend` sends them to the torch formula.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, library

_TAGS = (torch.Tag.pt2_compliant_tag,)

library.define(
    "stringpe::rotate_pair",
    "(Tensor q, Tensor k, Tensor coords, Tensor frequencies, int groups) -> (Tensor, Tensor)",
    tags=_TAGS,
)
library.define(
    "stringpe::rotate_one", "(Tensor x, Tensor coords, Tensor frequencies, int groups) -> Tensor", tags=_TAGS
)
library.define(
    "stringpe::rotate_packed",
    "(Tensor qk, Tensor coords, Tensor frequencies, int groups) -> (Tensor, Tensor)",
    tags=_TAGS,
)
library.define(
    "stringpe::project",
    "(Tensor x, Tensor weight, Tensor? bias, Tensor coords, Tensor frequencies) -> (Tensor, Tensor)",
    tags=_TAGS,
)
library.define("stringpe::inverse", "(Tensor a) -> Tensor", tags=_TAGS)
# Derivatives that are not needed come back as tensors without elements: a schema has no optional results.
library.define(
    "stringpe::rotate_pair_backward",
    "(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, Tensor coords, Tensor frequencies, int groups,"
    " bool need_coords, bool need_frequencies) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
library.define(
    "stringpe::rotate_one_backward",
    "(Tensor grad, Tensor x, Tensor coords, Tensor frequencies, int groups,"
    " bool need_coords, bool need_frequencies) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)
library.define(
    "stringpe::rotate_packed_backward",
    "(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, Tensor coords, Tensor frequencies, int groups,"
    " bool need_coords, bool need_frequencies) -> (Tensor, Tensor, Tensor)",
    tags=_TAGS,
)


def heads_of(qk: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Queries (b, groups·h, n, d) and keys (b, h, n, d) as views of a packed projection (b, n, (groups + 1)·h·d)."""
    h, _, planes = frequencies.shape
    heads = qk.unflatten(-1, ((groups + 1) * h, 2 * planes)).transpose(1, 2)
    return heads[:, : groups * h], heads[:, groups * h :]


def dense_like(x: Tensor) -> Tensor:
    """A new tensor of the shape (b, h, n, d) of x, dense in memory as (b, n, h, d) where x has heads inside tokens, as
    a projection leaves them, and as (b, h, n, d) otherwise. The layout of every result, real and fake."""
    b, h, n, d = x.shape
    if x.stride(1) < x.stride(2):
        return x.new_empty(b, n, h, d).transpose(1, 2)
    return x.new_empty(b, h, n, d)


# Results ---------------------------------------------------------------------------------------------------------


@library.impl("stringpe::rotate_pair", "default")
def _(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    from . import fused_rotation  # triton, only now

    q_out, k_out = dense_like(q), dense_like(k)
    fused_rotation.forward(q, k, q_out, k_out, coords, frequencies, groups)
    return q_out, k_out


@library.impl("stringpe::rotate_one", "default")
def _(x: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> Tensor:
    from . import fused_rotation

    out = dense_like(x)
    fused_rotation.forward(x, None, out, None, coords, frequencies, groups)
    return out


@library.impl("stringpe::rotate_packed", "default")
def _(qk: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    from . import fused_rotation

    q, k = heads_of(qk, frequencies, groups)
    q_out, k_out = dense_like(q), dense_like(k)
    fused_rotation.forward(q, k, q_out, k_out, coords, frequencies, groups)
    return q_out, k_out


@library.impl("stringpe::rotate_packed_backward", "default")
def _(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    coords: Tensor,
    frequencies: Tensor,
    groups: int,
    need_coords: bool,
    need_frequencies: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import fused_rotation

    d_qk = _packed_like(q, k)
    needs = (need_coords, need_frequencies)
    views = heads_of(d_qk, frequencies, groups)
    return d_qk, *fused_rotation.backward(grad_q, grad_k, q, k, *views, coords, frequencies, groups, *needs)


@library.impl("stringpe::rotate_pair_backward", "default")
def _(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    coords: Tensor,
    frequencies: Tensor,
    groups: int,
    need_coords: bool,
    need_frequencies: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from . import fused_rotation

    dq, dk = dense_like(q), dense_like(k)
    needs = (need_coords, need_frequencies)
    return dq, dk, *fused_rotation.backward(grad_q, grad_k, q, k, dq, dk, coords, frequencies, groups, *needs)


@library.impl("stringpe::rotate_one_backward", "default")
def _(
    grad: Tensor,
    x: Tensor,
    coords: Tensor,
    frequencies: Tensor,
    groups: int,
    need_coords: bool,
    need_frequencies: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    from . import fused_rotation

    dx = dense_like(x)
    needs = (need_coords, need_frequencies)
    return dx, *fused_rotation.backward(grad, None, x, None, dx, None, coords, frequencies, groups, *needs)


@library.impl("stringpe::project", "default")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    from . import fused_projection

    q, k = fused_projection.forward(x, weight, bias, coords, frequencies)
    return q.transpose(1, 2), k.transpose(1, 2)


@library.impl("stringpe::inverse", "default")
def _(a: Tensor) -> Tensor:
    from . import inverse

    return inverse.invert(a)


# Fake results: shapes, dtypes and strides ---------------------------------------------------------------------------


@library.register_fake("stringpe::rotate_pair")
def _(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return dense_like(q), dense_like(k)


@library.register_fake("stringpe::rotate_one")
def _(x: Tensor, *_: Any) -> Tensor:
    return dense_like(x)


@library.register_fake("stringpe::rotate_packed")
def _(qk: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    q, k = heads_of(qk, frequencies, groups)
    return dense_like(q), dense_like(k)


@library.register_fake("stringpe::rotate_packed_backward")
def _(
    grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _packed_like(q, k), *_fake_sums(coords, frequencies, *needs)


@library.register_fake("stringpe::project")
def _(x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    h, _, planes = frequencies.shape
    shape = (*x.shape[:2], h, 2 * planes)
    return x.new_empty(shape).transpose(1, 2), x.new_empty(shape).transpose(1, 2)


@library.register_fake("stringpe::inverse")
def _(a: Tensor) -> Tensor:
    return a.new_empty(a.shape)


def _packed_like(q: Tensor, k: Tensor) -> Tensor:
    """A new packed projection (b, n, (heads of q and k)·d), for the gradients of q and k."""
    b, heads, n, d = q.shape
    return q.new_empty(b, n, (heads + k.shape[1]) * d)


@library.register_fake("stringpe::rotate_pair_backward")
def _(
    grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return dense_like(q), dense_like(k), *_fake_sums(coords, frequencies, *needs)


@library.register_fake("stringpe::rotate_one_backward")
def _(
    grad: Tensor, x: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return dense_like(x), *_fake_sums(coords, frequencies, *needs)


def _fake_sums(coords: Tensor, frequencies: Tensor, need_coords: bool, need_frequencies: bool) -> tuple[Tensor, Tensor]:
    return (
        coords.new_empty(coords.shape if need_coords else 0),
        frequencies.new_empty(frequencies.shape if need_frequencies else 0),
    )


# Derivatives -------------------------------------------------------------------------------------------------------


def _save_pair(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, coords, frequencies, ctx.groups = inputs
    ctx.save_for_backward(*output, coords, frequencies)


def _save_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, coords, frequencies, ctx.groups = inputs
    ctx.save_for_backward(*output, coords, frequencies)


def _save_one(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, coords, frequencies, ctx.groups = inputs
    ctx.save_for_backward(output, coords, frequencies)


def _save_project(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, coords, frequencies = inputs
    ctx.save_for_backward(x, weight, *output, coords, frequencies)


def _pair_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[2:4]
    if torch.is_grad_enabled():
        sums, (dq, dk) = _differentiable(ctx.saved_tensors, ctx.groups, grad_q, grad_k)
    else:
        op = torch.ops.stringpe.rotate_pair_backward.default
        dq, dk, *sums = op(grad_q, grad_k, *ctx.saved_tensors, ctx.groups, *needs)
    return dq, dk, *_needed(sums, needs), None


def _packed_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[1:3]
    d_qk, sums = _packed_gradients(ctx.saved_tensors, ctx.groups, grad_q, grad_k, needs)
    return d_qk, *_needed(sums, needs), None


def _one_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[1:3]
    if torch.is_grad_enabled():
        sums, (dx,) = _differentiable(ctx.saved_tensors, ctx.groups, grad)
    else:
        dx, *sums = torch.ops.stringpe.rotate_one_backward.default(grad, *ctx.saved_tensors, ctx.groups, *needs)
    return dx, *_needed(sums, needs), None


def _project_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, *saved = ctx.saved_tensors
    need_x, need_weight, need_bias, *needs = ctx.needs_input_grad
    d_qk, sums = _packed_gradients(saved, 1, grad_q, grad_k, needs)
    rows = d_qk.flatten(0, 1)
    return (
        d_qk @ weight if need_x else None,
        rows.T @ x.flatten(0, 1) if need_weight else None,
        rows.sum(0) if need_bias else None,
        *_needed(sums, needs),
    )


def _save_inverse(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _inverse_backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return -(x.mT @ grad @ x.mT)


def _packed_gradients(
    saved: Sequence[Tensor], groups: int, grad_q: Tensor, grad_k: Tensor, needs: Sequence[bool]
) -> tuple[Tensor, Sequence[Tensor]]:
    """The gradient of a packed projection (b, n, (groups + 1)·h·d), and those of coords and frequencies."""
    if torch.is_grad_enabled():
        sums, back = _differentiable(saved, groups, grad_q, grad_k)
        return torch.cat([g.transpose(1, 2).flatten(2) for g in back], dim=-1), sums
    op = torch.ops.stringpe.rotate_packed_backward.default
    d_qk, *rest = op(grad_q, grad_k, *saved, groups, *needs)
    return d_qk, rest


def _differentiable(
    saved: Sequence[Tensor], groups: int, *grads: Tensor
) -> tuple[tuple[Tensor, Tensor], Sequence[Tensor]]:
    """The same derivative by the torch formula: what create_graph=True asks for."""
    from ..rotate import differentiable_gradients  # which imports this package

    *rotated, coords, frequencies = saved
    return differentiable_gradients(grads, rotated, coords, frequencies, (groups, 1)[: len(grads)])


def _needed(sums: Sequence[Tensor], needs: Sequence[bool]) -> Iterator[Tensor | None]:
    return (s if need else None for s, need in zip(sums, needs, strict=True))


def _no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "the kernel of the fused rotation's derivative was called in a graph that is differentiated again: "
        "use stringpe.use_backend('torch'), which has all derivatives"
    )


library.register_autograd("stringpe::rotate_pair", _pair_backward, setup_context=_save_pair)
library.register_autograd("stringpe::rotate_one", _one_backward, setup_context=_save_one)
library.register_autograd("stringpe::rotate_packed", _packed_backward, setup_context=_save_packed)
library.register_autograd("stringpe::project", _project_backward, setup_context=_save_project)
library.register_autograd("stringpe::inverse", _inverse_backward, setup_context=_save_inverse)
library.register_autograd("stringpe::rotate_packed_backward", _no_second_derivative)
library.register_autograd("stringpe::rotate_pair_backward", _no_second_derivative)
library.register_autograd("stringpe::rotate_one_backward", _no_second_derivative)
