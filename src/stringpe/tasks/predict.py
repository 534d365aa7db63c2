"""Prediction: a trained detector finds boxes in a picture, in 2D or 3D, which are written as JSON and drawn."""

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
from ..devices import find_device
from ..geometry import box3d
from ..geometry.boxes import nms
from ..geometry.draw_boxes import COLOURS, draw_detections, enlarge, write_label
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
"""{"text", "score", "box": …}: the text that was asked for, the model's score, and the box in the task's format."""


@dataclass(frozen=True)
class Query:
    """What to find in a picture.

    texts, or query_image: names of the objects to find, or a picture of one, which query_box (corners in its pixels)
    encloses. depth: the picture's depth map, for models that take one, in steps of depth_step metres; 0 takes the step
    from the map itself or the JSON file beside it, or else from the recipe. threshold: the lowest score that is kept.
    top: the most boxes that are kept, best first. nms: of two boxes of the same query whose IoU is larger than this,
    only the better is kept; 1 keeps all. intrinsics: of the camera, fx, fy, cx, cy in pixels, to place and draw 3D
    boxes."""

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
        """Refuse queries that cannot be answered."""
        if bool(self.texts) == (self.query_image is not None):
            raise ValueError('say what to find, in one of two ways: --text "a mug" "a lamp", or --query-image mug.jpg')
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


class Predictor(ABC):
    """A trained model that finds things in pictures."""

    @abstractmethod
    def __init__(self, loaded: LoadedRun, device: torch.device): ...

    @abstractmethod
    def __call__(self, image: "Image", query: Query) -> list[FoundBox]:
        """The boxes found, best first."""

    @abstractmethod
    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        """The picture with the boxes drawn on it, enlarged if it is small."""

    def frame(self, image: "Image", query: Query, found: Sequence[Mapping[str, Any]]) -> Frame:
        """The picture with its depth and the boxes found, to view from all sides; for models that predict 3D boxes."""
        raise ValueError("--html and --rrd show boxes in 3D: this run finds boxes in the picture, which out.png shows")


def load_predictor(checkpoint: str | Path) -> Predictor:
    """The predictor of a run's folder, of one of its checkpoints, or of an OWL-ViT or OWLv2 folder of transformers."""
    loaded = load_run(checkpoint)
    task = loaded.recipe.task
    if task not in _PREDICTORS:
        raise ValueError(f"{checkpoint} holds a run of {task}: predict takes runs of {', '.join(_PREDICTORS)}")
    device = find_device()
    return _PREDICTORS[task](loaded, device)


def predict(
    checkpoint: Path, image: Path, query: Query, out: Path, *, html: bool = False, rrd: bool = False
) -> tuple[list[Path], list[FoundBox]]:
    """Write out.json and out.png; returns the paths of the files and the boxes found. html: write out.html as well, a
    page on which the scene can be turned; rrd: write out.rrd, the same for rerun."""
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
    if not path.is_file():
        raise ValueError(f"the picture {path} was not found")
    try:
        return decode_picture(path.read_bytes(), str(path), upright=True)
    except (OSError, BadSample) as error:
        raise ValueError(f"cannot read the picture {error}: give a JPEG, PNG, WebP, PPM, BMP or GIF file") from error


_TEXTS_PER_CALL = 256


