"""The terms in which a host is described: its towers, its attention layers, its grid of patches and its own RoPE."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_choice
from ..coords import UNITS, augment


@dataclass(frozen=True)
class Layer:
    """Where an attention class keeps its parts, by attribute. Projections are `qkv` (perhaps with separate `q_bias` and
    `v_bias`), `in_proj_weight`, or `q_proj`, `k_proj` and `v_proj`; `q_norm`, `k_norm`, `norm`, `gate` and `proj_drop`
    are used where they exist.

    heads: the number of heads. out: the output projection. dropout: of attention weights, a number or an nn.Dropout.
    pair: whether it returns (x, weights) in place of x.
    bias: computes what is added to scores, from the module, its queries (b, h, n, d) before encoding and the (rows,
        columns) of its tokens. It is used where the module has a `rel_pos_h`.
    apart: the names of separate projections of queries, keys and values. head_dim: the channels per head.
    keep: a map of queries or keys (b, h, n, d) at coordinates (n, c) that the host applies and that is not a rotation,
        so that no encoding can replace it exactly: with start="same" it stays, and is applied after the encoding.
    """

    heads: str = "num_heads"
    out: str = "proj"
    dropout: str = "attn_drop"
    pair: bool = False
    bias: Callable[[nn.Module, Tensor, tuple[int, int]], Tensor] | None = None
    apart: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    head_dim: str = "head_dim"
    keep: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Grid:
    """How patches are measured: the map from (row, column) indices to coordinates.

    units: "index", "centred" or "normalised", as in `stringpe.coords.grid`. offset: added to the indices first.
    reference: a grid that any other is stretched to, index / size · reference. over: "separate" normalises each axis by
    its own size, "max" or "min" both by one. shift, jitter, rescale: random in training, as in `coords.augment`.
    """

    units: str = "index"
    offset: float = 0.0
    reference: tuple[int, int] | None = None
    over: str = "separate"
    shift: float = 0.0
    jitter: float = 1.0
    rescale: float = 1.0

    def __post_init__(self) -> None:
        check_choice("units", self.units, UNITS)

    def measure(self, plane: Tensor, height: Tensor | int, width: Tensor | int, *, training: bool = False) -> Tensor:
        """Indices (…, n, 2) on a grid to coordinates (…, n, 2). height and width are numbers or (b, 1) tensors."""
        sizes = (height, width)
        if self.over != "separate":
            both = torch.stack([torch.as_tensor(size, device=plane.device) for size in sizes])
            sizes = ((both.amax(0) if self.over == "max" else both.amin(0)),) * 2
        columns = [self._axis(plane[..., k], sizes[k], k) for k in (0, 1)]
        coords = torch.stack(columns, dim=-1)
        if training and (self.shift, self.jitter, self.rescale) != (0.0, 1.0, 1.0):
            batched = coords[None] if coords.ndim == 2 else coords
            moved = augment(batched, shift=self.shift, jitter=self.jitter, rescale=self.rescale)
            coords = moved[0] if coords.ndim == 2 else moved
        return coords

    def _axis(self, index: Tensor, size: Tensor | int, axis: int) -> Tensor:
        if self.units == "centred":
            return index + self.offset - (size - 1) / 2
        if self.units == "normalised":
            return (2 * (index + self.offset) + 1) / size - 1
        if self.reference is not None:
            return (index + self.offset) / size * self.reference[axis]
        return index + self.offset


@dataclass(frozen=True)
class Rope:
    """The RoPE of a host: Θ of each layer, (h or 1, 2, d/2) for (row, column), whether its planes are pairs of
    neighbouring channels (interleaved) or halves, and how it measures its patches."""

    theta: list[Tensor]
    interleaved: bool
    grid: Grid


def no_rope(tower: nn.Module, layers: list[nn.Module]) -> Rope | None:
    """`Tower.rope` of towers without RoPE."""
    return None


def no_prefix(tower: nn.Module) -> int:
    """`Tower.prefix_rows` of tables of patches alone."""
    return 0


def one_prefix(tower: nn.Module) -> int:
    """`Tower.prefix_rows` of tables whose first row is the class token's."""
    return 1


