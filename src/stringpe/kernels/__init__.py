"""The rotation of `stringpe.rotate`, fused for the GPU in Triton: angles live in registers and never reach memory.

    rotate_pair(q, k, coords, frequencies)     queries and keys of the same tokens, in one launch
    rotate_packed(qk, coords, frequencies)     the same, side by side as the projection returns them
    rotate_one(x, coords, frequencies)         one tensor (cross attention, caches)
    project(x, weight, bias, coords, frequencies)  the projection to queries and keys, rotated before they reach memory
    invert(a)                                  many small inverses without pivoting
    attend(q, k, v, scale)                     softmax attention of short sequences, in one launch each way
    assign(cost, valid)                        Hungarian matching, one image per program
    unavailable(x)                             why a kernel cannot take x, or None
    can_project(x, dtype, frequencies)         whether `project` can multiply x in this dtype
    can_attend(q, k, v)                        whether `attend` takes these

The rotations are differentiable in everything but `groups`, twice and more, and deterministic: sums over tokens go
through a buffer, not through atomics. All are PyTorch operators, so torch.compile and torch.export take them whole
(a program with them loads where this package was imported). Triton is imported at the first launch: this package
imports without it.
"""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from . import attention_op, ops  # registers the operators
from .ops import heads_of as heads_of

LONGEST_ATTENTION = 128  # queries or keys whose scores the registers of a program hold
LARGEST_INVERSE = 128  # rows of a matrix that the registers of a program hold
LARGEST_ASSIGNMENT = 8192  # predictions or objects that they hold
_TRITON = find_spec("triton") is not None
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def unavailable(x: Tensor) -> str | None:
    """Why the kernel cannot rotate x, in words; None if it can. Triton's interpreter takes tensors on the CPU."""
    if not _TRITON:
        return "triton is not installed"
    if x.dtype not in _DTYPES:
        return f"the kernel rotates bfloat16, float16 and float32, not {x.dtype}"
    if x.device.type == "cuda" or (x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    return f"the kernel runs on CUDA devices, not on {x.device.type}"


def can_project(x: Tensor, dtype: torch.dtype, frequencies: Tensor) -> bool:
    """Whether the fused projection takes x (b, n, m) with operands of this dtype: half precision, heads of 32, 64 or
    128 that fill its tiles, and a GPU that loads tiles by itself (Hopper and later), or Triton's interpreter."""
    h, _, planes = frequencies.shape
    half = dtype in (torch.bfloat16, torch.float16) and unavailable(x.new_empty(0, dtype=dtype)) is None
    fits = planes in (16, 32, 64) and h % max(1, 32 // planes) == 0 and x.shape[-1] % 64 == 0
    return half and fits and (x.device.type == "cpu" or torch.cuda.get_device_properties(x.device).major >= 9)


def project(
    x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    """RoPE(r Θ) (W x + b) for x (b, n, m): queries and keys (b, h, n, d), of weight (2 h d, m) and bias (2 h d)."""
    projected: tuple[Tensor, Tensor] = ops.project(x, weight, bias, coords, frequencies)
    return projected


def can_attend(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the kernel takes q (b, h, n, d), k and v (b, h, m, d): half precision, as many heads of keys as of
    queries, up to `LONGEST_ATTENTION` tokens in heads of at most 64, half as many in heads of at most 128, and a GPU of
    Ampere's generation or later, or Triton's interpreter."""
    if q.dtype not in (torch.bfloat16, torch.float16) or not q.dtype == k.dtype == v.dtype:
        return False
    (_, h, n, d), m = q.shape, k.shape[2]
    if k.shape[1] != h or k.shape[3] != d or v.shape != k.shape or unavailable(q) is not None:
        return False
    longest = LONGEST_ATTENTION if d <= 64 else LONGEST_ATTENTION // 2 if d <= 128 else 0  # for its shared memory
    if n > longest or m > longest or m == 0:
        return False
    return q.device.type == "cpu" or torch.cuda.get_device_properties(q.device).major >= 8


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v, (b, h, n, d), where `can_attend`. Any strides; the result is dense and keeps the memory
    order of q. Differentiable, twice and more, and deterministic."""
    attended: Tensor = attention_op.attend(q, k, v, scale)
    return attended


def invert(a: Tensor) -> Tensor:
    """A⁻¹ for a (count, d, d), float32, whose symmetric part is positive definite, so that no pivot vanishes."""
    inverted: Tensor = ops.invert(a)
    return inverted


def assign(cost: Tensor, valid: Tensor) -> Tensor:
    """The prediction of every object (b, m) with the smallest sum of costs (b, n, m), float32, as int64; −1 where valid
    (b, m) is false, and for objects left over where an image has more of them than predictions. Costs that are not
    finite, or of 1e8 and more in size, count as 1e8."""
    from . import assignment

    matched: Tensor = assignment.assign(cost, valid)
    return matched


def rotate_pair(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """(RoPE(r Θ) q, RoPE(r Θ) k) for q (b, groups·h, n, d) and k (b, h, n, d) of the same n tokens.

    coords (b or 1, n, c) and frequencies (h, c, d/2), float32 or float64; query head i takes frequencies[i // groups].
    Any strides; the results are new, dense, and keep the memory order of their inputs ((b, h, n, d) or (b, n, h, d)).
    """
    rotated: tuple[Tensor, Tensor] = ops.rotate_pair(q, k, coords, frequencies, groups)
    return rotated


def rotate_packed(qk: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """`rotate_pair` of the heads in qk (b, n, (groups + 1)·h·d). The gradient is packed too, without a copy."""
    rotated: tuple[Tensor, Tensor] = ops.rotate_packed(qk, coords, frequencies, groups)
    return rotated


def rotate_one(x: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> Tensor:
    """RoPE(r Θ) x for x (b, groups·h, n, d); the rest as in `rotate_pair`."""
    rotated: Tensor = ops.rotate_one(x, coords, frequencies, groups)
    return rotated
