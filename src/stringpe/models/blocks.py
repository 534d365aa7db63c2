"""The parts of a transformer: blocks of attention and MLP on a residual stream, attention pooling behind them, and
their positions: one encoding per layer, in attention, or one embedding that is added to the tokens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..attention import Attention, prepare_together
from ..catalogue import create, kind_of, names
from ..checks import check_count, check_number
from ..encoding import AbsoluteEmbedding, PositionEncoding
from ..linear_attention import LinearAttention
from ..packing import Packing
from .initialise import draw_by_fan_in, initialise

ATTENTIONS: dict[str, Callable[..., Attention | LinearAttention]] = {
    "softmax": Attention,
    "linear": LinearAttention,
    "relu": partial(LinearAttention, features="relu"),
}
"""The kinds of attention that a model can be built with, by name."""

NONE = "none"
"""The name that stands for a model without positions."""


class Block(nn.Module):
    """x + attention(norm x), then x + MLP(norm x); each branch is dropped per sample with probability drop_path."""

    def __init__(
        self, dim: int, attention: Attention | LinearAttention, mlp_dim: int, dropout: float, drop_path: float
    ):
        super().__init__()
        check_rates(dropout, drop_path)
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp_dim, dim))
        self.dropout, self.drop_path = nn.Dropout(dropout), drop_path

    def forward(self, x: Tensor, coords: Tensor | None, *, lengths: Packing | None = None, **options: Any) -> Tensor:
        """(b, n, dim) to (b, n, dim); lengths and other options: as of the attention layer."""
        x = x + self._branch(self.attention(self.norm1(x), coords, lengths=lengths, **options), lengths)
        return x + self._branch(self.mlp(self.norm2(x)), lengths)

    def residual_outputs(self) -> list[nn.Linear]:
        """The layers whose outputs are added to the residual stream."""
        last = self.mlp[-1]
        assert isinstance(last, nn.Linear)
        return [self.attention.out, last]

    def _branch(self, x: Tensor, lengths: Packing | None = None) -> Tensor:
        x = self.dropout(x)
        if not self.training or self.drop_path == 0:
            return x
        keep = torch.rand(len(x if lengths is None else lengths), 1, 1, device=x.device) >= self.drop_path
        keep = keep if lengths is None else lengths.spread(keep[:, 0])[None]
        return x * (keep / (1 - self.drop_path)).to(x.dtype)


class Layers(nn.ModuleList):
    """Layers that run one after another. Where each of them is compiled by itself (`compile_each`), torch.compile of
    the model around them makes one graph of what comes before them and one of what comes after."""

    _run: Callable[..., Tensor] | None = None

    def forward(self, x: Tensor, options: Sequence[Mapping[str, Any]]) -> Tensor:
        """x through all layers, each called with its own options."""
        return (self._run or _run_in_turn)(self, x, options)

    def compile_each(self, **options: Any) -> None:
        """Compile every layer, with the options of torch.compile: equal layers share their code."""
        for layer in self:
            layer.compile(**options)
        self._run = torch.compiler.disable(_run_in_turn)  # or the graph around the layers would take them in


def _run_in_turn(layers: Layers, x: Tensor, options: Sequence[Mapping[str, Any]]) -> Tensor:
    for layer, own in zip(layers, options, strict=True):
        x = layer(x, **own)
    return x


def stack_blocks(
    dim: int,
    attention: Iterable[Attention | LinearAttention],
    layers: int,
    mlp_dim: int,
    dropout: float,
    drop_path: float,
) -> Layers:
    """Blocks around these layers of attention; drop_path grows linearly, from 0 in the first to its full value."""
    rates = (drop_path * i / max(layers - 1, 1) for i in range(layers))
    return Layers(Block(dim, a, mlp_dim, dropout, rate) for a, rate in zip(attention, rates, strict=True))


class MapPool(nn.Module):
    """Attention pooling: one learned query attends to all tokens, then a residual MLP (SigLIP's head)."""

    def __init__(self, dim: int, num_heads: int, mlp_dim: int):
        super().__init__()
        self.query = nn.Parameter(torch.empty(1, 1, dim))
        self.attention = Attention(dim, num_heads)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, mlp_dim), nn.GELU(), nn.Linear(mlp_dim, dim))
        initialise(self)

    def reset_parameters(self) -> None:
        """The whole signal goes through values and outputs: there is no residual stream beside them."""
        draw_by_fan_in(self.attention.qkv, gain=1.0)
        draw_by_fan_in(self.attention.out, gain=1.0)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(b, n, dim) to (b, dim). mask: boolean, False for tokens to be left out, as in `Attention`."""
        x = self.attention(self.query.expand(tokens.shape[0], -1, -1).to(tokens.dtype), context=tokens, mask=mask)
        return (x + self.mlp(self.norm(x)))[:, 0]


def check_tower(dim: int, layers: int, num_heads: int, mlp_ratio: float, dropout: float, drop_path: float) -> None:
    """Refuse sizes and rates that no stack of blocks can have."""
    for name, size in (("dim", dim), ("layers", layers), ("num_heads", num_heads)):
        check_count(name, size)
    if check_number("mlp_ratio", mlp_ratio) * dim < 1:
        raise ValueError(f"mlp_ratio must give the MLP at least one channel, got {mlp_ratio} of dim={dim}")
    check_rates(dropout, drop_path)


def check_rates(dropout: float, drop_path: float) -> None:
    """Refuse rates outside of [0, 1)."""
    for name, rate in (("dropout", dropout), ("drop_path", drop_path)):
        if not 0 <= check_number(name, rate) < 1:
            raise ValueError(f"{name} is a rate of at least 0 and below 1, got {rate}")


def run_blocks(
    blocks: Layers,
    x: Tensor,
    coords: Tensor,
    mask: Tensor | None = None,
    packing: Packing | None = None,
) -> Tensor:
    """Tokens (b, n, dim), or packed ones (1, N, dim), at coords through all blocks. What depends on parameters alone,
    such as P and its product with the weights, is worked out for all layers at once where possible."""
    layers = [block.attention for block in as_blocks(blocks)]
    options = [
        {"coords": None if layer.encoding is None else coords, "mask": mask, "lengths": packing, "prepared": prepared}
        for layer, prepared in zip(layers, prepare_together(layers), strict=True)
    ]
    out: Tensor = blocks(x, options)
    return out


def as_blocks(blocks: nn.ModuleList) -> list[Block]:
    """The blocks of a stack, typed as such."""
    return [block for block in blocks if isinstance(block, Block)]


def is_absolute(encoding: str | PositionEncoding) -> bool:
    """Whether this encoding is added to the tokens, so that attention does not see it."""
    return isinstance(encoding, str) and encoding != NONE and kind_of(encoding) == "absolute"


def build_encodings(
    encoding: str | PositionEncoding, options: Mapping[str, Any], layers: int, sizes: Mapping[str, int], *, shared: bool
) -> list[PositionEncoding | None]:
    """One encoding per layer: a new one for each (or one for all, if shared) where it is named, the same object where
    it is given, and None for absolute embeddings and "none"."""
    if isinstance(encoding, PositionEncoding):
        return [encoding] * layers
    if encoding == NONE or is_absolute(encoding):
        if options:
            raise ValueError(f"encoding={encoding!r} has no options, got {dict(options)}: drop encoding_options")
        return [None] * layers
    if shared:
        return [create(encoding, **sizes, **options)] * layers
    return [create(encoding, **sizes, **options) for _ in range(layers)]


def check_encoding(encoding: str | PositionEncoding) -> None:
    """Refuse anything but an encoding or the name of one."""
    if isinstance(encoding, PositionEncoding) or (isinstance(encoding, str) and encoding == NONE):
        return
    try:
        kind_of(encoding)
    except TypeError:
        known = (*names(baselines=True), *names(kind="absolute"), NONE)
        raise ValueError(
            f"encoding must be a name ({', '.join(known)}) or an encoding of stringpe, got {encoding!r}: "
            f"a model without positions is encoding='none'"
        ) from None


def build_absolute(
    encoding: str | PositionEncoding, dim: int, sizes: Sequence[int], coord_dim: int
) -> AbsoluteEmbedding | None:
    """What is added to tokens, for a grid of `sizes` and coord_dim coordinates; None where the encoding acts in
    attention."""
    if not isinstance(encoding, str) or not is_absolute(encoding):
        return None
    embedding: AbsoluteEmbedding = create(encoding, dim=dim, sizes=sizes, coord_dim=coord_dim)
    return embedding
