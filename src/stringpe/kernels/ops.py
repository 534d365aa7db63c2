"""Every kernel as a PyTorch operator: schemas, launches, fake tensors and derivatives.

With y = RoPE(a) x, a = r Θ and g the gradient at y, for plane j = (j, j + d/2):

    dx = RoPE(−a) g        da_j = g_{j+d/2} y_j − g_j y_{j+d/2}        dΘ = Σ_tokens r da        dr = Σ_planes Θ da

so backward needs the outputs and not the inputs. That costs no memory: attention keeps rotated queries and keys too.
For x = A⁻¹, d(A⁻¹) = −A⁻¹ dA A⁻¹.

With create_graph=True the derivative is computed by the torch formula instead, which can be differentiated again.
Forward mode and torch.func are not supported here: `stringpe.rotate.backend` chooses the torch formula for them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .operator import Operator, dense_like


def heads_of(qk: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """Queries (b, groups·h, n, d) and keys (b, h, n, d) as views of a packed projection (b, n, (groups + 1)·h·d)."""
    h, _, planes = frequencies.shape
    heads = qk.unflatten(-1, ((groups + 1) * h, 2 * planes)).transpose(1, 2)
    return heads[:, : groups * h], heads[:, groups * h :]


def _packed_like(q: Tensor, k: Tensor) -> Tensor:
    """A new packed projection (b, n, (heads of q and k)·d), for the gradients of q and k."""
    b, heads, n, d = q.shape
    return q.new_empty(b, n, (heads + k.shape[1]) * d)


def _fake_sums(coords: Tensor, frequencies: Tensor, need_coords: bool, need_frequencies: bool) -> tuple[Tensor, Tensor]:
    return (
        coords.new_empty(coords.shape if need_coords else 0),
        frequencies.new_empty(frequencies.shape if need_frequencies else 0),
    )


def _needed(sums: Sequence[Tensor], needs: Sequence[bool]) -> Iterator[Tensor | None]:
    return (s if need else None for s, need in zip(sums, needs, strict=True))


def _differentiable(
    saved: Sequence[Tensor], groups: int, *grads: Tensor
) -> tuple[tuple[Tensor, Tensor], Sequence[Tensor]]:
    """The same derivative by the torch formula: for create_graph=True."""
    from ..rotate import differentiable_gradients  # rotate imports this package

    *rotated, coords, frequencies = saved
    return differentiable_gradients(grads, rotated, coords, frequencies, (groups, 1)[: len(grads)])


def _no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "the kernel of the fused rotation's derivative was called in a graph that is differentiated again: "
        "use stringpe.use_backend('torch'), which has all derivatives"
    )


# Derivatives of the rotations -----------------------------------------------------------------------------------------
# Sums that are not needed come back as tensors without elements: a schema has no optional results.


def _launch_pair_backward(
    grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from . import fused_rotation  # triton, only now

    dq, dk = dense_like(q), dense_like(k)
    return (
        dq,
        dk,
        *fused_rotation.backward(grad_q, grad_k, q, k, dq, dk, coords, frequencies, groups, needs[0], needs[1]),
    )


def _fake_pair_backward(
    grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return dense_like(q), dense_like(k), *_fake_sums(coords, frequencies, *needs)


def _launch_packed_backward(
    grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from . import fused_rotation

    d_qk = _packed_like(q, k)
    views = heads_of(d_qk, frequencies, groups)
    return d_qk, *fused_rotation.backward(grad_q, grad_k, q, k, *views, coords, frequencies, groups, needs[0], needs[1])


def _fake_packed_backward(
    grad_q: Tensor, grad_k: Tensor, q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _packed_like(q, k), *_fake_sums(coords, frequencies, *needs)


def _launch_one_backward(
    grad: Tensor, x: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    from . import fused_rotation

    dx = dense_like(x)
    return dx, *fused_rotation.backward(grad, None, x, None, dx, None, coords, frequencies, groups, needs[0], needs[1])


def _fake_one_backward(
    grad: Tensor, x: Tensor, coords: Tensor, frequencies: Tensor, groups: int, *needs: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return dense_like(x), *_fake_sums(coords, frequencies, *needs)


_rotate_pair_backward = Operator(
    "rotate_pair_backward(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, Tensor coords, Tensor frequencies,"
    " int groups, bool need_coords, bool need_frequencies) -> (Tensor, Tensor, Tensor, Tensor)",
    _launch_pair_backward,
    _fake_pair_backward,
    _no_second_derivative,
)
_rotate_packed_backward = Operator(
    "rotate_packed_backward(Tensor grad_q, Tensor grad_k, Tensor q, Tensor k, Tensor coords, Tensor frequencies,"
    " int groups, bool need_coords, bool need_frequencies) -> (Tensor, Tensor, Tensor)",
    _launch_packed_backward,
    _fake_packed_backward,
    _no_second_derivative,
)
_rotate_one_backward = Operator(
    "rotate_one_backward(Tensor grad, Tensor x, Tensor coords, Tensor frequencies,"
    " int groups, bool need_coords, bool need_frequencies) -> (Tensor, Tensor, Tensor)",
    _launch_one_backward,
    _fake_one_backward,
    _no_second_derivative,
)


# Queries and keys of the same tokens ----------------------------------------------------------------------------------


def _launch_pair(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    from . import fused_rotation

    q_out, k_out = dense_like(q), dense_like(k)
    fused_rotation.forward(q, k, q_out, k_out, coords, frequencies, groups)
    return q_out, k_out


def _fake_pair(q: Tensor, k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return dense_like(q), dense_like(k)


def _save_pair(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, _, coords, frequencies, ctx.groups = inputs
    ctx.save_for_backward(*output, coords, frequencies)


def _pair_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[2:4]
    if torch.is_grad_enabled():
        sums, (dq, dk) = _differentiable(ctx.saved_tensors, ctx.groups, grad_q, grad_k)
    else:
        dq, dk, *sums = _rotate_pair_backward(grad_q, grad_k, *ctx.saved_tensors, ctx.groups, *needs)
    return dq, dk, *_needed(sums, needs), None


rotate_pair = Operator(
    "rotate_pair(Tensor q, Tensor k, Tensor coords, Tensor frequencies, int groups) -> (Tensor, Tensor)",
    _launch_pair,
    _fake_pair,
    _pair_backward,
    _save_pair,
)


# The same, side by side as a projection leaves them -------------------------------------------------------------------


def _launch_packed(qk: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    return _launch_pair(*heads_of(qk, frequencies, groups), coords, frequencies, groups)


def _fake_packed(qk: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    return _fake_pair(*heads_of(qk, frequencies, groups))


def _save_packed(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, coords, frequencies, ctx.groups = inputs
    ctx.save_for_backward(*output, coords, frequencies)


def _packed_backward(ctx: Any, grad_q: Tensor, grad_k: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[1:3]
    d_qk, sums = _packed_gradients(ctx.saved_tensors, ctx.groups, grad_q, grad_k, needs)
    return d_qk, *_needed(sums, needs), None


def _packed_gradients(
    saved: Sequence[Tensor], groups: int, grad_q: Tensor, grad_k: Tensor, needs: Sequence[bool]
) -> tuple[Tensor, Sequence[Tensor]]:
    """The gradient of a packed projection (b, n, (groups + 1)·h·d), and those of coords and frequencies."""
    if torch.is_grad_enabled():
        sums, back = _differentiable(saved, groups, grad_q, grad_k)
        return torch.cat([g.transpose(1, 2).flatten(2) for g in back], dim=-1), sums
    d_qk, *rest = _rotate_packed_backward(grad_q, grad_k, *saved, groups, *needs)
    return d_qk, rest


rotate_packed = Operator(
    "rotate_packed(Tensor qk, Tensor coords, Tensor frequencies, int groups) -> (Tensor, Tensor)",
    _launch_packed,
    _fake_packed,
    _packed_backward,
    _save_packed,
)


# One tensor -----------------------------------------------------------------------------------------------------------


def _launch_one(x: Tensor, coords: Tensor, frequencies: Tensor, groups: int) -> Tensor:
    from . import fused_rotation

    out = dense_like(x)
    fused_rotation.forward(x, None, out, None, coords, frequencies, groups)
    return out


def _fake_one(x: Tensor, *_: Any) -> Tensor:
    return dense_like(x)


def _save_one(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, coords, frequencies, ctx.groups = inputs
    ctx.save_for_backward(output, coords, frequencies)


def _one_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[1:3]
    if torch.is_grad_enabled():
        sums, (dx,) = _differentiable(ctx.saved_tensors, ctx.groups, grad)
    else:
        dx, *sums = _rotate_one_backward(grad, *ctx.saved_tensors, ctx.groups, *needs)
    return dx, *_needed(sums, needs), None


rotate_one = Operator(
    "rotate_one(Tensor x, Tensor coords, Tensor frequencies, int groups) -> Tensor",
    _launch_one,
    _fake_one,
    _one_backward,
    _save_one,
)


# The projection to queries and keys, rotated --------------------------------------------------------------------------


def _launch_project(
    x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    from . import fused_projection

    q, k = fused_projection.forward(x, weight, bias, coords, frequencies)
    return q.transpose(1, 2), k.transpose(1, 2)


def _fake_project(
    x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    h, _, planes = frequencies.shape
    shape = (*x.shape[:2], h, 2 * planes)
    return x.new_empty(shape).transpose(1, 2), x.new_empty(shape).transpose(1, 2)


def _save_project(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _, coords, frequencies = inputs
    ctx.save_for_backward(x, weight, *output, coords, frequencies)


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


project = Operator(
    "project(Tensor x, Tensor weight, Tensor? bias, Tensor coords, Tensor frequencies) -> (Tensor, Tensor)",
    _launch_project,
    _fake_project,
    _project_backward,
    _save_project,
)


# Small inverses -------------------------------------------------------------------------------------------------------


def _launch_inverse(a: Tensor) -> Tensor:
    from . import inverse

    return inverse.invert(a)


def _fake_inverse(a: Tensor) -> Tensor:
    return a.new_empty(a.shape)


def _save_inverse(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _inverse_backward(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return -(x.mT @ grad @ x.mT)


invert = Operator("inverse(Tensor a) -> Tensor", _launch_inverse, _fake_inverse, _inverse_backward, _save_inverse)
