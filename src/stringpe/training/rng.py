"""The state of every global random generator as tensors, so that a checkpoint needs no pickle."""

import random

import torch
from torch import Tensor


def capture(device: torch.device) -> dict[str, Tensor]:
    """torch on the CPU and on the device, Python and NumPy (if it is there): uint8 and float64 vectors."""
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


def restore(state: dict[str, Tensor], device: torch.device) -> None:
    """Put the generators back to where `capture` found them."""
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
