"""Checks of what users pass in. Each error says what is wrong, what was received and what to do."""

import math
from typing import Any

import torch
from torch import Tensor


def check_count(what: str, value: Any, least: int = 1) -> None:
    """Refuse anything but a whole number of at least `least`. Symbolic sizes of a traced model pass."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{what} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, got {value}")


def check_heads(head_dim: Any, num_heads: Any) -> None:
    """Refuse sizes of heads whose channels cannot rotate in pairs."""
    check_count("head_dim", head_dim)
    check_count("num_heads", num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even and at least 2, got {head_dim}: channels rotate in pairs")


def check_number(what: str, value: Any) -> float:
    """value as a float, or an error where it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{what} must be a finite number, got {value!r}")
    return float(value)


def check_tensor(what: str, value: Any) -> None:
    """Refuse NumPy arrays, lists and nested tensors."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch tensor, got {type(value).__name__}: convert it with torch.as_tensor")
    if value.is_nested:
        raise ValueError(f"{what} must be a plain tensor, got a nested one: pad it, or pass one sample at a time")


def check_finite(what: str, value: Tensor) -> None:
    """Refuse NaN and infinity, where looking is free: on a CPU, outside of compilation and functional transforms.
    Elsewhere it would stop the device, and what is not finite goes on into the result."""
    looks = value.device.type == "cpu" and type(value) is Tensor and not torch.compiler.is_compiling()
    if not looks or torch._C._get_tracing_state() or torch._C._functorch.is_functorch_wrapped_tensor(value):
        return
    if not value.isfinite().all():
        bad = int((~value.isfinite()).sum())
        raise ValueError(f"{what} must be finite, but {bad} of {value.numel()} entries are NaN or infinite")
