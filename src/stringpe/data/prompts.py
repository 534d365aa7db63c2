"""Names as texts: the templates into which a name is put, and their tokens."""

from collections.abc import Sequence

from torch import Tensor

from ..models.tokenizer import Tokenizer

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
