# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""The inverse of many small matrices whose symmetric part is positive definite, such as I + S: no pivoting is needed,
so one program inverts one matrix in registers, by Gauss-Jordan elimination. Imports triton."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def invert(a: Tensor) -> Tensor:
    """A⁻¹ for contiguous or strided a (count, d, d), float32."""
    count, d, _ = a.shape
    a = a.contiguous()
    out = torch.empty_like(a)
    if count:
        with torch.cuda.device_of(a):
            _invert[(count,)](a, out, D=d, WIDTH=triton.next_power_of_2(d), num_warps=8 if d > 64 else 4)
    return out


@triton.jit
def _invert(a, out, D: tl.constexpr, WIDTH: tl.constexpr):
    """Step k divides row k by the pivot, clears column k from the other rows, and puts the inverse's column there. Rows
    and columns come out of the block as masked sums, since registers cannot be indexed. In float64, since without
    pivoting digits are lost where S is large."""
    matrix = tl.program_id(0).to(tl.int64) * (D * D)
    i = tl.arange(0, WIDTH)
    at = i[:, None] * D + i[None, :]
    inside = (i < D)[:, None] & (i < D)[None, :]
    x = tl.load(a + matrix + at, mask=inside, other=0.0).to(tl.float64)
    for k in range(D):
        in_row, in_column = i[:, None] == k, i[None, :] == k
        row = tl.sum(tl.where(in_row, x, 0.0), axis=0)
        column = tl.sum(tl.where(in_column, x, 0.0), axis=1)
        pivot = 1.0 / tl.sum(tl.where(i == k, row, 0.0), axis=0)
        row *= pivot
        x -= column[:, None] * row[None, :]
        x = tl.where(in_row, row[None, :], x)
        x = tl.where(in_column, -(column * pivot)[:, None], x)
        x = tl.where(in_row & in_column, pivot, x)
    tl.store(out + matrix + at, x.to(tl.float32), mask=inside)
