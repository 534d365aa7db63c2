"""Prediction: a trained model answers a question about a picture, written as JSON and drawn: boxes around what was
asked for, in 2D or 3D, or names of what is seen at places."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..coords import Calibration
from ..data import omni3d
from ..data.images import to_tensor
from ..data.transforms import to_unit
from ..devices import find_device
from ..geometry import box3d
from ..geometry.boxes import nms
from ..geometry.draw_boxes import draw_detections, enlarge, in_colours, write_label
from ..geometry.square import from_square, to_square
from ..io.files import new_file, write_json
from ..metrics.average_precision3d import ScoredBoxes
from ..models.owl import Detector
from ..models.owl3d import Detector3D, best_boxes
from ..viewer import Box, Frame, record_frames, save, show_frames
from .load import LoadedRun, load_run
from .predict_places import PlacePredictor
from .predictor import Answer, Predictor, Query, camera_matrix, open_picture, read_query_depth, square_depth

if TYPE_CHECKING:
    from PIL.Image import Image


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
) -> tuple[list[Path], list[Answer]]:
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
        "places": [list(place) for place in query.places],
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
    def __call__(self, image: "Image", query: Query) -> list[Answer]:
        query.check_names()
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
    def __call__(self, image: "Image", query: Query) -> list[Answer]:
        query.check_names()
        if query.query_image is not None:
            raise ValueError("boxes in 3D are asked for by text: give --text in place of a query image")
        side = self.recipe.data.image_size
        pixels = to_unit(to_square(image, side)[None].to(self.device))
        tokens = self.tokenizer.encode(list(query.texts), self.recipe.text.context).to(self.device)
        queries = torch.cat([self.model.embed(part) for part in tokens.split(_TEXTS_PER_CALL)])
        camera = camera_matrix(image, query)
        depth = square_depth(image, query, self.recipe, self.device)
        predictions = self.model(pixels, depth, queries, self._calibration(image, query, camera))
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
        width, limit = max(1, round(max(picture.size) / 200)), 8 * max(picture.size)
        for box, colour in in_colours(found):
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
        depth = read_query_depth(image, query, self.recipe)
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


_PREDICTORS: dict[str, type[Predictor]] = {
    "detection2d": Predictor2D,
    "detection3d": Predictor3D,
    "objects": PlacePredictor,
}
"""By task. A task whose runs `stringpe predict` can use has a class here."""
