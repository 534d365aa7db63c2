"""Constants of a module that would otherwise be formed in every call: a Fourier basis, a table of sines."""

from collections.abc import Callable

import torch
from torch import Tensor


class Constant:
    """A tensor that depends on nothing but dtype and device, formed once for each. Not part of a state dict.

    Compilers and exporters see it formed anew, and fold it away themselves. A tensor formed while tracing is not
    stored, nor one formed in inference mode, which could take no part in training later."""

    def __init__(self, form: Callable[[torch.dtype, torch.device], Tensor]):
        self._form = form
        self._stored: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def __call__(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        if torch.compiler.is_compiling():
            return self._form(dtype, device)
        tensor = self._stored.get((dtype, device))
        if tensor is None:
            tensor = self._form(dtype, device)
            if type(tensor) is Tensor and not tensor.is_inference():
                self._stored[dtype, device] = tensor
        return tensor
