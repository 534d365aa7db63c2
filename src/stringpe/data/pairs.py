"""Captioned images in memory: decoded once into uint8, stretched to a square as SigLIP does, with what was left out."""

import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..recipes.schema import Data
from .captions import CaptionSet, caption_set, fits
from .images import to_tensor
from .labelled import CorruptImage

if TYPE_CHECKING:
    from PIL.Image import Image

_NAMED = 3  # corrupt samples that a warning names


@dataclass(frozen=True)
class Pairs:
    """Images (n, 3, S, S) uint8, depth (n, S, S) float16 in metres or None, and captions, at least one an image.

    group: so many images in a row belong together (views of one room) and always share a batch.
    problems: the samples that were left out, and why.
    """

    image: Tensor
    depth: Tensor | None
    captions: list[list[str]]
    group: int = 1
    problems: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.image)


@lru_cache(maxsize=4)
def pairs(data: Data, split: str, depth: bool) -> Pairs:
    """A split of captioned images, with depth if asked for; kept for the next run in this process."""
    if data.source == "scenes":
        from .views import views

        return views(data, split, depth)
    found = caption_set(data.source, data.train if split == "train" else data.val, data.depth_step)
    limit = data.train_size if split == "train" else data.val_size
    return read_all(found, data.image_size, limit, depth)


def stretched(picture: "Image", size: int) -> Tensor:
    """uint8 (3, size, size)."""
    from PIL import Image

    return to_tensor(picture.resize((size, size), Image.Resampling.BICUBIC))


def stretched_depth(depth: Tensor, size: int) -> Tensor:
    """(H, W) to float16 (size, size), each the nearest pixel: a mean over an edge is no distance."""
    return F.interpolate(depth[None, None], (size, size), mode="nearest-exact")[0, 0].half()


def read_all(found: CaptionSet, size: int, limit: int, depth: bool) -> Pairs:
    """A whole set (or its first `limit`), without what cannot be read, which one warning counts and names."""
    count = min(limit or len(found), len(found))

    def one(i: int) -> tuple[Tensor, Tensor | None, list[str]] | CorruptImage:
        try:
            picture, captions = found.picture(i), found.captions(i)
            far = stretched_depth(fits(found.depth(i), picture, found.name(i)), size) if depth else None
            return stretched(picture, size), far, captions
        except CorruptImage as error:
            return error

    with ThreadPoolExecutor() as pool:
        read = list(pool.map(one, range(count)))
    problems = [str(r) for r in read if isinstance(r, CorruptImage)]
    good = [r for r in read if not isinstance(r, CorruptImage)]
    if problems:
        listed = "; ".join(problems[:_NAMED]) + ("; …" if len(problems) > _NAMED else "")
        if not good:
            raise ValueError(f"none of the {count} samples can be read: {listed}")
        text = f"{len(problems)} of {count} samples cannot be read and are left out: {listed}"
        warnings.warn(text, RuntimeWarning, 2)
    if not good:
        raise ValueError("the set of captioned images is empty: check data.train and data.val")
    depths = [far for _, far, _ in good if far is not None]
    return Pairs(
        image=torch.stack([image for image, _, _ in good]),
        depth=torch.stack(depths) if depth else None,
        captions=[captions for _, _, captions in good],
        problems=problems,
    )
