"""Constants of a module that would otherwise be formed in every call: a Fourier basis, a table of sines."""

from collections.abc import Callable

import torch
from torch import Tensor


class Constant:
    """A tensor that depends on nothing but dtype and device, formed once for each. Not part of a state dict.

    Compilers and exporters see it formed anew, which they fold away themselves. What is made while tracing, or in
    inference mode, where it could take no part in training later, is not kept."""

    def __init__(self, make: Callable[[torch.dtype, torch.device], Tensor]):
        self._make = make
        self._made: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def __call__(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        if torch.compiler.is_compiling():
            return self._make(dtype, device)
        found = self._made.get((dtype, device))
        if found is None:
            found = self._make(dtype, device)
            if type(found) is Tensor and not found.is_inference():
                self._made[dtype, device] = found
        return found
