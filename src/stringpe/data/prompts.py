"""Names as texts: the templates into which a name is put, and their tokens."""

from collections.abc import Sequence

from torch import Tensor

from ..models.tokenizer import Tokenizer

TEMPLATES = (
    "a photo of a {}.",
    "a {}",
    "there is a {} in the scene.",
    "a close-up photo of a {}.",
    "a photo of the {}.",
    "a picture of a {} in a room.",
    "the {}",
)
"""Training puts names into one of them, drawn anew in every step; evaluation takes the mean over all."""


def prompts(names: Sequence[str], templates: Sequence[str] = TEMPLATES) -> list[list[str]]:
    """Every name in every template."""
    if not names:
        raise ValueError("there are no names to ask for: give at least one")
    return [[template.replace("{}", name) for template in templates] for name in names]


def prompt_tokens(
    tokenizer: Tokenizer, names: Sequence[str], context: int, templates: Sequence[str] = TEMPLATES
) -> Tensor:
    """Tokens (names, templates, n), n the longest text or the context."""
    texts = [text for row in prompts(names, templates) for text in row]
    tokens = tokenizer.encode(texts, context)
    longest = int((tokens != tokenizer.padding).sum(1).max())
    return tokens[:, :longest].unflatten(0, (len(names), len(templates)))
