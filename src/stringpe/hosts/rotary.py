"""Hosts whose RoPE is a module: it turns position ids into cosines and sines, which go to every attention layer.

That module becomes `CoordsForAngles`, which hands on coordinates in their place. Whatever the host does on the way
(packing, windows, permutations of tokens) it then does to coordinates, and attention has those of its own tokens.
"""

from typing import Any

import torch
from torch import Tensor, nn

from .description import Grid, Rope
from .token_coords import TokenCoords


class CoordsForAngles(nn.Module):
    """Called as the host's rotary module, with x and position_ids (…, N, c): the coordinates (N, c), twice, where the
    host had cosines and sines. With depth, one value per patch, they have one column more."""

    def __init__(self, token_coords: TokenCoords):
        super().__init__()
        self.token_coords = (token_coords,)  # of the tower, and not one of our own modules

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        coords = self.token_coords[0].place(position_ids.to(x.device).float(), windows=x.ndim == 4)
        return coords, coords


def find_rotaries(tower: nn.Module, name: str) -> dict[str, nn.Module]:
    """The rotary modules of a tower, by path: those whose attribute is called `name`."""
    return {path: m for path, m in tower.named_modules() if path.rpartition(".")[2] == name}


def read_rotary(rotary: nn.Module, head_dim: int, axes: int, layers: int) -> Rope:
    """The RoPE that a rotary module holds, found by asking it: at position 1 on one axis, every channel turns by its
    frequency of that axis."""
    known: Any = rotary
    bands = known.inv_freq.detach().float().flatten()
    if getattr(known, "attention_scaling", 1.0) != 1.0:
        raise ValueError("this model's RoPE scales queries and keys, which no rotation does: use start='replace'")
    ids = torch.cat([torch.zeros(1, axes), torch.eye(axes)]).to(bands.device)  # the origin, then one step per axis
    with torch.no_grad():
        cos, sin = (t.float().reshape(axes + 1, -1) for t in rotary(bands.new_zeros(1), ids))
    angle = torch.atan2(sin, cos)[1:]  # (axes, d)
    if angle.shape[-1] != head_dim:
        raise ValueError(
            f"this model's RoPE turns {angle.shape[-1]} of {head_dim} channels of a head, and attach can carry over "
            f"one that turns all: use start='replace' for a new encoding in its place"
        )
    halves = torch.equal(angle[:, : head_dim // 2], angle[:, head_dim // 2 :])
    if not halves and not torch.equal(angle[:, ::2], angle[:, 1::2]):
        raise ValueError("this model's RoPE turns the two channels of a plane differently: use start='replace'")
    planes = angle[:, : head_dim // 2] if halves else angle[:, ::2]
    nearest = bands[(planes[..., None] - bands).abs().argmin(-1)]  # the frequency itself: its angle was rounded
    theta = torch.where(planes.abs() > 0, nearest, 0)
    return Rope([theta[None]] * layers, not halves, Grid())
