"""Prediction of boxes in 2D, for texts and for query images."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.transforms import to_unit
from ..geometry.boxes import nms
from ..geometry.draw_boxes import draw_detections
from ..geometry.square import from_square, to_square
from .detectors import load
from .predict import Asked, Found, Predictor, open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

_PART = 256  # texts read at a time


class Predictor2D(Predictor):
    """A detector of boxes in 2D: one of our runs, or an OWL-ViT or OWLv2 of transformers. Boxes are corners in
    pixels."""

    def __init__(self, folder: Path, device: torch.device):
        model, self.tokenizer, self.side = load(folder)
        self.model, self.device = model.to(device), device

    @torch.no_grad()
    def __call__(self, image: "Image", asked: Asked) -> list[Found]:
        if asked.depth is not None:
            raise ValueError("this model sees RGB alone: leave the depth out")
        if asked.query_image is None:
            names, queries = list(asked.texts), self._read(list(asked.texts))
        else:
            names, queries = [asked.query_image.name], self._shown(open_picture(asked.query_image), asked.query_box)
        found = self.model(self._square(image), queries=queries)
        score, query = found.logits[0].float().sigmoid().max(-1)  # a token is one thing: its best query
        keep = (score >= asked.threshold).nonzero()[:, 0]
        corners = from_square(found.boxes[0, keep], float(image.width), float(image.height))
        score, query = score[keep], query[keep]
        kept = self._without_doubles(corners, score, query, asked.nms)[: asked.top]
        return [
            {"text": names[int(query[i])], "score": float(score[i]), "box": corners[i].tolist()} for i in kept.tolist()
        ]

    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        return draw_detections(image, found)

    def _square(self, image: "Image") -> Tensor:
        return to_unit(to_square(image, self.side)[None].to(self.device))

    def _read(self, texts: list[str]) -> Tensor:
        tokens = self.tokenizer.encode(texts, self.model.context).to(self.device)
        return torch.cat([self.model.queries(part) for part in tokens.split(_PART)])

    def _shown(self, example: "Image", box: tuple[float, float, float, float] | None) -> Tensor:
        """The query (1, e) of what a box of the example shows; without a box, of what the model takes for its
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

    def _without_doubles(self, corners: Tensor, score: Tensor, query: Tensor, threshold: float) -> Tensor:
        """Indices, best first."""
        if threshold >= 1:
            return score.argsort(descending=True)
        far = (corners.amax() + 1 if len(corners) else 0) * query[:, None]  # queries apart do not overlap
        return nms(corners + far, score, threshold)
