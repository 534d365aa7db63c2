"""How a transformer gets its positions from the name of an encoding: one encoding per layer, in attention, or one
embedding that is added to the tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ..baselines import LearnedAbsolute, LieRE, SinCos
from ..encoding import PositionEncoding, create, names
from ..io.registry import unknown

ABSOLUTE = ("absolute", "sincos")
"""Encodings that are added to the tokens, where attention does not see them."""


def build_encodings(
    encoding: str | PositionEncoding, options: Mapping[str, Any], layers: int, sizes: Mapping[str, int], *, shared: bool
) -> list[PositionEncoding | None]:
    """One encoding per layer: a new one for each (or one for all, if shared) where it is named, the same object where
    it is given, and None for absolute embeddings and "none"."""
    if isinstance(encoding, PositionEncoding):
        return [encoding] * layers
    if encoding in (*ABSOLUTE, "none"):
        if options:
            raise ValueError(f"encoding={encoding!r} has no options, got {dict(options)}: drop encoding_options")
        return [None] * layers

    def build() -> PositionEncoding:
        if encoding in names():
            return create(encoding, **sizes, **options)
        if options:
            raise ValueError(f"LieRE has no options, got {dict(options)}: drop encoding_options")
        return LieRE(**sizes)

    return [build()] * layers if shared else [build() for _ in range(layers)]


def check_encoding(encoding: str | PositionEncoding) -> None:
    """Refuse what is neither the name of an encoding nor an encoding."""
    known = tuple(dict.fromkeys((*names(), "liere", *ABSOLUTE, "none")))
    if isinstance(encoding, str):
        if encoding not in known:
            raise unknown("encoding", encoding, known)
    elif not isinstance(encoding, PositionEncoding):
        raise ValueError(
            f"encoding must be a name ({', '.join(known)}) or an encoding of stringpe, got {encoding!r}: "
            f"a model without positions is encoding='none'"
        )


def absolute_embedding(
    encoding: str | PositionEncoding, dim: int, sizes: Sequence[int], coord_dim: int
) -> nn.Module | None:
    """What is added to tokens: a learned table over a grid of `sizes`, sines and cosines of coord_dim coordinates, or
    nothing where the encoding is not absolute."""
    if encoding == "absolute":
        return LearnedAbsolute(dim, sizes)
    return SinCos(dim, coord_dim=coord_dim) if encoding == "sincos" else None
