"""softmax(scale · q kᵀ) v, for queries, keys and values of all heads: by torch, or for short sequences in a kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels
from .rotate import needs_all_derivatives, use_backend


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor:
    """q (b, h, n, d), k and v (b, h_kv, m, d) to (b, h, n, d). mask: boolean, True where a query may look at a key, of
    four dimensions that broadcast to (b, h, n, m).

    On a GPU, up to `kernels.LONGEST_ATTENTION` tokens in half precision, without mask and dropout, it is one launch of
    our own in each direction (`kernels.attend`); elsewhere torch's `scaled_dot_product_attention`.
    """
    plain = mask is None and not causal and not dropout
    if plain and use_backend.current != "torch" and kernels.can_attend(q, k, v) and not needs_all_derivatives(q, k, v):
        return kernels.attend(q, k, v, scale)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )


def causal_mask(n: int, m: int, device: torch.device) -> Tensor:
    """(n, m), for n queries that are the last of m tokens: each sees itself and those before it."""
    return torch.ones(n, m, dtype=torch.bool, device=device).tril(m - n)
