"""Losses over all pairs of a batch: SigLIP's sigmoid loss and CLIP's softmax loss, each dense, chunked or distributed.

The dense, chunked and distributed forms have the same value and the same gradients. Chunked: only `chunk` rows of
logits exist at a time, and the backward pass computes them again. Distributed: every process holds b pairs of a global
batch of B = b · world, and compares its images with the texts of all processes. The loss of a process is the mean over
its own images, so that the mean over processes, which is how data-parallel training combines gradients, is the loss of
the global batch. `clip_loss_within_groups` is a third loss, to be added to one of them, which compares only pairs of
one group."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..rotate import full_precision

PAIR_LOSSES = ("siglip", "clip")


def siglip_loss(
    image: Tensor,
    text: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    chunk: int = 0,
    group: Any = None,
) -> Tensor:
    """−(1/B) Σ_ij log σ(z_ij (e^t s_ij + b)), z = 1 where text j belongs to image i and −1 elsewhere (Zhai et al.).

    image and text (b, width), unit vectors, row i of one belonging to row i of the other; scale is e^t. chunk: images
    at a time, 0 for all. group: the process group that shares the batch; None for this process alone.
    """
    _check(image, text)
    with full_precision(image):
        texts, first = _gather(text, group)
        wanted = torch.arange(len(image), device=image.device) + first

        def part(rows: Tensor, wanted: Tensor) -> Tensor:
            logits = scale * (rows @ texts.mT) + bias
            matches = F.one_hot(wanted, len(texts)).bool()
            return -F.logsigmoid(torch.where(matches, logits, -logits)).sum()

        return _in_chunks(part, image, wanted, chunk) / len(image)


def clip_loss(
    image: Tensor,
    text: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    chunk: int = 0,
    group: Any = None,
) -> Tensor:
    """Half of the cross-entropy of each image over all texts and half of that of each text over all images, the mean
    over pairs (Radford et al.). A bias cancels in a softmax: it is accepted so that both losses are called in
    the same way, and multiplied by zero so that it has a gradient."""
    _check(image, text)
    with full_precision(image):
        (images, first), (texts, _) = _gather(image, group), _gather(text, group)
        wanted = torch.arange(len(image), device=image.device) + first

        def over(others: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
            return lambda rows, wanted: F.cross_entropy(scale * (rows @ others.mT), wanted, reduction="sum")

        both = _in_chunks(over(texts), image, wanted, chunk) + _in_chunks(over(images), text, wanted, chunk)
        loss = both / (2 * len(image))
        return loss if bias is None else loss + 0 * bias.sum()


def clip_loss_within_groups(image: Tensor, text: Tensor, scale: Tensor, group: int) -> Tensor:
    """The CLIP loss within groups of `group` consecutive pairs, the mean over pairs: for views of one room, say, which
    differ in what is hard to learn, while rooms are easy to distinguish. A group lies in one process, so that the mean
    over processes is the loss of the global batch."""
    _check(image, text)
    if group < 2 or len(image) % group:
        raise ValueError(
            f"{len(image)} pairs do not divide into groups of {group}: a group has at least 2, and the batch is a "
            f"multiple of it"
        )
    with full_precision(image):
        images, texts = image.unflatten(0, (-1, group)), text.unflatten(0, (-1, group))
        logits = scale * (images @ texts.mT)  # (groups, group, group)
        wanted = torch.arange(group, device=image.device).repeat(len(logits))
        both = (F.cross_entropy(table.flatten(0, 1), wanted) for table in (logits, logits.mT))
        return sum(both, start=logits.new_zeros(())) / 2


def _in_chunks(part: Callable[[Tensor, Tensor], Tensor], rows: Tensor, wanted: Tensor, chunk: int) -> Tensor:
    """The sum of `part` over chunks of rows. The logits of one chunk are freed before those of the next are formed."""
    if not 0 < chunk < len(rows):
        return part(rows, wanted)
    total = rows.new_zeros(())
    for some_rows, their_wanted in zip(rows.split(chunk), wanted.split(chunk), strict=True):
        total = total + checkpoint(part, some_rows, their_wanted, use_reentrant=False)
    return total


def _check(image: Tensor, text: Tensor) -> None:
    if image.ndim != 2 or image.shape != text.shape:
        raise ValueError(
            f"image and text embeddings must be (b, width), one text per image, got {tuple(image.shape)} and "
            f"{tuple(text.shape)}: choose one caption for every image"
        )


def _gather(rows: Tensor, group: Any) -> tuple[Tensor, int]:
    """The rows of all processes of the group, and the index at which those of this process begin."""
    if group is None or dist.get_world_size(group) == 1:
        return rows, 0
    gathered: Tensor = _GatherRows.apply(rows, group)
    return gathered, dist.get_rank(group) * len(rows)


class _GatherRows(torch.autograd.Function):
    """Rows (b, width) of all processes, in order of rank. Every process uses the rows of all, so the gradient of a
    process's rows is a sum over processes."""

    @staticmethod
    def forward(context: Any, rows: Tensor, group: Any) -> Tensor:
        context.group, context.count = group, len(rows)
        parts = [
            torch.empty_like(rows, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size(group))
        ]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=context.group)
        first = dist.get_rank(context.group) * context.count
        return total[first : first + context.count], None
