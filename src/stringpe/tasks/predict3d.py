"""Prediction of boxes in 3D, for texts, in RGB or RGB-D pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data import omni3d
from ..data.captions import DEPTH, check_aspect, depth_of
from ..data.transforms import to_unit
from ..geometry import box3d
from ..geometry.draw_boxes import COLOURS
from ..geometry.draw_boxes3d import edges
from ..geometry.square import depth_to_square, to_square
from ..io.pictures import BadSample
from ..metrics.average_precision3d import Detections
from ..models.owl3d import detections
from .detection3d import load
from .predict import Asked, Found, Predictor

if TYPE_CHECKING:
    from PIL.Image import Image


class Predictor3D(Predictor):
    """A run of detection3d. A box is 12 numbers in the camera frame: centre, two columns of the rotation, size; beside
    it stand Omni3D's fields, and its edges in pixels, for which the camera must be known: without `asked.intrinsics`
    the focal length is taken to be the image's long side and the centre its middle. The box itself does not depend on
    it."""

    def __init__(self, folder: Path, device: torch.device):
        model, self.tokenizer, self.recipe = load(folder)
        self.model, self.device = model.to(device), device

    @torch.no_grad()
    def __call__(self, image: "Image", asked: Asked) -> list[Found]:
        if asked.query_image is not None:
            raise ValueError("boxes in 3D are asked for by text: give --text in place of a query image")
        side = self.recipe.data.image_size
        pixels = to_unit(to_square(image, side)[None].to(self.device))
        text = self.tokenizer.encode(list(asked.texts), self.recipe.text.context).to(self.device)
        queries = torch.cat([self.model.embed(part) for part in text.split(256)])
        found = self.model(pixels, self._depth(image, asked), queries)
        best = apart(detections(found, most=4 * asked.top)[0], asked.nms)
        camera = intrinsics(image, asked)
        chosen = [i for i, score in enumerate(best.score.tolist()) if score >= asked.threshold][: asked.top]
        kept = Detections(best.box[chosen].cpu(), best.label[chosen].cpu(), best.score[chosen].cpu())
        entries = omni3d.results(kept, 0, camera, range(len(asked.texts)))
        return [
            {
                "text": asked.texts[int(label)],
                "score": entry["score"],
                "box": box.tolist(),
                **{name: entry[name] for name in ("bbox3D", "center_cam", "dimensions", "pose")},
                "edges": edges(box[None], camera).flatten(1).tolist(),
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

    def _depth(self, image: "Image", asked: Asked) -> Tensor | None:
        """(1, side, side) metres on the padded square, for a model that takes it; it runs without as well."""
        if asked.depth is None:
            return None
        if self.recipe.model.depth == "none":
            raise ValueError("this model sees RGB alone: leave the depth out")
        name, step = str(asked.depth), self.recipe.data.depth_step
        try:
            far = check_aspect(depth_of({DEPTH: asked.depth.read_bytes()}, name, step), image, name)
        except BadSample as error:
            raise ValueError(str(error)) from None
        return depth_to_square(far, self.recipe.data.image_size)[None].to(self.device)


def intrinsics(image: "Image", asked: Asked) -> Tensor:
    """K (3, 3) as asked, or a guess."""
    fx, fy, cx, cy = asked.intrinsics or (max(image.size), max(image.size), image.width / 2, image.height / 2)
    if fx <= 0 or fy <= 0:
        raise ValueError(f"intrinsics are fx fy cx cy in pixels with fx and fy above 0, got {asked.intrinsics}")
    return torch.tensor([[fx, 0, cx], [0, fy, cy], [0, 0, 1.0]])


def apart(found: Detections, most: float) -> Detections:
    """Without detections that overlap a better one of the same label by more than `most` (IoU)."""
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
    return Detections(box, label, score)
