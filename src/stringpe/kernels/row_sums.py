# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
"""Sums over the rows of two matrices in one launch, in an order that is always the same. Imports triton.

Backward programs of the fused rotation leave partial sums: tall and narrow for Θ, short and wide for coordinates. Torch
takes 42 µs on an H200 for 1,024 rows of 256, and clears a buffer before it.
"""

import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kernel_launch import KernelLaunch, blocks, power_of_two

_ELEMENTS, _MOST_ROWS, _WARPS = 1024, 128, 8  # of a block, not measured


@triton.jit
def _sum(x, out, rows, columns, program, STEPS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    row, column = tl.arange(0, HEIGHT), program * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((HEIGHT, WIDTH), tl.float32)
    for step in tl.range(0, STEPS, loop_unroll_factor=STEPS if STEPS < 8 else 8):  # to have several loads on their way
        at = (step * HEIGHT + row).to(tl.int64)
        mask = (at < rows)[:, None] & (column < columns)[None, :]
        total += tl.load(x + at[:, None] * columns + column[None, :], mask=mask, other=0.0)
    tl.store(out + column, tl.sum(total, axis=0), mask=column < columns)


@triton.jit(do_not_specialize=["x_rows", "y_rows", "x_programs"])
def sum_kernel(
    x, x_out, y, y_out, x_rows, x_columns, y_rows, y_columns, x_programs,
    X_STEPS: tl.constexpr, X_HEIGHT: tl.constexpr, Y_STEPS: tl.constexpr, Y_HEIGHT: tl.constexpr,
    ELEMENTS: tl.constexpr,
):  # fmt: skip
    """x_out = Σ_rows x and y_out = Σ_rows y; the first x_programs programs do x."""
    program = tl.program_id(0)
    if program < x_programs:
        if x is not None:
            _sum(x, x_out, x_rows, x_columns, program, X_STEPS, X_HEIGHT, ELEMENTS // X_HEIGHT)
    else:
        if y is not None:
            _sum(y, y_out, y_rows, y_columns, program - x_programs, Y_STEPS, Y_HEIGHT, ELEMENTS // Y_HEIGHT)


def sum_rows(x: Tensor | None, x_out: Tensor | None, y: Tensor | None, y_out: Tensor | None) -> None:
    """Write Σ_i x[i] to x_out and Σ_i y[i] to y_out, rounded to their dtypes; x and y are contiguous and float32. Each
    may be missing."""
    if x is not None or y is not None:
        _launch(None if x is None else x.shape, None if y is None else y.shape)(x, x_out, y, y_out)


@lru_cache(maxsize=1024)
def _launch(x: torch.Size | None, y: torch.Size | None) -> KernelLaunch:
    (x_rows, x_columns), (y_rows, y_columns) = _matrix(x), _matrix(y)
    (x_steps, x_height, x_programs), (y_steps, y_height, y_programs) = _cut(x_rows, x_columns), _cut(y_rows, y_columns)
    sizes = {"X_STEPS": x_steps, "X_HEIGHT": x_height, "Y_STEPS": y_steps, "Y_HEIGHT": y_height, "ELEMENTS": _ELEMENTS}
    numbers = x_rows, x_columns, y_rows, y_columns, x_programs
    return KernelLaunch(sum_kernel, x_programs + y_programs, numbers, sizes, {"num_warps": _WARPS})


def _matrix(shape: torch.Size | None) -> tuple[int, int]:
    return (0, 0) if shape is None else (shape[0], math.prod(shape[1:]))


def _cut(rows: int, columns: int) -> tuple[int, int, int]:
    """Steps of a program, rows of a step, and programs. Powers of two, for each is a kernel of its own."""
    height = min(power_of_two(max(rows, 1)), _MOST_ROWS)
    return power_of_two(max(blocks(rows, height), 1)), height, blocks(columns, _ELEMENTS // height)
