"""Checks of what users pass in. Each error says what is wrong, what was received and what to do."""

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn


def check_count(what: str, value: Any, least: int = 1) -> None:
    """Refuse anything but a whole number of at least `least`. Symbolic sizes of a traced model pass."""
    if isinstance(value, bool) or not (isinstance(value, (int, torch.SymInt)) or is_numpy_integer(value)):
        raise ValueError(f"{what} must be a whole number, got {value!r}")
    if value < least:
        raise ValueError(f"{what} must be at least {least}, got {value}")


def is_numpy_integer(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "__index__") and getattr(value, "ndim", 1) == 0


def check_flag(what: str, value: Any) -> None:
    """Refuse anything but True and False: the text "false" would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be True or False, got {value!r}")


def check_choice(what: str, value: Any, allowed: Collection[str]) -> None:
    """Refuse anything but one of the allowed words."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(allowed)}, got {value!r}")


def check_heads(head_dim: Any, num_heads: Any) -> None:
    """Refuse sizes of heads whose channels cannot rotate in pairs."""
    check_count("head_dim", head_dim)
    check_count("num_heads", num_heads)
    if head_dim % 2:
        raise ValueError(f"head_dim must be even and at least 2, got {head_dim}: channels rotate in pairs")


def check_attention_sizes(dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    """The head dim, once the sizes fit each other."""
    for name, value in (("dim", dim), ("num_heads", num_heads), ("num_kv_heads", num_kv_heads)):
        check_count(name, value)
    if head_dim is None and dim % num_heads:
        raise ValueError(f"dim={dim} does not divide into {num_heads} heads: pass head_dim")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads={num_heads} is not a multiple of num_kv_heads={num_kv_heads}")
    head_dim = dim // num_heads if head_dim is None else head_dim
    check_count("head_dim", head_dim)
    return head_dim


def check_number(what: str, value: Any) -> float:
    """value as a float, or an error where it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{what} must be a finite number, got {value!r}")
    try:
        number = float(value)
    except OverflowError:  # a whole number of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{what} must be a finite number, got {str(value)[:40]}")
    return number


def check_tensor(what: str, value: Any) -> None:
    """Refuse NumPy arrays, lists, and nested or sparse tensors."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{what} must be a torch tensor, got {type(value).__name__}: convert it with torch.as_tensor")
    if value.is_nested:
        raise ValueError(f"{what} must be a plain tensor, got a nested one: pad it, or pass one sample at a time")
    if value.layout != torch.strided:
        raise ValueError(f"{what} must be a plain tensor, got one of layout {value.layout}: use .to_dense()")


def check_floats(what: str, value: Any, *sizes: tuple[str, int | None]) -> None:
    """Refuse anything but a tensor of floats with these axes, each a name and, where it is fixed, a size."""
    check_tensor(what, value)
    fits = all(size in (None, there) for (_, size), there in zip(sizes, value.shape, strict=False))
    if not value.is_floating_point() or value.ndim != len(sizes) or not fits:
        wanted = ", ".join(name if size is None else str(size) for name, size in sizes)
        raise ValueError(f"{what} must be ({wanted}) floats, got {tuple(value.shape)} {value.dtype}")


def check_module(what: str, value: Any) -> None:
    """Refuse anything but a torch module, such as the name, the weights or the class of a model."""
    if not isinstance(value, nn.Module):
        raise TypeError(
            f"{what} must be a torch.nn.Module, got {type(value).__name__} {str(value)[:40]!r}: build it first"
        )


def can_read(value: Tensor) -> bool:
    """Whether reading values costs next to nothing: on a CPU, outside of compilation and functional transforms. On a
    GPU the host would have to wait for the device."""
    if value.device.type != "cpu" or type(value) is not Tensor or torch.compiler.is_compiling():
        return False  # comes first: the compiler cannot trace the next line
    return not (torch._C._get_tracing_state() or torch._C._functorch.is_functorch_wrapped_tensor(value))


def check_finite(what: str, value: Tensor) -> None:
    """Refuse NaN and infinity where values can be read (`can_read`); elsewhere they go on into the result."""
    if not can_read(value):
        return
    if not value.isfinite().all():
        bad = int((~value.isfinite()).sum())
        raise ValueError(f"{what} must be finite, but {bad} of {value.numel()} entries are NaN or infinite")
