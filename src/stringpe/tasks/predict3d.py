"""Prediction of boxes in 3D, for texts, in RGB or RGB-D pictures."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..coords import Calibration
from ..data import omni3d
from ..data.captions import DEPTH, check_aspect, depth_of, depth_step_of
from ..data.images import to_tensor
from ..data.transforms import to_unit
from ..geometry import box3d
from ..geometry.draw_boxes import COLOURS
from ..geometry.square import depth_to_square, to_square
from ..io.pictures import BadSample
from ..metrics.average_precision3d import ScoredBoxes
from ..models.owl3d import Detector3D, detections
from ..viewer import Box, Frame
from .build import Loaded
from .predict import Finding, Predictor, Query

if TYPE_CHECKING:
    from PIL.Image import Image


class Predictor3D(Predictor):
    """A run of detection3d. A box is 12 numbers in the camera frame: centre, two columns of the rotation, size; beside
    it stand Omni3D's fields, and its edges in pixels, for which the camera must be known: without `Query.intrinsics`
    the focal length is taken to be the image's long side and the centre its middle. The box itself depends on it only
    where the model predicts centres relative to the points of patches (`model.box_centre`)."""

    def __init__(self, loaded: Loaded, device: torch.device):
        assert isinstance(loaded.model, Detector3D)
        assert loaded.parts.tokenizer is not None
        self.model, self.device = loaded.model.to(device), device
        self.tokenizer, self.recipe = loaded.parts.tokenizer, loaded.recipe

    @torch.no_grad()
    def __call__(self, image: "Image", wanted: Query) -> list[Finding]:
        if wanted.query_image is not None:
            raise ValueError("boxes in 3D are asked for by text: give --text in place of a query image")
        side = self.recipe.data.image_size
        pixels = to_unit(to_square(image, side)[None].to(self.device))
        text = self.tokenizer.encode(list(wanted.texts), self.recipe.text.context).to(self.device)
        queries = torch.cat([self.model.embed(part) for part in text.split(256)])
        camera = camera_matrix(image, wanted)
        found = self.model(pixels, self._depth(image, wanted), queries, self._calibration(image, wanted, camera))
        best = suppress(detections(found, most=4 * wanted.top)[0], wanted.nms)
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
                pen.text(
                    (min(line[0] for line in lines), min(line[1] for line in lines)), str(one["text"]), fill=colour
                )
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
            if not wanted.depth_step and depth_step_of(files, name) is None:
                line = f"{name} does not say how long its steps are: {step:g} m assumed, the run's data.depth_step"
                print(line, file=sys.stderr)
            return check_aspect(depth_of(files, name, step), image, name)
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
