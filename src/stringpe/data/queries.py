"""The queries of a detector: the classes that an image is asked about, and the texts that name them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..models.owl_loss import Truth
from ..models.tokenizer import Tokenizer


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
    labels = number.gather(1, truth.labels).masked_fill(~truth.valid, 0)
    return Queries(classes, mask, truth._replace(labels=labels))


ROOM_TEMPLATES = (
    "a photo of a {}.",
    "a {}",
    "there is a {} in the scene.",
    "a close-up photo of a {}.",
    "a photo of the {}.",
    "a picture of a {} in a room.",
    "the {}",
)
"""For objects in rooms. Training puts names into one of them, drawn anew in every step; evaluation takes the mean over
all."""

CLIP_TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""CLIP's seven, for detection in photos. Training puts every query into one at random, evaluation averages the logits
over all."""

PHOTO_TEMPLATES = (
    "a photo of a {}.",
    "a photo of the {}.",
    "a picture of a {}.",
    "a close-up of a {}.",
    "there is a {} in the photo.",
    "a {}.",
    "the {}.",
)
"""For naming what a photo shows (zero-shot classification): the mean of their embeddings stands for the class."""


def prompts(names: Sequence[str], templates: Sequence[str] = ROOM_TEMPLATES) -> list[list[str]]:
    """Every name in every template."""
    if not names:
        raise ValueError("there are no names to ask for: give at least one")
    return [[template.replace("{}", name) for template in templates] for name in names]


def prompt_tokens(
    tokenizer: Tokenizer, names: Sequence[str], context: int, templates: Sequence[str] = ROOM_TEMPLATES
) -> Tensor:
    """Tokens (names, templates, n), n the longest text or the context."""
    texts = [text for row in prompts(names, templates) for text in row]
    tokens = tokenizer.encode(texts, context)
    longest = int((tokens != tokenizer.padding).sum(1).max())
    return tokens[:, :longest].unflatten(0, (len(names), len(templates)))
