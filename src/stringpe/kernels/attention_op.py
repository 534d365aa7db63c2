"""Attention of short sequences (`short_attention`) as an operator."""

from typing import Any

import torch
from torch import Tensor

from .operator import Operator, dense_like


def _launch(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    from . import short_attention  # triton, only now

    o = dense_like(q)
    short_attention.forward(q, k, v, o, scale)
    return o


def _fake(q: Tensor, *_: Any) -> Tensor:
    return dense_like(q)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *saved, ctx.scale = inputs
    ctx.save_for_backward(*saved)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v = ctx.saved_tensors
    gradients = _differentiable if torch.is_grad_enabled() else _attend_backward
    return *gradients(grad, q, k, v, ctx.scale), None


def _differentiable(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same derivative in operations that can be differentiated again: for create_graph=True."""
    g, a, b, c = (t.float() for t in (grad, q, k, v))
    weights = (scale * a @ b.mT).softmax(-1)
    slopes = g @ c.mT
    scores = scale * weights * (slopes - (weights * slopes).sum(-1, keepdim=True))
    return (scores @ b).to(q.dtype), (scores.mT @ a).to(k.dtype), (weights.mT @ g).to(v.dtype)


def _launch_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    from . import short_attention

    results = dense_like(q), dense_like(k), dense_like(v)
    short_attention.backward(grad, q, k, v, *results, scale)
    return results


def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return dense_like(q), dense_like(k), dense_like(v)


def _no_second_derivative(ctx: Any, *grads: Tensor) -> None:
    raise RuntimeError(
        "the kernel of the derivative of short attention was called in a graph that is differentiated again: use "
        "stringpe.use_backend('torch')"
    )


_attend_backward = Operator(
    "attend_backward(Tensor grad, Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor, Tensor)",
    _launch_backward,
    _fake_backward,
    _no_second_derivative,
)

attend = Operator(
    "attend(Tensor q, Tensor k, Tensor v, float scale) -> Tensor",
    _launch,
    _fake,
    _backward,
    _save,
)
