"""From a checkpoint and one picture to what was found: a JSON file, and the picture with it drawn.

A task that can predict has a class here: given a folder it makes a `Predictor`. The command asks nothing else of it.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..io import checkpoint as checkpoints
from ..io.pictures import BadSample, decode_picture
from .detectors import is_owl

if TYPE_CHECKING:
    from PIL.Image import Image

_PREDICTORS = {"detection2d": ("predict2d", "Predictor2D"), "detection3d": ("predict3d", "Predictor3D")}

Found = dict[str, Any]
"""{"text", "score", "box": …}: what was asked for, how sure, and where; the box is the task's."""


@dataclass(frozen=True)
class Asked:
    """What to find: texts, or what a query image shows (in query_box, corners in its pixels). depth: of the image, for
    models that take it. threshold: the lowest score. top: the most that is kept, best first. nms: of two boxes of the
    same query that overlap by more (IoU) the better one is kept; 1 keeps all. intrinsics: of the camera, fx, fy, cx, cy
    in pixels, with which boxes in 3D are drawn."""

    texts: Sequence[str] = ()
    query_image: Path | None = None
    query_box: tuple[float, float, float, float] | None = None
    depth: Path | None = None
    threshold: float = 0.1
    top: int = 100
    nms: float = 0.5
    intrinsics: tuple[float, float, float, float] | None = None


class Predictor(ABC):
    """A trained model that finds things in pictures."""

    @abstractmethod
    def __call__(self, image: "Image", asked: Asked) -> list[Found]:
        """What was found, best first."""

    @abstractmethod
    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        """The picture with what was found."""


def predictor(checkpoint: str | Path, device: torch.device | None = None) -> Predictor:
    """Of a run's folder, one of its checkpoints, or an OWL-ViT or OWLv2 folder of transformers."""
    folder = Path(checkpoint)
    task = "detection2d" if is_owl(folder) else checkpoints.read_model(folder)[0].task
    if task not in _PREDICTORS:
        raise ValueError(f"{folder} holds a run of {task}: predict takes runs of {', '.join(_PREDICTORS)}")
    module, name = _PREDICTORS[task]
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made: Predictor = getattr(import_module(f".{module}", __package__), name)(folder, device)
    return made


def predict(checkpoint: Path, image: Path, asked: Asked, out: Path) -> tuple[Path, Path, list[Found]]:
    """Write out.json and out.png; returns their paths and what was found."""
    check(asked)
    picture = open_picture(image)
    model = predictor(checkpoint)
    found = model(picture, asked)
    record = {
        "image": str(image),
        "width": picture.width,
        "height": picture.height,
        "checkpoint": str(checkpoint),
        "texts": list(asked.texts),
        "query_image": None if asked.query_image is None else str(asked.query_image),
        "found": found,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    text, drawn = out.with_suffix(".json"), out.with_suffix(".png")
    text.write_text(json.dumps(record, indent=1), encoding="utf-8")
    model.draw(picture, found).save(drawn)
    return text, drawn, found


def check(asked: Asked) -> None:
    """Refuse what cannot be asked."""
    if bool(asked.texts) == (asked.query_image is not None):
        raise ValueError('say what to find: --text "a mug" "a lamp", or --query-image mug.jpg; one of them')
    empty = [i for i, text in enumerate(asked.texts, 1) if not text.strip()]
    if empty:
        raise ValueError(f"text {empty[0]} of {len(asked.texts)} is empty: there is nothing to look for; leave it out")
    if asked.query_box is not None and asked.query_image is None:
        raise ValueError("a query box lies in a query image: give --query-image as well")
    if asked.top < 1 or not 0 <= asked.threshold <= 1 or not 0 <= asked.nms <= 1:
        raise ValueError(
            f"threshold and nms are from 0 to 1 and top is at least 1, got {asked.threshold}, {asked.nms}, {asked.top}"
        )


def open_picture(path: Path) -> "Image":
    """A picture as RGB, the right way up."""
    try:
        return decode_picture(path.read_bytes(), str(path), upright=True)
    except (OSError, BadSample) as error:
        raise ValueError(f"cannot read the picture {error}: give a JPEG, PNG, WebP, PPM, BMP or GIF file") from error
