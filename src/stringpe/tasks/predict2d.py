"""Prediction of boxes in 2D, for texts and for query images."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.transforms import to_unit
from ..geometry.boxes import nms
from ..geometry.draw_boxes import draw_detections
from ..geometry.square import from_square, to_square
from ..models.owl import Detector
from .build import Loaded
from .predict import Finding, Predictor, Query, open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

_PART = 256  # texts read at a time


class Predictor2D(Predictor):
    """A detector of boxes in 2D: one of our runs, or an OWL-ViT or OWLv2 of transformers. Boxes are corners in
    pixels."""

    def __init__(self, loaded: Loaded, device: torch.device):
        assert isinstance(loaded.model, Detector)
        assert loaded.parts.tokenizer is not None
        self.model, self.device = loaded.model.to(device), device
        self.tokenizer, self.side = loaded.parts.tokenizer, loaded.recipe.data.image_size

    @torch.no_grad()
    def __call__(self, image: "Image", wanted: Query) -> list[Finding]:
        if wanted.depth is not None:
            raise ValueError("this model sees RGB alone: leave the depth out")
        if wanted.query_image is None:
            names, queries = list(wanted.texts), self._embed_texts(list(wanted.texts))
        else:
            example = open_picture(wanted.query_image)
            names, queries = [wanted.query_image.name], self._embed_example(example, wanted.query_box)
        found = self.model(self._square(image), queries=queries)
        score, query = found.logits[0].float().sigmoid().max(-1)  # a token is one thing: its best query
        keep = (score >= wanted.threshold).nonzero()[:, 0]
        corners = from_square(found.boxes[0, keep], float(image.width), float(image.height))
        score, query = score[keep], query[keep]
        kept = self._drop_duplicates(corners, score, query, wanted.nms)[: wanted.top]
        return [
            {"text": names[int(query[i])], "score": float(score[i]), "box": corners[i].tolist()} for i in kept.tolist()
        ]

    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        return draw_detections(image, found)

    def _square(self, image: "Image") -> Tensor:
        return to_unit(to_square(image, self.side)[None].to(self.device))

    def _embed_texts(self, texts: list[str]) -> Tensor:
        tokens = self.tokenizer.encode(texts, self.model.context).to(self.device)
        return torch.cat([self.model.queries(part) for part in tokens.split(_PART)])

    def _embed_example(self, example: "Image", box: tuple[float, float, float, float] | None) -> Tensor:
        """The query (1, e) of what a box of the example shows; without a box, of what the model takes to be its
        object."""
        corners = None
        if box is not None:
            x0, y0, x1, y1 = box
            if not (0 <= x0 < x1 <= example.width and 0 <= y0 < y1 <= example.height):
                raise ValueError(
                    f"the query box must be x0 y0 x1 y1 within the query image of {example.width} × {example.height} "
                    f"pixels, got {box}"
                )
            corners = torch.tensor([box], device=self.device) / max(example.size)
        elif self.model.objectness_head is None:
            # The whole picture, without its padding.
            size = torch.tensor([[0.0, 0.0, *example.size]], device=self.device)
            corners = size / max(example.size)
        return self.model.image_queries(self._square(example), corners)

    def _drop_duplicates(self, corners: Tensor, score: Tensor, query: Tensor, threshold: float) -> Tensor:
        """Indices of the boxes that stay, best first."""
        if threshold >= 1:
            return score.argsort(descending=True)
        far = (corners.amax() + 1 if len(corners) else 0) * query[:, None]  # moves the boxes of different queries apart
        return nms(corners + far, score, threshold)
