"""Images of different sizes in one batch, as in NaViT: their patches are packed into one sequence, and attention stays
within each image. The result of every image is that of the image alone."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..checks import check_tensor
from ..folding import in_groups
from ..packing import Packing
from .blocks import Layers, run_blocks


class Features(NamedTuple):
    """What a ViT returns: patch tokens (b, n, dim), row by row on the grid of `size` patches and view after view, one
    pooled vector (b, dim), and the patches' coordinates (n, c) or (b, n, c)."""

    tokens: Tensor
    pooled: Tensor
    coords: Tensor
    size: tuple[int, int]


class BlockInputs(NamedTuple):
    """What goes into the blocks of a ViT: tokens (b, t, dim) at places (t, c) or (b, t, c), which are a prefix, patches
    and, in models that read normals, as many tokens of normals; and coordinates and grid size of the patches alone."""

    tokens: Tensor
    places: Tensor
    coords: Tensor
    size: tuple[int, int]


class PackedFeatures(NamedTuple):
    """Features of images of different sizes: per image the tokens (n, dim) of the patches in use, and
    their coordinates (n, c); one pooled vector each, (b, dim); and the grids' sizes."""

    tokens: list[Tensor]
    pooled: Tensor
    coords: list[Tensor]
    sizes: list[tuple[int, int]]


class _Model(Protocol):
    """What packing needs of a ViT."""

    patch_size: int
    front: int
    blocks: Layers
    norm: nn.LayerNorm

    def tokenise(self, image: Tensor, depth: Tensor | None = None) -> BlockInputs: ...

    def read_out(self, x: Tensor, inputs: BlockInputs) -> Features: ...


def pack_features(
    model: _Model,
    images: Sequence[Tensor] | Tensor,
    depths: Sequence[Tensor] | Tensor | None,
    patch_mask: Sequence[Tensor] | Tensor | None,
) -> PackedFeatures:
    """Tokens, pooled vectors and coordinates of images (3, H, W) with depths (H, W), in their order.

    patch_mask: boolean (H/p, W/p) per image, True for the patches to use.
    """
    _check_sequences(images, depths, patch_mask, model.patch_size)
    inputs = _tokenise_by_size(model, images, depths)
    if patch_mask is not None:
        inputs = [_select(one, mask, model.front) for one, mask in zip(inputs, patch_mask, strict=True)]
    packing = Packing([one.tokens.shape[1] for one in inputs])
    tokens = torch.cat([one.tokens for one in inputs], dim=1)
    places = torch.cat([one.places for one in inputs], dim=1)
    x = model.norm(run_blocks(model.blocks, tokens, places, packing=packing))
    return _read_out_by_count(model, packing.split(x, 1), inputs)


def _tokenise_by_size(
    model: _Model, images: Sequence[Tensor] | Tensor, depths: Sequence[Tensor] | Tensor | None
) -> list[BlockInputs]:
    """`BlockInputs` of each image as a batch of one; images of one size are embedded together."""

    def tokenise(members: list[int]) -> list[BlockInputs]:
        depth = None if depths is None else torch.stack([depths[i] for i in members])
        tokens, places, coords, size = model.tokenise(torch.stack([images[i] for i in members]), depth)
        places, coords = (t.expand(len(members), *t.shape[-2:]) for t in (places, coords))
        single = zip(tokens.split(1), places.split(1), coords.split(1), strict=True)
        return [BlockInputs(t, p, c, size) for t, p, c in single]

    return in_groups(range(len(images)), [tuple(image.shape) for image in images], tokenise)


def _read_out_by_count(model: _Model, outputs: Sequence[Tensor], inputs: Sequence[BlockInputs]) -> PackedFeatures:
    """Tokens and pooled vectors; images with equal numbers of tokens are pooled together."""

    def read_out(members: list[int]) -> list[tuple[Tensor, Tensor]]:
        first = inputs[members[0]]._replace(coords=torch.cat([inputs[i].coords for i in members]))
        features = model.read_out(torch.cat([outputs[i] for i in members]), first)
        return list(zip(features.tokens.unbind(), features.pooled.unbind(), strict=True))

    counts = [(x.shape[1], one.coords.shape[1]) for x, one in zip(outputs, inputs, strict=True)]
    features = in_groups(range(len(inputs)), counts, read_out)
    return PackedFeatures(
        [tokens for tokens, _ in features],
        torch.stack([pooled for _, pooled in features]),
        [one.coords[0] for one in inputs],
        [one.size for one in inputs],
    )


def _select(inputs: BlockInputs, mask: Tensor, front: int) -> BlockInputs:
    """These inputs without the patches, and their normals, that the mask leaves out."""
    tokens, places, coords, size = inputs
    patches = mask.flatten()
    copies = (tokens.shape[1] - front) // patches.numel()  # 2 with normals
    index = torch.cat([patches.new_ones(front), *[patches] * copies]).nonzero()[:, 0]
    return BlockInputs(tokens[:, index], places[:, index], coords[:, patches.nonzero()[:, 0]], size)


def _check_sequences(
    images: Sequence[Tensor] | Tensor,
    depths: Sequence[Tensor] | Tensor | None,
    patch_mask: Sequence[Tensor] | Tensor | None,
    p: int,
) -> None:
    if not len(images):
        raise ValueError("there must be at least one image")
    for name, given in (("depths", depths), ("patch masks", patch_mask)):
        if given is not None and not isinstance(given, (list, tuple, Tensor)):
            raise TypeError(f"{name} must be a list with one per image, got {type(given).__name__}")
        if given is not None and len(given) != len(images):
            raise ValueError(f"there must be one per image: got {len(given)} {name} for {len(images)} images")
    for i, image in enumerate(images):
        if not isinstance(image, Tensor) or image.ndim != 3:
            got = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
            raise ValueError(f"images must be tensors (3, H, W), but number {i} is {got}")
        for name, given in (("depth", depths), ("patch mask", patch_mask)):
            if given is not None:
                check_tensor(f"{name} {i}", given[i])
        if depths is not None and depths[i].shape != image.shape[1:]:
            sizes = f"{tuple(depths[i].shape)} and its image {tuple(image.shape)}"
            raise ValueError(f"depth must be (H, W) like its image, but number {i} is {sizes}")
        grid = (image.shape[1] // p, image.shape[2] // p)
        if patch_mask is not None and (patch_mask[i].shape != grid or patch_mask[i].dtype != torch.bool):
            got = f"{tuple(patch_mask[i].shape)} of {patch_mask[i].dtype}"
            raise ValueError(f"a patch mask must be boolean (H/p, W/p) = {grid}, but number {i} is {got}")
        if patch_mask is not None and not patch_mask[i].any():
            raise ValueError(f"patch mask {i} leaves no patch: drop the image instead")
