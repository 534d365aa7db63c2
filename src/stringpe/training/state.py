"""What a run carries from step to step besides its weights and its optimiser: the average of the weights, and the state
of every random generator."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule


class Ema:
    """The exponential moving average of the weights: average ← decay · average + (1 − decay) · weights, after every
    step.

    Early steps use a smaller decay, so that the start is forgotten: (1 + step) / (10 + step); or, with a power (0.75
    for diffusion policies), 1 − (1 + step)^−power."""

    def __init__(self, model: nn.Module, decay: float, power: float = 0.0):
        self.model, self.decay, self.power = model, decay, power
        self.weights = dict(model.named_parameters())
        self.average = {name: p.detach().clone() for name, p in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after step `step` to the average."""
        early = 1 - (1 + step) ** -self.power if self.power else (1 + step) / (10 + step)
        decay = min(self.decay, early)
        torch._foreach_lerp_(list(self.average.values()), [p.detach() for p in self.weights.values()], 1 - decay)

    @contextmanager
    def swap(self) -> Iterator[None]:
        """Inside, the model holds the average."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # evaluation leaves whole weights behind, which the next step would take for new ones
        for name, weight in self.weights.items():
            other: Tensor = self.average[name].clone()
            self.average[name].copy_(weight)
            weight.copy_(other)


def save_generators(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's generators (CPU and device), Python's and, if it is installed, NumPy's: uint8 and float64
    vectors by name."""
    version, words, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor([version, *words, *([] if gauss is None else [gauss])], dtype=torch.float64),
    }
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state(device)
    numpy = _numpy()
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        assert name == "MT19937"
        state["numpy"] = torch.tensor([*keys.tolist(), position, has_gauss, cached], dtype=torch.float64)
    return state


def restore_generators(state: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back into the states that `save_generators` saved."""
    torch.set_rng_state(state["torch"].cpu())
    version, *rest = state["python"].tolist()
    words, gauss = rest[:625], rest[625:]
    random.setstate((int(version), tuple(int(w) for w in words), gauss[0] if gauss else None))
    if device.type != "cpu" and "device" in state:
        torch.get_device_module(device).set_rng_state(state["device"].cpu(), device)
    numpy = _numpy()
    if numpy is not None and "numpy" in state:
        *keys, position, has_gauss, cached = state["numpy"].tolist()
        keys = numpy.array(keys, dtype=numpy.uint32)
        numpy.random.set_state(("MT19937", keys, int(position), int(has_gauss), cached))


def _numpy():  # type: ignore[no-untyped-def]
    try:
        import numpy
    except ImportError:
        return None
    return numpy
