"""A trained ViT whose weights stay as they are, and an encoding in 3D behind gates, which alone learns depth.

This is what `stringpe.attach` does to models of other libraries, for a `stringpe.ViT`: the RGB model keeps its table of
absolute embeddings and all of its weights. What learns is Θ, the gates, the basis (S of Cayley-STRING), and scale and
offset of depth. Frozen projections cannot absorb a basis, so in theory STRING has more to offer over RoPE-Mixed here
than in models that learn W_q and W_k.

There are two controls: a basis that is random and fixed, and low-rank updates of W_q and W_k (LoRA) with RoPE-Mixed.
"""

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..basis import GivenBasis
from ..catalogue import create
from ..composed_frequencies import Gated
from ..encoding import Encoding
from ..frequencies import random_frames
from .blocks import Block
from .depth import DepthLift
from .vit import ViT

_ORIGINAL = "parametrizations.weight.original"  # the name of a weight under LoRA


class LowRank(nn.Module):
    """W_q + B_q A_q and W_k + B_k A_k in a packed projection W (3m, m): LoRA, with B = 0 at the start."""

    def __init__(self, dim: int, rank: int):
        super().__init__()
        if not 0 < rank <= dim:
            raise ValueError(f"the rank of LoRA must be from 1 to the model's width, {dim}, got {rank}")
        self.down, self.up = nn.Parameter(torch.empty(2, rank, dim)), nn.Parameter(torch.empty(2, dim, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.shape[2] ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, weight: Tensor) -> Tensor:
        change = (self.up @ self.down).flatten(0, 1)  # (2m, m), of queries and keys
        return weight + F.pad(change, (0, 0, 0, len(weight) - len(change))).to(weight.dtype)


def lift_frozen(
    vit: ViT,
    encoding: str,
    options: Mapping[str, Any] | None = None,
    *,
    random_basis: bool = False,
    rank: int = 0,
    depth: bool = True,
) -> ViT:
    """Freeze a ViT on RGB with absolute embeddings, in place, and put an encoding that learns into every layer.

    At first it computes what it did before, up to rounding.

    encoding: a name, built with `options`; "none" adds no encoding. depth: whether patches get a third coordinate.
    random_basis: whether P is random and fixed. rank: of LoRA on the query and key projections, 0 for none.
    """
    if vit.absolute is None or vit.depth != "none":
        raise ValueError(f"a frozen ViT is one on RGB with absolute embeddings, got depth={vit.depth!r}")
    if depth and encoding == "none":
        raise ValueError("encoding='none' has no coordinates to lift depth into: set model.depth=none")
    vit.requires_grad_(False)
    if depth:
        vit.lift, vit.coord_dim, vit.depth = DepthLift(vit.patch_size, vit.units), 3, "lift"
    for block in vit.blocks:
        assert isinstance(block, Block)
        attention = block.attention
        if encoding != "none":
            attention.encoding = _build_gated(
                encoding, attention.head_dim, attention.num_heads, vit, options, random_basis
            )
        if rank:
            parametrize.register_parametrization(attention.qkv, "weight", LowRank(vit.dim, rank))
    return vit


def load_frozen(vit: ViT, weights: Mapping[str, Tensor], where: str) -> None:
    """Load the weights of a trained ViT. What `lift_frozen` added, encodings, gates, depth and LoRA, stays as it was.

    where: the place that the weights come from, for the error if they are of another model."""
    targets = {name.replace(_ORIGINAL, "weight"): tensor for name, tensor in vit.state_dict().items()}
    wrong = [name for name, tensor in weights.items() if name not in targets or targets[name].shape != tensor.shape]
    added = ("lift.", ".encoding.", ".parametrizations.")
    missing = [name for name in targets if name not in weights and not any(part in name for part in added)]
    if wrong or missing:
        raise ValueError(
            f"{where} holds another ViT than this recipe describes: {(wrong + missing)[0]} differs. Set model.dim, "
            f"layers, heads, patch_size and data.image_size as that run had them"
        )
    with torch.no_grad():
        for name, tensor in weights.items():
            targets[name].copy_(tensor)


def _build_gated(
    name: str, head_dim: int, num_heads: int, vit: ViT, options: Mapping[str, Any] | None, random_basis: bool
) -> Encoding:
    """The encoding of one layer, behind gates."""
    built = create(name, head_dim=head_dim, num_heads=num_heads, coord_dim=vit.coord_dim, **(options or {}))
    if not isinstance(built, Encoding):
        raise ValueError(f"a frozen ViT takes encodings that have a basis and frequencies; {name!r} has none")
    basis = GivenBasis(random_frames(num_heads, head_dim)) if random_basis else built.basis
    return Encoding(basis, Gated(built.frequencies), name=name)
