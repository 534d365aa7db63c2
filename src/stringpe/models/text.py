"""The text tower: token numbers become vectors, go through blocks of bidirectional attention, and are pooled.

tower = TextTower(vocab=8000, dim=256, layers=4, num_heads=4, width=256)
embedding = tower(tokens)             # tokens (b, n) as `Tokenizer.encode` returns them, to (b, width)
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..attention import Attention
from ..checks import can_read, check_choice, check_count, check_tensor
from ..encoding import PositionEncoding
from .blocks import MapPool, build_absolute, build_encodings, check_encoding, check_tower, run_blocks, stack_blocks
from .initialise import draw_by_fan_in, initialise

POOLS = ("map", "last", "mean")


class TextFeatures(NamedTuple):
    """What a text tower returns: tokens (b, n, dim), one pooled vector (b, dim), and mask (b, n), False at padding."""

    tokens: Tensor
    pooled: Tensor
    mask: Tensor


class TextTower(nn.Module):
    """A transformer over tokens of text. Every token attends to all others, and none to padding.

    vocab: number of tokens. padding: the token that fills up short texts. context: the longest text, in tokens.
    encoding: "absolute" (a learned table, as SigLIP) or "sincos", added to the tokens; a name of
        `stringpe.names(baselines=True)` or an encoding object with coord_dim=1, whose coordinate is the position in the
        text; or "none".
    encoding_options: passed to the named encoding.
    pool: "map" (attention pooling), "last" (the last token that is not padding) or "mean".
    width: of the embedding; 0 leaves the pooled vector as it is.
    """

    def __init__(
        self,
        *,
        vocab: int,
        dim: int = 512,
        layers: int = 12,
        num_heads: int = 8,
        context: int = 64,
        encoding: str | PositionEncoding = "absolute",
        encoding_options: Mapping[str, Any] | None = None,
        pool: str = "map",
        width: int = 0,
        padding: int = 0,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
    ):
        super().__init__()
        _check(encoding, pool, vocab, padding, context)
        check_tower(dim, layers, num_heads, mlp_ratio, dropout, drop_path)
        check_count("width", width, 0)
        self.dim, self.width, self.vocab, self.context = dim, width or dim, vocab, context
        self.pool, self.padding = pool, padding
        self.embedding = nn.Embedding(vocab, dim)
        self.absolute = build_absolute(encoding, dim, [context], coord_dim=1)
        sizes = {"head_dim": dim // num_heads, "num_heads": num_heads, "coord_dim": 1}
        encodings = build_encodings(encoding, encoding_options or {}, layers, sizes, shared=False)
        mlp_dim = int(dim * mlp_ratio)
        heads = (Attention(dim, num_heads, encoding=e) for e in encodings)
        self.blocks = stack_blocks(dim, heads, layers, mlp_dim, dropout, drop_path)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.map_pool = MapPool(dim, num_heads, mlp_dim) if pool == "map" else None
        self.projection = nn.Linear(dim, width) if width else nn.Identity()
        initialise(self)

    def reset_parameters(self) -> None:
        if isinstance(self.projection, nn.Linear):
            draw_by_fan_in(self.projection, gain=1.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings (b, width), not normalised."""
        return self.projection(self.features(tokens).pooled)

    def features(self, tokens: Tensor) -> TextFeatures:
        """The vector of every token, the pooled one, and which tokens are text."""
        self._check_input(tokens)
        mask = tokens != self.padding
        # A row of nothing but padding, such as an unused query, attends to its first token: softmax needs at least one.
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], dim=1)
        coords = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)[:, None]  # (n, 1)
        x = self.embedding(tokens)
        if self.absolute is not None:
            x = x + self.absolute(coords).to(x.dtype)
        visible = mask[:, None, None]  # (b, 1, 1, n), the same for all heads and queries
        x = self.norm(run_blocks(self.blocks, x, coords, visible))
        return TextFeatures(x, self._pool(x, mask, visible), mask)

    def _pool(self, x: Tensor, mask: Tensor, visible: Tensor) -> Tensor:
        if self.map_pool is not None:
            return self.map_pool(x, visible)
        if self.pool == "mean":
            share = mask.to(x.dtype) / mask.sum(1, keepdim=True)
            return (x * share[..., None]).sum(1)
        place = torch.arange(x.shape[1], device=x.device)
        last = torch.where(mask, place, 0).amax(1)  # (b,)
        return x[torch.arange(len(x), device=x.device), last]

    def _check_input(self, tokens: Tensor) -> None:
        check_tensor("tokens", tokens)
        if (
            tokens.ndim != 2
            or tokens.dtype not in (torch.int32, torch.int64)
            or not 1 <= tokens.shape[1] <= self.context
        ):
            raise ValueError(
                f"tokens must be (b, n) integers with n from 1 to the context of {self.context}, got "
                f"{tuple(tokens.shape)} {tokens.dtype}: encode texts with context={self.context}"
            )
        if can_read(tokens) and tokens.numel() and not (tokens.amin() >= 0 and tokens.amax() < self.vocab):
            raise ValueError(
                f"tokens must be numbers from 0 to {self.vocab - 1}, got {int(tokens.amin())} to {int(tokens.amax())}: "
                f"use the tokeniser that the model was trained with"
            )


def _check(encoding: str | PositionEncoding, pool: str, vocab: int, padding: int, context: int) -> None:
    check_encoding(encoding)
    check_choice("pool", pool, POOLS)
    for what, number, least in (("vocab", vocab, 1), ("padding", padding, 0), ("context", context, 1)):
        check_count(what, number, least)
    if isinstance(encoding, PositionEncoding) and encoding.coord_dim != 1:
        raise ValueError(f"text has one coordinate, the encoding has {encoding.coord_dim}: build it with coord_dim=1")
    if padding >= vocab:
        raise ValueError(f"padding must be a token number below vocab={vocab}, got {padding}")
