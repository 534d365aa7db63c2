"""Names of what is seen at places of a picture, by a run of the task `objects`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import scenes
from ..data.transforms import to_unit
from ..geometry.draw_boxes import draw_places
from ..geometry.square import to_square
from .load import LoadedRun
from .objects import PlaceClassifier
from .predictor import Answer, Predictor, Query, square_depth

if TYPE_CHECKING:
    from PIL.Image import Image

_GRID = 3  # places along each side of a picture, where none are asked for
_OTHERS = 4  # names after the best that are kept


class PlacePredictor(Predictor):
    """A run of objects. An answer has the best name for what is seen at a place, its score, the place in pixels, and
    the next best names with their scores."""

    def __init__(self, loaded: LoadedRun, device: torch.device):
        assert isinstance(loaded.model, PlaceClassifier)
        self.model, self.device, self.recipe = loaded.model.to(device), device, loaded.recipe

    @torch.no_grad()
    def __call__(self, image: "Image", query: Query) -> list[Answer]:
        if query.texts or query.query_image is not None:
            raise ValueError("this model names what it sees: leave --text and --query-image out, and give places, --at")
        depth = square_depth(image, query, self.recipe, self.device)
        if depth is None and self.recipe.model.depth != "none":
            raise ValueError("this model was trained with depth: give the picture's depth map with --depth")
        places = list(query.places) or _grid(image)
        pixels = to_unit(to_square(image, self.recipe.data.image_size)[None].to(self.device))
        at = _on_square(places, image).to(self.device)
        scores = self.model(pixels, depth, at[None])[0].softmax(-1)
        best = scores.sort(dim=-1, descending=True)
        names = list(scenes.kinds())
        found = [
            {
                "text": names[order[0]],
                "score": score[0],
                "place": list(place),
                "others": {names[i]: s for i, s in zip(order[1 : 1 + _OTHERS], score[1:], strict=False)},
            }
            for place, order, score in zip(places, best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        found = [one for one in found if one["score"] >= query.threshold]
        return sorted(found, key=lambda one: -one["score"])[: query.top]

    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        return draw_places(image, found)


def _grid(image: "Image") -> list[tuple[float, float]]:
    """The middles of nine equal parts of a picture, in pixels."""
    x, y = ([side * (2 * i + 1) / (2 * _GRID) - 0.5 for i in range(_GRID)] for side in image.size)
    return [(column, row) for row in y for column in x]


def _on_square(places: Sequence[tuple[float, float]], image: "Image") -> Tensor:
    """Places (n, 2) in pixels on the padded square: x and y in [−1, 1]."""
    for x, y in places:
        if not (0 <= x < image.width and 0 <= y < image.height):
            size = f"{image.width} × {image.height} pixels"
            raise ValueError(f"places are pixels x y of the picture, which has {size}; got {x:g} {y:g}")
    return (torch.tensor(places) + 0.5) / max(image.size) * 2 - 1
