"""How a transformer gets its positions from the name of an encoding: one encoding per layer, in attention, or one
embedding that is added to the tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..catalogue import create, kind_of, names
from ..encoding import AbsoluteEmbedding, PositionEncoding

NONE = "none"
"""The name that stands for a model without positions."""


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
    """Refuse what is neither the name of an encoding nor an encoding."""
    if isinstance(encoding, PositionEncoding) or encoding == NONE:
        return
    try:
        kind_of(encoding)
    except TypeError:
        known = (*names(baselines=True), *names(kind="absolute"), NONE)
        raise ValueError(
            f"encoding must be a name ({', '.join(known)}) or an encoding of stringpe, got {encoding!r}: "
            f"a model without positions is encoding='none'"
        ) from None


def absolute_embedding(
    encoding: str | PositionEncoding, dim: int, sizes: Sequence[int], coord_dim: int
) -> AbsoluteEmbedding | None:
    """What is added to tokens, for a grid of `sizes` and coord_dim coordinates; None where the encoding acts in
    attention."""
    if not isinstance(encoding, str) or not is_absolute(encoding):
        return None
    embedding: AbsoluteEmbedding = create(encoding, dim=dim, sizes=sizes, coord_dim=coord_dim)
    return embedding
