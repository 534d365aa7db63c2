"""The focal sigmoid loss of detectors, and what it makes a match cost."""

import torch
import torch.nn.functional as F
from torch import Tensor

ALPHA, GAMMA = 0.3, 2.0


def focal(logits: Tensor, target: Tensor, *, alpha: float = ALPHA, gamma: float = GAMMA) -> Tensor:
    """Focal sigmoid cross-entropy of every logit, for targets of the same shape that are 0 or 1: with p the probability
    given to the target, −w (1 − p)^γ log p, w = α for 1 and 1 − α for 0."""
    there = target > 0.5
    wrong = torch.where(there, -logits.float(), logits.float())  # the logit of what the target is not
    return torch.where(there, alpha, 1 - alpha) * wrong.sigmoid() ** gamma * F.softplus(wrong)


def focal_cost(logits: Tensor, labels: Tensor, *, alpha: float = ALPHA, gamma: float = GAMMA) -> Tensor:
    """What it costs that a token is object j, of query labels (b, m): logits (b, n, q) to (b, n, m), the loss as a
    positive less the loss as a negative."""
    logits = logits.float().gather(2, labels.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1))
    p = logits.sigmoid()
    negative = (1 - alpha) * p**gamma * F.softplus(logits)
    return alpha * (1 - p) ** gamma * F.softplus(-logits) - negative