class Predictor2D(Predictor):
    """A detector of 2D boxes: a run of detection2d, or an OWL-ViT or OWLv2 of transformers. Boxes are corners in
    pixels."""

    def __init__(self, loaded: LoadedRun, device: torch.device):
        assert isinstance(loaded.model, Detector)
        assert loaded.parts.tokenizer is not None
        self.model, self.device = loaded.model.to(device), device
        self.tokenizer, self.side = loaded.parts.tokenizer, loaded.recipe.data.image_size

    @torch.no_grad()
    def __call__(self, image: "Image", query: Query) -> list[FoundBox]:
        if query.depth is not None:
            raise ValueError("this model sees RGB alone: leave the depth out")
        if query.query_image is None:
            names, queries = list(query.texts), self._embed_texts(list(query.texts))
        else:
            example = open_picture(query.query_image)
            names, queries = [query.query_image.name], self._embed_example(example, query.query_box)
        detections = self.model(self._square(image), queries=queries)
        score, label = detections.logits[0].float().sigmoid().max(-1)  # each token takes its best query
        confident = (score >= query.threshold).nonzero()[:, 0]
        corners = from_square(detections.boxes[0, confident], float(image.width), float(image.height))
        score, label = score[confident], label[confident]
        best = nms(corners, score, query.nms, label)[: query.top]
        return [
            {"text": names[int(label[i])], "score": float(score[i]), "box": corners[i].tolist()} for i in best.tolist()
        ]

    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        return draw_detections(image, found)

    def _square(self, image: "Image") -> Tensor:
        return to_unit(to_square(image, self.side)[None].to(self.device))

    def _embed_texts(self, texts: list[str]) -> Tensor:
        tokens = self.tokenizer.encode(texts, self.model.context).to(self.device)
        return torch.cat([self.model.queries(part) for part in tokens.split(_TEXTS_PER_CALL)])

    def _embed_example(self, example: "Image", box: tuple[float, float, float, float] | None) -> Tensor:
        """The query embedding (1, e) of the object in a box of the example. Without a box, the model chooses the
        object; a model without an objectness head takes the whole picture."""
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


class Predictor3D(Predictor):
    """A run of detection3d. A box is 12 numbers in the camera frame: centre, two columns of the rotation, size.
    Omni3D's fields are added to it, and its edges in pixels, which depend on the camera: without `Query.intrinsics` the
    focal length is taken to be the image's long side and the centre its middle. The box itself depends on the camera
    only if the model predicts centres relative to the points of patches (`model.box_centre`)."""

    def __init__(self, loaded: LoadedRun, device: torch.device):
        assert isinstance(loaded.model, Detector3D)
        assert loaded.parts.tokenizer is not None
        self.model, self.device = loaded.model.to(device), device
        self.tokenizer, self.recipe = loaded.parts.tokenizer, loaded.recipe

    @torch.no_grad()
    def __call__(self, image: "Image", query: Query) -> list[FoundBox]:
        if query.query_image is not None:
            raise ValueError("boxes in 3D are asked for by text: give --text in place of a query image")
        side = self.recipe.data.image_size
        pixels = to_unit(to_square(image, side)[None].to(self.device))
        tokens = self.tokenizer.encode(list(query.texts), self.recipe.text.context).to(self.device)
        queries = torch.cat([self.model.embed(part) for part in tokens.split(_TEXTS_PER_CALL)])
        camera = camera_matrix(image, query)
        predictions = self.model(pixels, self._depth(image, query), queries, self._calibration(image, query, camera))
        best = suppress(best_boxes(predictions, most=4 * query.top)[0], query.nms)
        index = [i for i, score in enumerate(best.score.tolist()) if score >= query.threshold][: query.top]
        chosen = ScoredBoxes(best.box[index].cpu(), best.label[index].cpu(), best.score[index].cpu())
        entries = omni3d.results(chosen, 0, camera, range(len(query.texts)))
        return [
            {
                "text": query.texts[int(label)],
                "score": entry["score"],
                "box": box.tolist(),
                **{name: entry[name] for name in ("bbox3D", "center_cam", "dimensions", "pose")},
                "edges": box3d.project_edges(box[None], camera).flatten(1).tolist(),
            }
            for box, label, entry in zip(chosen.box, chosen.label, entries, strict=True)
        ]

    def draw(self, image: "Image", found: Sequence[Mapping[str, Any]]) -> "Image":
        from PIL import ImageDraw

        picture, scale = enlarge(image)
        pen = ImageDraw.Draw(picture)
        texts = list(dict.fromkeys(str(f["text"]) for f in found))
        width, limit = max(1, round(max(picture.size) / 200)), 8 * max(picture.size)
        for box in reversed(found):  # the best on top
            colour = COLOURS[texts.index(str(box["text"])) % len(COLOURS)]
            lines = [[min(max(scale * v, -limit), limit) for v in edge] for edge in box["edges"]]
            for fill, thick in (("white", width + 2), (colour, width)):  # it stands out from any background
                for line in lines:
                    pen.line(line, fill=fill, width=thick)
            if lines:
                left, top = (min(line[i] for line in lines) for i in (0, 1))
                write_label(pen, (left, top), f"{box['text']} {box['score']:.2f}", colour)
        return picture

    def frame(self, image: "Image", query: Query, found: Sequence[Mapping[str, Any]]) -> Frame:
        if query.depth is None:
            raise ValueError(
                "--html and --rrd show a cloud of points with boxes: give the picture's depth map with --depth"
            )
        depth = self._read_depth(image, query, query.depth)
        height, width = depth.shape
        rgb = to_tensor(image.resize((width, height)))
        scale = torch.tensor([width / image.width, height / image.height, 1.0])
        boxes = [Box(torch.tensor(f["box"]), f["text"], "predicted", f["score"]) for f in found]
        return Frame(rgb, depth, camera_matrix(image, query) * scale[:, None], boxes)

    def _calibration(self, image: "Image", query: Query, camera: Tensor) -> Calibration | None:
        """The camera of the padded square, for a model that predicts centres relative to the points of patches."""
        if self.model.centre == "absolute":
            return None
        if query.depth is None:
            raise ValueError("this model places boxes by the depth of their patches: give a depth map with --depth")
        if query.intrinsics is None:
            note = f"no intrinsics given: a focal length of {camera[0, 0]:g} pixels assumed, the picture's long side"
            print(note, file=sys.stderr)
        scale = torch.tensor([self.recipe.data.image_size / max(image.size)] * 2 + [1.0])
        return Calibration((camera * scale[:, None]).to(self.device), torch.eye(4, device=self.device))

    def _depth(self, image: "Image", query: Query) -> Tensor | None:
        """(1, side, side) metres on the padded square, for a model that takes depth; None without a map."""
        if query.depth is None:
            return None
        if self.recipe.model.depth == "none":
            raise ValueError("this model sees RGB alone: leave the depth out")
        depth = self._read_depth(image, query, query.depth)
        return depth_to_square(depth, self.recipe.data.image_size)[None].to(self.device)

    def _read_depth(self, image: "Image", query: Query, path: Path) -> Tensor:
        """The map (h, w) in metres. Its step comes from the query, the file itself, the JSON file that a data set
        stores beside it, or the recipe."""
        name, step = str(path), query.depth_step or self.recipe.data.depth_step
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


