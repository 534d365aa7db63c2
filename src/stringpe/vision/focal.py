"""The focal sigmoid loss of detectors, and what it makes a match cost."""

import torch.nn.functional as F
from torch import Tensor

ALPHA, GAMMA = 0.3, 2.0


def focal(logits: Tensor, target: Tensor, *, alpha: float = ALPHA, gamma: float = GAMMA) -> Tensor:
    """Focal sigmoid cross-entropy of every logit, for targets of the same shape that are 0 or 1: with p the probability
    given to the target, −w (1 − p)^γ log p, w = α for 1 and 1 − α for 0."""
    logits = logits.float()
    positive, negative = _sides(logits, alpha, gamma)
    return target * positive + (1 - target) * negative


def focal_cost(logits: Tensor, labels: Tensor, *, alpha: float = ALPHA, gamma: float = GAMMA) -> Tensor:
    """What it costs that a token is object j, of query labels (b, m): logits (b, n, q) to (b, n, m), the loss as a
    positive less the loss as a negative."""
    logits = logits.float().gather(2, labels.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1))
    positive, negative = _sides(logits, alpha, gamma)
    return positive - negative


def _sides(logits: Tensor, alpha: float, gamma: float) -> tuple[Tensor, Tensor]:
    """The loss if the target is 1, and if it is 0."""
    p = logits.sigmoid()
    return alpha * (1 - p) ** gamma * F.softplus(-logits), (1 - alpha) * p**gamma * F.softplus(logits)
