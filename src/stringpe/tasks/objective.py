"""Classification losses over soft targets, mixup, and counts of right answers."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.order import derive
from ..recipes.schema import Loss

CLASS_LOSSES = ("softmax", "sigmoid")


def soft_targets(labels: Tensor, classes: int, smoothing: float) -> Tensor:
    """One-hot (…, classes) of labels (…), with `smoothing` of the mass spread evenly."""
    hot = F.one_hot(labels, classes).float()
    return hot * (1 - smoothing) + smoothing / classes if smoothing else hot


def cross_entropy(logits: Tensor, target: Tensor, loss: Loss) -> Tensor:
    """Loss of every example: softmax cross-entropy, or the sum of one sigmoid cross-entropy per class."""
    logits = logits.float()
    if loss.kind == "softmax":
        return -(target * logits.log_softmax(-1)).sum(-1)
    if loss.kind == "sigmoid":
        return F.binary_cross_entropy_with_logits(logits, target, reduction="none").sum(-1)
    raise ValueError(f"loss.kind is one of {', '.join(CLASS_LOSSES)}, got {loss.kind!r}")


def mixup(image: Tensor, target: Tensor, alpha: float, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """λ · example + (1 − λ) · its neighbour, λ ~ Beta(α, α) once per batch.

    Neighbours are 0 and 1, 2 and 3, …: the batch is in random order already, and pairs stay together however it is
    shared out over processes."""
    if len(image) % 2:
        raise ValueError(f"mixup pairs neighbours, so a process needs an even batch, got {len(image)}")
    share = random.Random(derive(seed, "mixup", step)).betavariate(alpha, alpha)
    return image.lerp(_neighbours(image), 1 - share), target.lerp(_neighbours(target), 1 - share)


def hits(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Whether the label (…) is among the k largest logits (…, classes)."""
    best = logits.topk(min(k, logits.shape[-1]), dim=-1).indices
    return (best == labels[..., None]).any(-1)


def _neighbours(x: Tensor) -> Tensor:
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def weighted_sums(logits: Tensor, labels: Tensor, weight: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Sums of top-1, top-5, loss and count over examples that count (weight 1) and padding that does not (0)."""
    target = soft_targets(labels, logits.shape[-1], 0.0)
    each = {
        "top1": hits(logits, labels, 1),
        "top5": hits(logits, labels, 5),
        "loss": cross_entropy(logits, target, loss),
        "count": torch.ones_like(weight),
    }
    return {name: (value.double() * weight).sum() for name, value in each.items()}
