"""Small constant tables, copied to each device once."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


@functools.cache
def constant(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Nested tuples as a tensor. Shared: never write into it.

    The type is given and not guessed, because (1, 0) and (1.0, 0.0) are the same key of a cache.
    """
    return torch.tensor(values, device=device, dtype=dtype)
