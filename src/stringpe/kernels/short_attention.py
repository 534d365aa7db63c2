# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""Softmax attention of short sequences: all scores of a head at once, in the registers of one program. Imports triton.

    o = P v,    P = softmax(scale · q kᵀ)

    dv = Pᵀ do        dP = do vᵀ        dS = P ⊙ (dP − Σ_j P ⊙ dP)        dq = scale · dS k        dk = scale · dSᵀ q

Flash attention cuts sequences into blocks of 64 or 128 tokens and keeps sums of parts; its backward pass adds to dq
from many programs and needs two more launches around it. Up to `LONGEST_ATTENTION` tokens nothing has to be cut: each
pass is one launch that reads every operand once, nothing is kept for backward but q, k and v, and results do not
depend on the order in which programs run.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _load(x, x_n, x_d, row, rows, D: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr):
    """Rows (ROWS, WIDTH) of one head, zero beyond the last row and channel."""
    channel = tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (channel < D)[None, :]
    tile = tl.load(x + row[:, None] * x_n + channel[None, :] * x_d, mask=mask, other=0.0)
    return tile.to(tl.float32) if WIDE else tile


@triton.jit
def _store(x, x_n, row, rows, tile, D: tl.constexpr, WIDTH: tl.constexpr):
    """Its inverse, for a tensor whose channels are contiguous."""
    channel = tl.arange(0, WIDTH)
    mask = (row < rows)[:, None] & (channel < D)[None, :]
    tl.store(x + row[:, None] * x_n + channel[None, :], tile, mask=mask)


@triton.jit
def _weights(q, k, key, m, scale):
    """exp(s − max s) (N, M) of the scores s, zero beyond the last key, and its sums (N,)."""
    scores = tl.dot(q, tl.trans(k)) * (scale * LOG2_E)
    scores = tl.where((key < m)[None, :], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, axis=1)[:, None])
    return weights, tl.sum(weights, axis=1)


@triton.jit(do_not_specialize=["n", "m", "heads"])
def attention_forward_kernel(
    q, k, v, o,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d, o_b, o_h, o_n,
    n, m, heads, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """o of one head; neighbouring programs have neighbouring heads, as a packed projection has."""
    program = tl.program_id(0).to(tl.int64)
    b, h = program // heads, program % heads
    row, key = tl.arange(0, N), tl.arange(0, M)
    queries = _load(q + b * q_b + h * q_h, q_n, q_d, row, n, D, WIDTH, WIDE)
    keys = _load(k + b * k_b + h * k_h, k_n, k_d, key, m, D, WIDTH, WIDE)
    values = _load(v + b * v_b + h * v_h, v_n, v_d, key, m, D, WIDTH, WIDE)
    weights, sums = _weights(queries, keys, key, m, scale)
    out = tl.dot(weights.to(values.dtype), values) / sums[:, None]
    _store(o + b * o_b + h * o_h, o_n, row, n, out, D, WIDTH)


@triton.jit(do_not_specialize=["n", "m", "heads"])
def attention_backward_kernel(
    grad, q, k, v, dq, dk, dv,
    g_b, g_h, g_n, g_d, q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d,
    dq_b, dq_h, dq_n, dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    n, m, heads, scale,
    D: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """dq, dk and dv of one head. Rows beyond the last have a gradient of zero, and add nothing."""
    program = tl.program_id(0).to(tl.int64)
    b, h = program // heads, program % heads
    row, key = tl.arange(0, N), tl.arange(0, M)
    queries = _load(q + b * q_b + h * q_h, q_n, q_d, row, n, D, WIDTH, WIDE)
    keys = _load(k + b * k_b + h * k_h, k_n, k_d, key, m, D, WIDTH, WIDE)
    weights, sums = _weights(queries, keys, key, m, scale)
    weights /= sums[:, None]
    out = _load(grad + b * g_b + h * g_h, g_n, g_d, row, n, D, WIDTH, WIDE)
    values = _load(v + b * v_b + h * v_h, v_n, v_d, key, m, D, WIDTH, WIDE)
    d_values = tl.dot(tl.trans(weights.to(out.dtype)), out)
    _store(dv + b * dv_b + h * dv_h, dv_n, key, m, d_values, D, WIDTH)
    d_weights = tl.dot(out, tl.trans(values))
    d_scores = weights * (d_weights - tl.sum(weights * d_weights, axis=1)[:, None])
    d_scores = (d_scores * scale).to(keys.dtype)
    _store(dq + b * dq_b + h * dq_h, dq_n, row, n, tl.dot(d_scores, keys), D, WIDTH)
    _store(dk + b * dk_b + h * dk_h, dk_n, key, m, tl.dot(tl.trans(d_scores), queries), D, WIDTH)


def forward(q: Tensor, k: Tensor, v: Tensor, o: Tensor, scale: float) -> None:
    """Write softmax(scale · q kᵀ) v to o, for q (b, h, n, d), k and v (b, h, m, d) of one half-precision dtype."""
    if q.numel() == 0:
        return
    b, h, n, _ = q.shape
    with torch.cuda.device_of(q):
        attention_forward_kernel[(b * h,)](
            q, k, v, o, *q.stride(), *k.stride(), *v.stride(), *o.stride()[:3], n, k.shape[2], h, scale, **_sizes(q, k)
        )


def backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, scale: float) -> None:
    """Write the gradients of q, k and v to dq, dk and dv, given that of o."""
    if q.numel() == 0:
        for d in (dk, dv):
            d.zero_()
        return
    b, h, n, _ = q.shape
    with torch.cuda.device_of(q):
        attention_backward_kernel[(b * h,)](
            grad, q, k, v, dq, dk, dv,
            *grad.stride(), *q.stride(), *k.stride(), *v.stride(),
            *dq.stride()[:3], *dk.stride()[:3], *dv.stride()[:3],
            n, k.shape[2], h, scale, **_sizes(q, k),
        )  # fmt: skip


def _sizes(q: Tensor, k: Tensor) -> dict[str, int | bool]:
    """Constants of the kernels: sizes padded to powers of two that products of tiles can have."""
    n, m, d = (max(16, 1 << (size - 1).bit_length()) for size in (q.shape[2], k.shape[2], q.shape[3]))
    warps = 4 if n * m <= 64 * 64 else 8
    return {"D": q.shape[3], "WIDTH": d, "N": n, "M": m, "WIDE": q.device.type == "cpu", "num_warps": warps}
