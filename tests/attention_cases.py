"""An attention layer with an encoding, and inputs for it: what the tests of attention share."""

import torch

from cases import build
from stringpe import Attention


def layer(case, cls=Attention, *, num_kv_heads=2, dtype=torch.float32, **options):
    torch.manual_seed(0)
    enc = build(case, head_dim=16, num_heads=num_kv_heads, coord_dim=2)
    return cls(64, 4, encoding=enc, num_kv_heads=num_kv_heads, **options).to(dtype)


def inputs(n=9, b=2, dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(b, n, 64, dtype=dtype), torch.randint(-8, 8, (b, n, 2)).to(dtype)