def camera_matrix(image: "Image", query: Query) -> Tensor:
    """K (3, 3), from the query's intrinsics, or a guess from the size of the image."""
    fx, fy, cx, cy = query.intrinsics or (max(image.size), max(image.size), image.width / 2, image.height / 2)
    if fx <= 0 or fy <= 0:
        raise ValueError(f"intrinsics are fx fy cx cy in pixels with fx and fy above 0, got {query.intrinsics}")
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])


def suppress(detections: ScoredBoxes, most: float) -> ScoredBoxes:
    """The detections, best first, without those that overlap a better one of the same label by an IoU of more than
    `most`."""
    order = detections.score.argsort(descending=True)
    box, label, score = detections.box[order], detections.label[order], detections.score[order]
    if most < 1:
        pairs = (
            (label[:, None] == label) & torch.ones(len(label), len(label)).triu(1).bool().to(label.device)
        ).nonzero()
        overlaps = torch.zeros(len(label), len(label), dtype=torch.bool)
        too_close = box3d.iou(box[pairs[:, 0]].double(), box[pairs[:, 1]].double()) > most
        overlaps[pairs[:, 0].cpu(), pairs[:, 1].cpu()] = too_close.cpu()
        remaining = torch.ones(len(label), dtype=torch.bool)
        for i in range(len(label)):
            if remaining[i]:
                remaining &= ~overlaps[i]
        box, label, score = box[remaining], label[remaining], score[remaining]
    return ScoredBoxes(box, label, score)


_PREDICTORS: dict[str, type[Predictor]] = {"detection2d": Predictor2D, "detection3d": Predictor3D}
"""By task. A task whose runs `stringpe predict` can use has a class here."""
