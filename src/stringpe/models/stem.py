"""From pixels to patch tokens: one linear map per patch, or a few convolutions."""

import math
import re
from collections.abc import Iterable

from torch import nn

from ..checks import check_choice

STEMS = ("patch", "conv")


def build_stem(kind: str, dim: int, patch_size: int, *, depth: bool = False) -> tuple[nn.Module, nn.Conv2d | None]:
    """The module from images (b, 3, H, W), or (b, 4, H, W) with depth, to features (b, dim, H / patch_size,
    W / patch_size), and the embedding of depth (b, 1, H, W) that is added to them where the module does not take it.

    "patch" is the linear embedding of patches that do not overlap, of all channels at once. "conv" halves the image
    with 3 × 3 convolutions until a pixel is a patch: it knows from the start that neighbours belong together, which a
    transformer has to learn and for which it needs more data; it costs a little more.

    Convolutions see RGB alone. Their group norms subtract the mean of an image and divide by its spread, and with them
    goes how far away things are: from tokens of four channels a linear map reads a patch's depth with an error of 52 cm
    (random surfaces at 1 to 5 m), from tokens to which a linear embedding of depth is added with one of 1 cm.
    """
    check_choice("stem", kind, STEMS)
    if kind == "patch":
        return nn.Conv2d(4 if depth else 3, dim, patch_size, patch_size), None
    return _convolutions(dim, patch_size), nn.Conv2d(1, dim, patch_size, patch_size) if depth else None


def _convolutions(dim: int, patch_size: int) -> nn.Module:
    halvings = round(math.log2(patch_size))
    if patch_size < 2 or 2**halvings != patch_size:
        raise ValueError(f"the stem 'conv' halves the image: patch_size must be a power of 2, got {patch_size}")
    parts: list[nn.Module] = []
    channels = 3
    for left in reversed(range(halvings)):  # the last has the model's width, each before it half of the next
        width = max(dim >> left, 8)
        parts += [nn.Conv2d(channels, width, 3, 2, 1), nn.GroupNorm(math.gcd(width, 4), width), nn.GELU()]
        channels = width
    return nn.Sequential(*parts, nn.Conv2d(channels, dim, 1))


def prefixes(names: Iterable[str]) -> list[str]:
    """What stands before the names of each ViT in a state dict, recognised by the first tensor of its stem."""
    return [found.group(1) for found in map(_FIRST.fullmatch, names) if found]


_FIRST = re.compile(r"((?:.*\.)?)patch(?:\.0)?\.weight")
