# mypy: disable-error-code="untyped-decorator"
"""The inverse of many small matrices whose symmetric part is positive definite, I + S say: no pivoting is needed, so
one program inverts one matrix in registers. `stringpe::inverse`, an operator like those of `ops.py`."""

from typing import Any

import torch
from torch import Tensor, library

LARGEST = 128  # rows that a program's registers hold

library.define("stringpe::inverse", "(Tensor a) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


@library.impl("stringpe::inverse", "default")
def _(a: Tensor) -> Tensor:
    from . import gauss_jordan  # triton, only now

    return gauss_jordan.invert(a)


@library.register_fake("stringpe::inverse")
def _(a: Tensor) -> Tensor:
    return a.new_empty(a.shape)


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    """d(A⁻¹) = −A⁻¹ dA A⁻¹."""
    (x,) = ctx.saved_tensors
    return -(x.mT @ grad @ x.mT)


library.register_autograd("stringpe::inverse", _backward, setup_context=_save)
