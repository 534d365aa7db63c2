"""Launches of Triton kernels, and how lengths are cut into blocks."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class KernelLaunch:
    """A kernel and all that it takes besides tensors, which are its first arguments: then come `numbers`, and then the
    constants `sizes`. `options` are those of Triton's compiler.

    The first launch on tensors of some dtypes and alignment goes through Triton, which compiles the kernel and returns
    it (but not in its interpreter). Later ones start what it returned, because Triton would look at all the arguments
    again, which takes longer than a small kernel. It compiles for what is in the key, and for numbers, which stay.
    """

    def __init__(
        self,
        kernel: Any,
        programs: int,
        numbers: Sequence[int],
        sizes: Mapping[str, int],
        options: Mapping[str, int | None],
    ):
        self.kernel, self.grid = kernel, (programs, 1, 1)
        self.numbers, self.sizes, self.options = numbers, sizes, options
        self.rest = (*numbers, *sizes.values())
        self.compiled: dict[Any, Any] = {}

    def __call__(self, *tensors: Tensor | None) -> None:
        given = [t for t in tensors if t is not None]
        with torch.cuda.device_of(given[0]):
            pointers = [None if t is None else t.data_ptr() for t in tensors]
            aligned = [None if pointer is None else pointer % 16 == 0 for pointer in pointers]
            key = (given[0].device, *[t.dtype for t in given], *aligned)
            compiled = self.compiled.get(key)
            if compiled is None:
                compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.sizes, **self.options)
                if compiled is not None:
                    self.compiled[key] = compiled
            else:
                compiled[self.grid](*pointers, *self.rest)


def blocks(length: int, block: int) -> int:
    """How many blocks cover a length."""
    return -(-length // block)


def power_of_two(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << (n - 1).bit_length()
