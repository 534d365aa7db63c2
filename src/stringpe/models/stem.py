"""From pixels to patch tokens: one linear map a patch, or a few convolutions."""

import math
import re
from collections.abc import Iterable

from torch import nn

STEMS = ("patch", "conv")


def stem(kind: str, channels: int, dim: int, patch_size: int) -> nn.Module:
    """Images (b, channels, H, W) to features (b, dim, H / patch_size, W / patch_size).

    "patch" is the linear embedding of patches that do not overlap. "conv" halves the image with 3 × 3 convolutions
    until a pixel is a patch: it knows from the start that neighbours belong together, which a transformer has to learn
    and for which it needs more data; it costs a little more."""
    if kind == "patch":
        return nn.Conv2d(channels, dim, patch_size, patch_size)
    if kind != "conv":
        raise ValueError(f"there is no stem {kind!r}: it is {' or '.join(map(repr, STEMS))}")
    halvings = round(math.log2(patch_size))
    if patch_size < 2 or 2**halvings != patch_size:
        raise ValueError(f"the stem 'conv' halves the image: patch_size must be a power of 2, got {patch_size}")
    parts: list[nn.Module] = []
    for left in reversed(range(halvings)):  # the last has the model's width, each before it half of the next
        width = max(dim >> left, 8)
        parts += [nn.Conv2d(channels, width, 3, 2, 1), nn.GroupNorm(math.gcd(width, 4), width), nn.GELU()]
        channels = width
    return nn.Sequential(*parts, nn.Conv2d(channels, dim, 1))


def prefixes(names: Iterable[str]) -> list[str]:
    """What stands before the names of each ViT in a state dict, told by the first tensor of its stem."""
    return [found.group(1) for found in map(_FIRST.fullmatch, names) if found]


_FIRST = re.compile(r"((?:.*\.)?)patch(?:\.0)?\.weight")
