"""From pixels to patch tokens: one linear map per patch, or a few convolutions."""

import math
import re
from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_choice
from ..rotate import product_dtype

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
        return PatchEmbedding(4 if depth else 3, dim, patch_size), None
    return _convolutions(dim, patch_size), PatchEmbedding(1, dim, patch_size) if depth else None


class PatchEmbedding(nn.Conv2d):
    """One linear map for all patches: (b, channels, H, W) to (b, dim, H / patch_size, W / patch_size).

    It is a convolution whose stride is its kernel. On a GPU it is computed as the product of a matrix of patches and
    the weights: there, the library's convolutions of such shapes take several times as long. On a CPU they do not."""

    def __init__(self, channels: int, dim: int, patch_size: int):
        super().__init__(channels, dim, patch_size, patch_size)

    def forward(self, image: Tensor) -> Tensor:
        if image.device.type != "cuda":
            return super().forward(image)
        return self.as_product(image)

    def as_product(self, image: Tensor) -> Tensor:
        """The same, as one product."""
        b, channels, height, width = image.shape
        p, _ = self.kernel_size
        rows, columns = height // p, width // p
        image = image[..., : rows * p, : columns * p].to(product_dtype(image))  # before the copy that reshape makes
        patches = image.reshape(b, channels, rows, p, columns, p).permute(0, 2, 4, 1, 3, 5)
        tokens = F.linear(patches.reshape(b, rows * columns, channels * p * p), self.weight.flatten(1), self.bias)
        return tokens.mT.unflatten(-1, (rows, columns))


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


def vit_prefixes(names: Iterable[str]) -> list[str]:
    """What stands before the names of each ViT in a state dict, recognised by the first tensor of its stem."""
    return [found.group(1) for found in map(_FIRST.fullmatch, names) if found]


_FIRST = re.compile(r"((?:.*\.)?)patch(?:\.0)?\.weight")
