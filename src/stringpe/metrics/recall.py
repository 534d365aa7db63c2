"""Recall at k in retrieval: how often the right answer is among the k best of a gallery, image to text and back."""

import torch
from torch import Tensor

RANKS = (1, 5, 10)


def recall(image: Tensor, text: Tensor, owner: Tensor, *, chunk: int = 1024) -> dict[str, Tensor]:
    """Shares "i2t@k" and "t2i@k" for k = 1, 5, 10, and their "mean", as float64 scalars.

    image (n, width) and text (m, width): embeddings, finite. owner (m,): the image that each text belongs to, −1 for a
    distractor. An image counts as found if any of its texts is among its k nearest texts, a text if its image is among
    its k nearest images. Images without texts are not queries, but are part of the gallery. Ties count against the
    model: one that gives everything the same score finds nothing. chunk: rows of the score matrix at a time.
    """
    if image.ndim != 2 or text.ndim != 2 or image.shape[1] != text.shape[1] or owner.shape != text.shape[:1]:
        raise ValueError(
            f"recall takes image (n, width), text (m, width) and owner (m,), got {tuple(image.shape)}, "
            f"{tuple(text.shape)} and {tuple(owner.shape)}"
        )
    if len(owner) and not -1 <= int(owner.min()) <= int(owner.max()) < len(image):
        raise ValueError(
            f"owner numbers images from 0 to {len(image) - 1} (−1: none), got {int(owner.min())} to {int(owner.max())}"
        )
    for name, rows in (("image", image), ("text", text)):
        wrong = int((~rows.isfinite()).any(1).sum())
        if wrong:
            raise ValueError(f"{wrong} of {len(rows)} {name} embeddings are not finite: check the model's weights")
    image, text = image.float(), text.float()
    to_text = _image_ranks(image, text, owner, chunk)
    to_image = _text_ranks(image, text, owner, chunk)
    if not len(to_image):
        raise ValueError("recall needs at least one text that belongs to an image")
    shares = {f"i2t@{k}": (to_text < k).double().mean() for k in RANKS}
    shares |= {f"t2i@{k}": (to_image < k).double().mean() for k in RANKS}
    return shares | {"mean": torch.stack(list(shares.values())).mean()}


def _image_ranks(image: Tensor, text: Tensor, owner: Tensor, chunk: int) -> Tensor:
    """For every image with texts, how many texts of other images score at least as well as the best of its own."""
    ranks = []
    for first in range(0, len(image), chunk):
        scores = image[first : first + chunk] @ text.mT
        own = owner == torch.arange(first, first + len(scores), device=owner.device)[:, None]
        best = scores.masked_fill(~own, -torch.inf).amax(1, keepdim=True)
        ranks.append(((scores >= best) & ~own).sum(1)[own.any(1)])
    return torch.cat(ranks)


def _text_ranks(image: Tensor, text: Tensor, owner: Tensor, chunk: int) -> Tensor:
    """For every text with an image, how many other images score at least as well as its own."""
    text, owner = text[owner >= 0], owner[owner >= 0]
    ranks = [owner.new_zeros(0)]
    for first in range(0, len(text), chunk):
        scores = text[first : first + chunk] @ image.mT
        own = scores.gather(1, owner[first : first + chunk, None])
        ranks.append((scores >= own).sum(1) - 1)
    return torch.cat(ranks)
