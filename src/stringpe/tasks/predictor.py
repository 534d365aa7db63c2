"""What is asked of a trained model about a picture, and what a model that answers such questions does."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data.depth_files import DEPTH, check_aspect, find_depth_step, read_depth
from ..geometry.square import depth_to_square
from ..io.pictures import BadSample, decode_picture
from ..recipes.schema import Recipe
from ..viewer import Frame
from .load import LoadedRun

if TYPE_CHECKING:
    from PIL.Image import Image


Answer = dict[str, Any]
"""{"text", "score", …}: what was found or seen, the model's score, and where: a "box" in the task's format, or a
"place"."""


@dataclass(frozen=True)
class Query:
    """What to find in a picture.

    texts, or query_image: names of the objects to find, or a picture of one, which query_box (corners in its pixels)
    encloses. depth: the picture's depth map, for models that take one, in steps of depth_step metres; 0 takes the step
    from the map itself or the JSON file beside it, or else from the recipe. threshold: the lowest score that is kept.
    top: how many findings are kept at most, best first. nms: of two boxes of the same query whose IoU is larger than
    this, only the better is kept; 1 keeps all. intrinsics: of the camera, fx, fy, cx, cy in pixels, to place and draw
    3D boxes. places: pixels x, y of the picture, for models that name what is seen at places."""

    texts: Sequence[str] = ()
    query_image: Path | None = None
    query_box: tuple[float, float, float, float] | None = None
    depth: Path | None = None
    depth_step: float = 0.0
    threshold: float = 0.1
    top: int = 100
    nms: float = 0.5
    intrinsics: tuple[float, float, float, float] | None = None
    places: Sequence[tuple[float, float]] = ()

    def __post_init__(self) -> None:
        """Refuse queries that cannot be answered."""
        empty = [i for i, text in enumerate(self.texts, 1) if not text.strip()]
        if empty:
            raise ValueError(
                f"text {empty[0]} of {len(self.texts)} is empty and names nothing to look for: leave it out"
            )
        if self.query_box is not None and self.query_image is None:
            raise ValueError("a query box lies in a query image: give --query-image as well")
        if self.top < 1 or not 0 <= self.threshold <= 1 or not 0 <= self.nms <= 1:
            raise ValueError(
                f"threshold and nms are from 0 to 1 and top is at least 1, got {self.threshold}, {self.nms}, {self.top}"
            )
        if not 0 <= self.depth_step < 1:
            raise ValueError(f"a step of depth is in metres, for example 0.001, got {self.depth_step:g}")

    def check_names(self) -> None:
        """Refuse a query that does not say what to find, and places, which detectors do not take."""
        if bool(self.texts) == (self.query_image is not None):
            raise ValueError('say what to find, in one of two ways: --text "a mug" "a lamp", or --query-image mug.jpg')
        if self.places:
            raise ValueError("this model looks for things everywhere: leave --at out")


class Predictor(ABC):
    """A trained model that finds things in pictures."""

    @abstractmethod
    def __init__(self, loaded: LoadedRun, device: torch.device): ...

    @abstractmethod
    def __call__(self, image: "Image", query: Query) -> list[Answer]:
        """What was found, best first."""

    @abstractmethod
    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        """The picture with what was found drawn on it, enlarged if it is small."""

    def frame(self, image: "Image", query: Query, found: Sequence[Mapping[str, Any]]) -> Frame:
        """The picture with its depth and the boxes found, to view from all sides; for models that predict 3D boxes."""
        raise ValueError("--html and --rrd show boxes in 3D: what this run finds lies in the picture, out.png")


def open_picture(path: Path) -> "Image":
    """A picture as RGB, the right way up."""
    if not path.is_file():
        raise ValueError(f"the picture {path} was not found")
    try:
        return decode_picture(path.read_bytes(), str(path), upright=True)
    except (OSError, BadSample) as error:
        raise ValueError(f"cannot read the picture {error}: give a JPEG, PNG, WebP, PPM, BMP or GIF file") from error


def read_query_depth(image: "Image", query: Query, recipe: Recipe) -> Tensor:
    """The query's depth map (h, w) in metres. Its step comes from the query, the file itself, the JSON file that a data
    set stores beside it, or the recipe."""
    assert query.depth is not None
    path = query.depth
    name, step = str(path), query.depth_step or recipe.data.depth_step
    files = {DEPTH: path.read_bytes()}
    beside = path.with_name(path.name.removesuffix(f".{DEPTH}") + ".json")  # as in a shard
    if not query.depth_step and beside.is_file():
        files["json"] = beside.read_bytes()
    try:
        if not query.depth_step and find_depth_step(files, name) is None:
            note = f"{name} does not say how long its steps are: {step:g} m assumed, the run's data.depth_step"
            print(note, file=sys.stderr)
        return check_aspect(read_depth(files, name, step), image, name)
    except BadSample as error:
        raise ValueError(str(error)) from None


def square_depth(image: "Image", query: Query, recipe: Recipe, device: torch.device) -> Tensor | None:
    """(1, side, side) metres on the padded square, for a model that takes depth; None without a map."""
    if query.depth is None:
        return None
    if recipe.model.depth == "none":
        raise ValueError("this model sees RGB alone: leave the depth out")
    return depth_to_square(read_query_depth(image, query, recipe), recipe.data.image_size)[None].to(device)


def camera_matrix(image: "Image", query: Query) -> Tensor:
    """K (3, 3), from the query's intrinsics, or a guess from the size of the image."""
    fx, fy, cx, cy = query.intrinsics or (max(image.size), max(image.size), image.width / 2, image.height / 2)
    if fx <= 0 or fy <= 0:
        raise ValueError(f"intrinsics are fx fy cx cy in pixels with fx and fy above 0, got {query.intrinsics}")
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])
