"""The exponential moving average of the weights, kept where the weights are (sharded if they are)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class Ema:
    """average ← decay · average + (1 − decay) · weights, after every step.

    The first steps use the smaller decay (1 + step) / (10 + step), so that the start is forgotten; with a power, as
    diffusion policies have it (0.75), 1 − (1 + step)^−power."""

    def __init__(self, model: nn.Module, decay: float, power: float = 0.0):
        self.model, self.decay, self.power = model, decay, power
        self.weights = dict(model.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights in after step `step`."""
        early = 1 - (1 + step) ** -self.power if self.power else (1 + step) / (10 + step)
        decay = min(self.decay, early)
        torch._foreach_lerp_(list(self.average.values()), [p.detach() for p in self.weights.values()], 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Inside, the model holds the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # an evaluation leaves whole weights behind, which the next step would take for new
        for name, weight in self.weights.items():
            other: Tensor = self.average[name].clone()
            self.average[name].copy_(weight)
            weight.copy_(other)
