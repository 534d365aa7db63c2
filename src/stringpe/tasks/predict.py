"""Prediction: from a trained detector and one picture to the boxes in it, as a JSON file and drawn.

A task that can predict has a `Predictor` class, listed here; `stringpe predict` needs nothing else of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..io.files import new_file, write_json
from ..io.pictures import BadSample, decode_picture
from ..viewer import Frame, record_frames, save, show_frames
from .build import Loaded, load_run

if TYPE_CHECKING:
    from PIL.Image import Image

_PREDICTORS = {"detection2d": ("predict2d", "Predictor2D"), "detection3d": ("predict3d", "Predictor3D")}

Finding = dict[str, Any]
"""{"text", "score", "box": …}: what was asked for, how sure the model is, and where; the box is the task's."""


@dataclass(frozen=True)
class Query:
    """What to find in a picture.

    texts, or query_image: names of the things to find, or a picture of one, within query_box (corners in its pixels).
    depth: the picture's depth map, for models that take one, in steps of depth_step metres; 0 takes the step from the
    JSON file beside the map, or else from the recipe. threshold: the lowest score that is kept. top: how many are kept
    at most, best first. nms: of two boxes of one query whose IoU is larger, only the better is kept; 1 keeps all.
    intrinsics: of the camera, fx, fy, cx, cy in pixels, to place and draw boxes in 3D with."""

    texts: Sequence[str] = ()
    query_image: Path | None = None
    query_box: tuple[float, float, float, float] | None = None
    depth: Path | None = None
    depth_step: float = 0.0
    threshold: float = 0.1
    top: int = 100
    nms: float = 0.5
    intrinsics: tuple[float, float, float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        if bool(self.texts) == (self.query_image is not None):
            raise ValueError('say what to find, in one of two ways: --text "a mug" "a lamp", or --query-image mug.jpg')
        empty = [i for i, text in enumerate(self.texts, 1) if not text.strip()]
        if empty:
            raise ValueError(
                f"text {empty[0]} of {len(self.texts)} is empty: there is nothing to look for; leave it out"
            )
        if self.query_box is not None and self.query_image is None:
            raise ValueError("a query box lies in a query image: give --query-image as well")
        if self.top < 1 or not 0 <= self.threshold <= 1 or not 0 <= self.nms <= 1:
            raise ValueError(
                f"threshold and nms are from 0 to 1 and top is at least 1, got {self.threshold}, {self.nms}, {self.top}"
            )
        if not 0 <= self.depth_step < 1:
            raise ValueError(f"a step of depth is in metres, for example 0.001, got {self.depth_step:g}")


class Predictor(ABC):
    """A trained model that finds things in pictures."""

    @abstractmethod
    def __init__(self, loaded: Loaded, device: torch.device): ...

    @abstractmethod
    def __call__(self, image: "Image", query: Query) -> list[Finding]:
        """What was found, best first."""

    @abstractmethod
    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        """The picture with what was found."""

    def frame(self, image: "Image", query: Query, found: Sequence[Mapping[str, Any]]) -> Frame:
        """The picture with its depth and what was found, to look at from all sides; for models that see in 3D."""
        raise ValueError("--html and --rrd show boxes in 3D: this run finds boxes in the picture, which out.png shows")


def load_predictor(checkpoint: str | Path, device: torch.device | None = None) -> Predictor:
    """The predictor of a run's folder, one of its checkpoints, or an OWL-ViT or OWLv2 folder of transformers."""
    loaded = load_run(checkpoint)
    task = loaded.recipe.task
    if task not in _PREDICTORS:
        raise ValueError(f"{checkpoint} holds a run of {task}: predict takes runs of {', '.join(_PREDICTORS)}")
    module, name = _PREDICTORS[task]
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made: Predictor = getattr(import_module(f".{module}", __package__), name)(loaded, device)
    return made


def predict(
    checkpoint: Path, image: Path, query: Query, out: Path, *, html: bool = False, rrd: bool = False
) -> tuple[list[Path], list[Finding]]:
    """Write out.json and out.png; returns what was written and what was found. html: write out.html as well, a page to
    turn the scene in; rrd: write out.rrd, the same for rerun."""
    picture = open_picture(image)
    model = load_predictor(checkpoint)
    found = model(picture, query)
    frames = [model.frame(picture, query, found)] if html or rrd else []
    record = {
        "image": str(image),
        "width": picture.width,
        "height": picture.height,
        "checkpoint": str(checkpoint),
        "texts": list(query.texts),
        "query_image": None if query.query_image is None else str(query.query_image),
        "found": found,
    }
    text, drawn = out.with_suffix(".json"), out.with_suffix(".png")
    write_json(text, record)
    with new_file(drawn) as draft:
        model.draw(picture, found).save(draft, "png")
    written = [text, drawn]
    if html:
        written.append(save(show_frames(frames, title="Prediction"), out.with_suffix(".html")))
    if rrd:
        written.append(record_frames(frames, out.with_suffix(".rrd")))
    return written, found


def open_picture(path: Path) -> "Image":
    """A picture as RGB, the right way up."""
    try:
        return decode_picture(path.read_bytes(), str(path), upright=True)
    except (OSError, BadSample) as error:
        raise ValueError(f"cannot read the picture {error}: give a JPEG, PNG, WebP, PPM, BMP or GIF file") from error
