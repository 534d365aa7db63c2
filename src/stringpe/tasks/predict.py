"""Prediction: from a trained detector and one picture to the boxes in it, in 2D or 3D, as a JSON file and drawn."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..coords import Calibration
from ..data import omni3d
from ..data.depth_files import DEPTH, check_aspect, find_depth_step, read_depth
from ..data.images import to_tensor
from ..data.transforms import to_unit
from ..geometry import box3d
from ..geometry.boxes import nms
from ..geometry.draw_boxes import COLOURS, draw_detections, write_label
from ..geometry.square import depth_to_square, from_square, to_square
from ..io.files import new_file, write_json
from ..io.pictures import BadSample, decode_picture
from ..metrics.average_precision3d import ScoredBoxes
from ..models.owl import Detector
from ..models.owl3d import Detector3D, best_boxes
from ..viewer import Box, Frame, record_frames, save, show_frames
from .load import LoadedRun, load_run

if TYPE_CHECKING:
    from PIL.Image import Image


FoundBox = dict[str, Any]
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
    def __init__(self, loaded: LoadedRun, device: torch.device): ...

    @abstractmethod
    def __call__(self, image: "Image", query: Query) -> list[FoundBox]:
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
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return _PREDICTORS[task](loaded, device)


def predict(
    checkpoint: Path, image: Path, query: Query, out: Path, *, html: bool = False, rrd: bool = False
) -> tuple[list[Path], list[FoundBox]]:
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
        written.append(save(show_frames(frames, title=f"Boxes found in {image.name}"), out.with_suffix(".html")))
    if rrd:
        written.append(record_frames(frames, out.with_suffix(".rrd")))
    return written, found


def open_picture(path: Path) -> "Image":
    """A picture as RGB, the right way up."""
    try:
        return decode_picture(path.read_bytes(), str(path), upright=True)
    except (OSError, BadSample) as error:
        raise ValueError(f"cannot read the picture {error}: give a JPEG, PNG, WebP, PPM, BMP or GIF file") from error


_PART = 256  # texts read at a time


class Predictor2D(Predictor):
    """A detector of boxes in 2D: one of our runs, or an OWL-ViT or OWLv2 of transformers. Boxes are corners in
    pixels."""

    def __init__(self, loaded: LoadedRun, device: torch.device):
        assert isinstance(loaded.model, Detector)
        assert loaded.parts.tokenizer is not None
        self.model, self.device = loaded.model.to(device), device
        self.tokenizer, self.side = loaded.parts.tokenizer, loaded.recipe.data.image_size

    @torch.no_grad()
    def __call__(self, image: "Image", wanted: Query) -> list[FoundBox]:
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


class Predictor3D(Predictor):
    """A run of detection3d. A box is 12 numbers in the camera frame: centre, two columns of the rotation, size; beside
    it stand Omni3D's fields, and its edges in pixels, for which the camera must be known: without `Query.intrinsics`
    the focal length is taken to be the image's long side and the centre its middle. The box itself depends on it only
    where the model predicts centres relative to the points of patches (`model.box_centre`)."""

    def __init__(self, loaded: LoadedRun, device: torch.device):
        assert isinstance(loaded.model, Detector3D)
        assert loaded.parts.tokenizer is not None
        self.model, self.device = loaded.model.to(device), device
        self.tokenizer, self.recipe = loaded.parts.tokenizer, loaded.recipe

    @torch.no_grad()
    def __call__(self, image: "Image", wanted: Query) -> list[FoundBox]:
        if wanted.query_image is not None:
            raise ValueError("boxes in 3D are asked for by text: give --text in place of a query image")
        side = self.recipe.data.image_size
        pixels = to_unit(to_square(image, side)[None].to(self.device))
        text = self.tokenizer.encode(list(wanted.texts), self.recipe.text.context).to(self.device)
        queries = torch.cat([self.model.embed(part) for part in text.split(256)])
        camera = camera_matrix(image, wanted)
        found = self.model(pixels, self._depth(image, wanted), queries, self._calibration(image, wanted, camera))
        best = suppress(best_boxes(found, most=4 * wanted.top)[0], wanted.nms)
        chosen = [i for i, score in enumerate(best.score.tolist()) if score >= wanted.threshold][: wanted.top]
        kept = ScoredBoxes(best.box[chosen].cpu(), best.label[chosen].cpu(), best.score[chosen].cpu())
        entries = omni3d.results(kept, 0, camera, range(len(wanted.texts)))
        return [
            {
                "text": wanted.texts[int(label)],
                "score": entry["score"],
                "box": box.tolist(),
                **{name: entry[name] for name in ("bbox3D", "center_cam", "dimensions", "pose")},
                "edges": box3d.project_edges(box[None], camera).flatten(1).tolist(),
            }
            for box, label, entry in zip(kept.box, kept.label, entries, strict=True)
        ]

    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        from PIL import ImageDraw

        picture = image.convert("RGB")
        pen = ImageDraw.Draw(picture)
        texts = list(dict.fromkeys(str(f["text"]) for f in found))
        width, limit = max(1, round(max(picture.size) / 250)), 8 * max(picture.size)
        for one in reversed(found):  # the best on top
            colour = COLOURS[texts.index(str(one["text"])) % len(COLOURS)]
            lines = [[min(max(v, -limit), limit) for v in edge] for edge in one["edges"]]
            for line in lines:
                pen.line(line, fill=colour, width=width)
            if lines:
                left, top = (min(line[i] for line in lines) for i in (0, 1))
                write_label(pen, (left, top), f"{one['text']} {one['score']:.2f}", colour)
        return picture

    def frame(self, image: "Image", wanted: Query, found: Sequence[Mapping[str, Any]]) -> Frame:
        if wanted.depth is None:
            raise ValueError(
                "--html and --rrd show a cloud of points with boxes: give the picture's depth map with --depth"
            )
        depth = self._read_depth(image, wanted, wanted.depth)
        height, width = depth.shape
        rgb = to_tensor(image.resize((width, height)))
        scale = torch.tensor([width / image.width, height / image.height, 1.0])
        boxes = [Box(torch.tensor(f["box"]), f["text"], "predicted", f["score"]) for f in found]
        return Frame(rgb, depth, camera_matrix(image, wanted) * scale[:, None], boxes)

    def _calibration(self, image: "Image", wanted: Query, camera: Tensor) -> Calibration | None:
        """The camera of the padded square, for a model that predicts centres relative to the points of patches."""
        if self.model.centre == "absolute":
            return None
        if wanted.depth is None:
            raise ValueError("this model places boxes by the depth of their patches: give a depth map with --depth")
        if wanted.intrinsics is None:
            line = f"no intrinsics given: {camera[0, 0]:g} pixels of focal length assumed, the picture's long side"
            print(line, file=sys.stderr)
        scale = torch.tensor([self.recipe.data.image_size / max(image.size)] * 2 + [1.0])
        return Calibration((camera * scale[:, None]).to(self.device), torch.eye(4, device=self.device))

    def _depth(self, image: "Image", wanted: Query) -> Tensor | None:
        """(1, side, side) metres on the padded square, for a model that takes depth; None without a map."""
        if wanted.depth is None:
            return None
        if self.recipe.model.depth == "none":
            raise ValueError("this model sees RGB alone: leave the depth out")
        far = self._read_depth(image, wanted, wanted.depth)
        return depth_to_square(far, self.recipe.data.image_size)[None].to(self.device)

    def _read_depth(self, image: "Image", wanted: Query, path: Path) -> Tensor:
        """The map (h, w) in metres. Its step is that of the query, of the file itself, of the JSON file that a data set
        keeps beside it, or of the recipe."""
        name, step = str(path), wanted.depth_step or self.recipe.data.depth_step
        files = {DEPTH: path.read_bytes()}
        beside = path.with_name(path.name.removesuffix(f".{DEPTH}") + ".json")  # as in a shard
        if not wanted.depth_step and beside.is_file():
            files["json"] = beside.read_bytes()
        try:
            if not wanted.depth_step and find_depth_step(files, name) is None:
                line = f"{name} does not say how long its steps are: {step:g} m assumed, the run's data.depth_step"
                print(line, file=sys.stderr)
            return check_aspect(read_depth(files, name, step), image, name)
        except BadSample as error:
            raise ValueError(str(error)) from None


def camera_matrix(image: "Image", wanted: Query) -> Tensor:
    """K (3, 3): as the query says, or a guess."""
    fx, fy, cx, cy = wanted.intrinsics or (max(image.size), max(image.size), image.width / 2, image.height / 2)
    if fx <= 0 or fy <= 0:
        raise ValueError(f"intrinsics are fx fy cx cy in pixels with fx and fy above 0, got {wanted.intrinsics}")
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])


def suppress(found: ScoredBoxes, most: float) -> ScoredBoxes:
    """Keep the best of detections of one label that overlap by an IoU of more than `most`."""
    order = found.score.argsort(descending=True)
    box, label, score = found.box[order], found.label[order], found.score[order]
    if most < 1:
        pairs = (
            (label[:, None] == label) & torch.ones(len(label), len(label)).triu(1).bool().to(label.device)
        ).nonzero()
        rival = torch.zeros(len(label), len(label), dtype=torch.bool)
        close = box3d.iou(box[pairs[:, 0]].double(), box[pairs[:, 1]].double()) > most
        rival[pairs[:, 0].cpu(), pairs[:, 1].cpu()] = close.cpu()
        good = torch.ones(len(label), dtype=torch.bool)
        for i in range(len(label)):
            if good[i]:
                good &= ~rival[i]
        box, label, score = box[good], label[good], score[good]
    return ScoredBoxes(box, label, score)


_PREDICTORS: dict[str, type[Predictor]] = {"detection2d": Predictor2D, "detection3d": Predictor3D}
"""By task. A task that can predict has a class here; `stringpe predict` needs nothing else of it."""
