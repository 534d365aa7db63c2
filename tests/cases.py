"""The lists that every property test runs over. A new encoding adds one line here and nothing else in the tests."""

from collections.abc import Callable

import torch

import stringpe
from stringpe import Encoding
from stringpe.encoding import PositionEncoding

CASES: dict[str, Callable[..., Encoding]] = {
    "rope": lambda **sizes: stringpe.rope(**sizes),
    "rope-learnable": lambda **sizes: stringpe.rope(learnable=True, **sizes),
    "rope-truncated": lambda **sizes: stringpe.rope(zero_fraction=0.3, base=500.0, **sizes),
    "rope-every-plane": lambda **sizes: stringpe.rope(every_plane=True, learnable=True, **sizes),
    "rope_mixed": lambda **sizes: stringpe.rope_mixed(**sizes),
    "rope_mixed-shared": lambda **sizes: stringpe.rope_mixed(share_heads=True, **sizes),
    "rope_mixed-truncated": lambda **sizes: stringpe.rope_mixed(zero_fraction=0.3, **sizes),
    "simplex": lambda **sizes: stringpe.simplex(**sizes),
    "simplex-learnable": lambda **sizes: stringpe.simplex(learnable=True, base=50.0, zero_fraction=0.3, **sizes),
    "golden": lambda **sizes: stringpe.golden(**sizes),
    "golden-learnable": lambda **sizes: stringpe.golden(learnable=True, share_heads=True, **sizes),
    "cayley": lambda **sizes: stringpe.cayley(**sizes),
    "cayley-shared": lambda **sizes: stringpe.cayley(share_heads=True, **sizes),
    "cayley-shared-basis": lambda **sizes: stringpe.cayley(share_basis=True, frequencies="axial", **sizes),
    "cayley-shared-frequencies": lambda **sizes: stringpe.cayley(share_frequencies=True, zero_fraction=0.3, **sizes),
    "cayley-band": lambda **sizes: stringpe.cayley(sparsity=3, **sizes),
    "cayley-solve": lambda **sizes: stringpe.cayley(method="solve", **sizes),
    "cayley-fixed-frequencies": lambda **sizes: stringpe.cayley(learnable=False, **sizes),
    "circulant": lambda **sizes: stringpe.circulant(**sizes),
    "circulant-4": lambda **sizes: stringpe.circulant(block_size=4, **sizes),
    "circulant-head": lambda head_dim, **sizes: stringpe.circulant(head_dim=head_dim, block_size=head_dim, **sizes),
    "circulant-fft": lambda **sizes: stringpe.circulant(method="fft", **sizes),
    "circulant-shared": lambda **sizes: stringpe.circulant(share_heads=True, **sizes),
    "circulant-truncated": lambda **sizes: stringpe.circulant(zero_fraction=0.3, **sizes),
    "general": lambda **sizes: stringpe.general(**sizes),
    "general-shared": lambda **sizes: stringpe.general(share_heads=True, **sizes),
    "from_generators": lambda **sizes: stringpe.from_generators(
        stringpe.generators(perturbed(stringpe.general(**sizes).double())), learnable=True
    ),
}

BASELINES: dict[str, Callable[..., PositionEncoding]] = {
    "outer": lambda **sizes: stringpe.outer(**sizes),
    "liere": lambda **sizes: stringpe.LieRE(**sizes),
    "liere-blocks": lambda **sizes: stringpe.LieRE(block_size=4, start="authors", **sizes),
    "spherical": lambda **sizes: stringpe.Spherical(**sizes),
    "harope": lambda **sizes: stringpe.harope(**sizes),
    "harope-shared": lambda **sizes: stringpe.harope(share_basis=True, frequencies="mixed", **sizes),
}


def build(case: str, *, head_dim: int = 16, num_heads: int = 3, coord_dim: int = 2, seed: int = 0, dtype=torch.float32):
    """The encoding of that case, moved off its start, so that a basis that does nothing cannot pass."""
    torch.manual_seed(seed)
    made = (CASES | BASELINES)[case](head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim)
    return perturbed(made).to(dtype)


@torch.no_grad()
def perturbed(module, scale: float = 0.2):
    for parameter in module.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=scale)
    return module
