"""Which classes an image is asked about in training: those it shows, and some that it does not."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..models.owl_loss import Truth


class Asked(NamedTuple):
    """Every image's queries: classes (b, q), mask (b, q) of those that there are, and the truth with query numbers."""

    classes: Tensor
    mask: Tensor
    truth: Truth


def ask(truth: Truth, weight: Tensor, negatives: int, u: Tensor, known: Tensor | None = None) -> Asked:
    """Choose every image's queries: the classes it shows, and `negatives` that it does not.

    truth: with class numbers. weight: (classes,), by which a class is drawn as a negative: its frequency. u: uniforms
    (b, classes). known: (b, classes), classes that are known not to be there (LVIS), which come before drawn ones."""
    shown = torch.zeros_like(u).scatter_add_(1, truth.labels, truth.valid.to(u.dtype)) > 0
    every = u.shape[1]
    count = every if negatives >= every else min(every, int(shown.sum(1).amax()) + negatives)
    # Exponential clocks: the smallest of −log u / w are a draw without replacement in proportion to w.
    rank = -u.clamp(min=1e-12).log() / weight.clamp(min=1e-6)
    rank = rank / (1 + rank)  # in [0, 1), in the same order
    if known is not None:
        rank = torch.where(known, rank - 1, rank)
    rank = torch.where(shown, rank - 3, rank)
    classes = rank.topk(count, dim=1, largest=False, sorted=True).indices  # shown ones first
    places = torch.arange(count, device=u.device)
    mask = places < shown.sum(1, keepdim=True) + negatives
    number = torch.zeros_like(shown, dtype=torch.long).scatter_(1, classes, places.expand_as(classes))
    return Asked(classes, mask, truth._replace(labels=number.gather(1, truth.labels)))