@dataclass(frozen=True)
class Tower:
    """Where a vision tower keeps what attaching needs. Strings are paths of attributes from the tower.

    patches: the convolution that makes patches, whose output has the shape of the grid; or, if the tower is called with
        patches, the module that embeds them.
    reader: in the second case, the method of `TokenCoords` that reads the call of that module.
    table: the absolute position embedding, a parameter or an nn.Embedding; several paths with spaces between them, of
        which those that exist count; "" if there is none.
    prefix_rows: how many of its first rows belong to tokens in front of the patches, as a function of the tower.
    blocks: the module that holds the self-attention layers; "" is the whole tower.
    dropout: patch dropout; "" if there is none.
    rope: reads the host's RoPE. rope_path: what to remove once the RoPE is carried over; "" to leave it, unused.
    rotary: the attribute name of the module, or modules, that turn position ids into cosines and sines for attention;
        "" if there is none. `token_coords.CoordsForAngles` replaces them, and `patches` is not hooked.
    axes: the number of coordinates per token.
    """

    patches: str
    table: str = ""
    prefix_rows: Callable[[nn.Module], int] = no_prefix
    blocks: str = ""
    dropout: str = ""
    rope: Callable[[nn.Module, list[nn.Module]], Rope | None] = no_rope
    rope_path: str = ""
    rotary: str = ""
    axes: int = 2
    reader: str = "read_sizes"


@dataclass(frozen=True)
class Host:
    """A library: its towers and attention layers, by class name."""

    package: str
    towers: Mapping[str, Tower] = field(default_factory=dict)
    layers: Mapping[str, Layer] = field(default_factory=dict)


def axial_theta(bands: Tensor, *, columns_first: bool = False) -> Tensor:
    """Θ (1, 2, 2·len(bands)) of axial RoPE: the first half of the planes turns with rows, the second with columns."""
    zero = torch.zeros_like(bands)
    theta = torch.stack([torch.cat([bands, zero]), torch.cat([zero, bands])])
    return (theta.flip(0) if columns_first else theta)[None]


def mixed_theta(freqs: Tensor, num_heads: int, *, columns_first: bool = True) -> list[Tensor]:
    """Θ (h, 2, d/2) of each layer from RoPE-Mixed weights: timm's `rope.freqs` (2, layers, h, d/2) or rope-vit's
    `freqs` (2, layers, h·d/2). Both store x, the column, first, unless timm's grid is indexed "ij"."""
    if freqs.ndim not in (3, 4) or freqs.shape[0] != 2 or freqs[0, 0].numel() % num_heads:
        raise ValueError(
            f"RoPE-Mixed weights are (2, layers, heads, d/2) or (2, layers, heads·d/2), got {tuple(freqs.shape)} "
            f"for {num_heads} heads"
        )
    split = freqs.detach().float().reshape(2, freqs.shape[1], num_heads, -1)
    split = split.flip(0) if columns_first else split
    return list(split.movedim(0, 2).unbind())


def inverse_periods(periods: Tensor) -> Tensor:
    """Frequencies in radians per unit, from periods in units."""
    return 2 * math.pi / periods.detach().float()


def find_rotaries(tower: nn.Module, name: str) -> dict[str, nn.Module]:
    """The rotary modules of a tower, by path: those whose attribute is called `name`."""
    return {path: m for path, m in tower.named_modules() if path.rpartition(".")[2] == name}


def read_rotary(rotary: nn.Module, head_dim: int, axes: int, layers: int) -> Rope:
    """The RoPE of a rotary module, found by calling it: at position 1 on one axis and 0 on the others, every channel
    turns by its frequency of that axis."""
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
