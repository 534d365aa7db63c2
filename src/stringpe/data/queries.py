"""Which classes a detector is asked about in training: those that the image shows, and some that it does not."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..models.owl_loss import Truth


class Queries(NamedTuple):
    """Every image's queries: classes (b, q), mask (b, q), False in padding, and the truth with query numbers."""

    classes: Tensor
    mask: Tensor
    truth: Truth


def draw_queries(truth: Truth, weight: Tensor, negatives: int, u: Tensor, known: Tensor | None = None) -> Queries:
    """Choose every image's queries: the classes that it shows, and `negatives` that it does not.

    truth: with class numbers. weight: (classes,), in proportion to which a class is drawn as a negative: its frequency.
    u: uniforms (b, classes). known: (b, classes), classes that are known not to be there (LVIS); they are taken before
    others."""
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
    return Queries(classes, mask, truth._replace(labels=number.gather(1, truth.labels)))
