"""Open-vocabulary detection in 3D, the paper's section 4.2: OWL-ViT whose tokens each predict an oriented box.

    detector = Detector3D(vit, text)
    predictions = detector(image, depth, queries)         # logits (b, n, q) and boxes (b, n, 12), in the camera frame
    loss = detection3d_loss(predictions, labels, boxes)   # labels (b, m), −1 where there is no object; boxes (b, m, 12)

A box is 12 numbers as in `box3d`: centre in metres, two columns of the rotation, size in metres. In the paper all are
absolute: no offset to the patch is added, and the model does not know the camera. With centre="point" a centre is
predicted relative to the point where its patch lies in space, which depth and the camera's intrinsics give. What is
left to learn does not depend on where an object stands, and boxes become far better (docs/detection3d.md).

A ViT in the world frame (frame="world") takes calibrated cameras, one view or several per sample. Its boxes are in the
world frame, and their centres relative to the tokens' points: moving the world moves the boxes with it.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..checks import check_choice, check_number, check_tensor
from ..coords import Calibration
from ..geometry import box3d
from ..metrics.average_precision3d import ScoredBoxes
from .depth import world_points
from .initialise import draw_by_fan_in
from .owl import ClassHead, unit
from .owl_loss import class_target, focal, focal_cost, match, take
from .text import TextTower
from .vit import ViT

START = (0.0, 0.0, 2.5, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.4, 0.4, 0.4)
"""About the box that every token predicts before anything is learned: 40 cm wide, 2.5 m ahead, with its z axis up."""

START_AT_POINT = (0.0, 0.0, 0.0, *START[3:])
"""The same box at the point of the token's patch."""

CENTRES = ("absolute", "point")
"""What the centre of a box is predicted relative to: the origin of the frame, or the point where the patch lies."""

_ELEMENTS = 2**26  # differences between predictions and objects that are formed at a time


class Predictions3D(NamedTuple):
    """What a detector predicts for b images with n tokens and q queries: logits (b, n, q) and boxes (b, n, 12)."""

    logits: Tensor
    boxes: Tensor


class Losses(NamedTuple):
    """The three terms of the loss, means over images, and the matched tokens (b, m), −1 where there is none."""

    label: Tensor
    box: Tensor
    corner: Tensor
    matched: Tensor

    @property
    def total(self) -> Tensor:
        return self.label + self.box + self.corner


class BoxHead3D(nn.Module):
    """A three-layer MLP with GELU: one box (…, 12) per token (…, dim).

    Centre and columns are outputs of the last layer; sizes go through a softplus, so that they are positive. The bias
    of the last layer starts at `start`, with small weights: tokens differ, but all boxes start in front of the camera.
    """

    def __init__(self, dim: int, *, start: tuple[float, ...] = START):
        super().__init__()
        if len(start) != 12 or min(start[9:]) <= 0:
            raise ValueError(f"start must be 12 numbers, the last three (sizes) above 0, got {start}")
        self.start = start
        self.mlp = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, 12))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The first two layers keep the size of what goes through them; the last starts near `start`."""
        first, second, last = (layer for layer in self.mlp if isinstance(layer, nn.Linear))
        draw_by_fan_in(first, gain=1.0)
        draw_by_fan_in(second, gain=1.0)
        draw_by_fan_in(last, gain=0.1)
        sizes = [math.log(math.expm1(size)) for size in self.start[9:]]  # softplus of these gives the sizes
        with torch.no_grad():
            last.bias.copy_(torch.tensor([*self.start[:9], *sizes]))

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, enabled=False):  # bf16 rounds a distance of 4 m to 16 mm
            raw = self.mlp(tokens.float())
            return torch.cat([raw[..., :9], F.softplus(raw[..., 9:])], dim=-1)


class Detector3D(nn.Module):
    """A ViT or ViTD, a text tower, and the class and box heads on every patch token.

    image: its `trunk` is used, so that the model itself keeps its classifier and its pooling.
    factor: the value at which the factor of the class logits starts, see `ClassHead`. OWL-ViT's is 1; towers that are
        not pretrained learn names much faster from 10, where SigLIP's temperature starts.
    centre: "absolute", as in the paper, or "point", relative to where the patch lies; by default "absolute" in the
        frame of the camera, and always "point" in that of the world.
    """

    def __init__(self, image: ViT, text: TextTower, *, factor: float = 1.0, centre: str | None = None):
        super().__init__()
        if not isinstance(image, ViT) or not isinstance(text, TextTower):
            raise TypeError(
                f"a detector takes a stringpe.ViT and a TextTower, got {type(image).__name__} and {type(text).__name__}"
            )
        check_number("factor", factor)
        self.centre = _choose_centre(centre, image)
        self.image, self.text = image.trunk(), text
        self.class_head = ClassHead(image.dim, text.width, factor=factor)
        self.box_head = BoxHead3D(image.dim, start=START if self.centre == "absolute" else START_AT_POINT)

    def forward(
        self, image: Tensor, depth: Tensor | None, queries: Tensor, calibration: Calibration | None = None
    ) -> Predictions3D:
        """image (b, 3, H, W), depth (b, H, W) in metres or None; queries: tokens of text (q, n), or (q, t, n) in t
        templates, over which logits are averaged; or embeddings (q, e), as `embed` returns them. calibration: for
        centre="point", where the boxes are in the frame of its pose (of the camera, for the identity); and in the world
        frame, where image and depth may also be (b, v, 3, H, W) and (b, v, H, W)."""
        _check_queries(queries)
        of_tower = None if self.image.frame == "camera" and self.centre == "point" else calibration
        tokens = self.image.features(image, depth, calibration=of_tower).tokens
        embeddings = queries if queries.is_floating_point() else self.embed(queries)
        boxes = self.box_head(tokens)
        if self.centre == "point":
            if depth is None or calibration is None:
                raise ValueError(
                    "this detector predicts centres relative to the points where patches lie: pass depth in metres and "
                    "calibration=coords.Calibration(intrinsics, pose), torch.eye(4) for boxes in the camera's frame"
                )
            points = world_points(depth, calibration, self.image.patch_size)
            boxes = torch.cat([boxes[..., :3] + points, boxes[..., 3:]], dim=-1)
        return Predictions3D(self.class_head(tokens, embeddings).logits, boxes)

    def embed(self, queries: Tensor) -> Tensor:
        """Tokens of text (q, n) or (q, t, n) to query embeddings (q, e): unit vectors, or their mean over t templates,
        whose logit is the mean of the templates' logits."""
        if queries.ndim == 2:
            return unit(self.text(queries).float())
        return unit(self.text(queries.flatten(0, 1)).float()).unflatten(0, queries.shape[:2]).mean(1)


def _check_queries(queries: Tensor) -> None:
    """Refuse queries that are neither tokens of text nor embeddings."""
    check_tensor("queries", queries)
    embeddings = queries.is_floating_point() and queries.ndim == 2
    tokens = queries.dtype in (torch.int32, torch.int64) and queries.ndim in (2, 3)
    if not embeddings and not tokens:
        raise ValueError(
            f"queries must be tokens (q, n) or (q, t, n), or embeddings (q, e) as floats, got {tuple(queries.shape)} "
            f"{queries.dtype}"
        )


def _choose_centre(centre: str | None, image: ViT) -> str:
    """What centres are relative to, once it fits the image tower."""
    if centre is None:
        return "absolute" if image.frame == "camera" else "point"
    check_choice("centre", centre, CENTRES)
    if image.frame == "world" and centre == "absolute":
        raise ValueError("in the world frame centres are relative to the tokens' points: leave centre='absolute' out")
    if centre == "point" and image.depth == "none":
        raise ValueError("centre='point' needs depth to place patches: build the image tower with coord_dim=3")
    return centre


@torch.no_grad()
def assign(predictions: Predictions3D, labels: Tensor, boxes: Tensor) -> Tensor:
    """The token of every object, (b, m): the Hungarian matching whose cost is class + L1 + corners, as in the loss.

    labels: (b, m), −1 where there is no object. An object without a token, where there are more objects than tokens,
    gets −1 too."""
    return _match(predictions.logits, _numbers(predictions.boxes), labels, _numbers(boxes))


def detection3d_loss(predictions: Predictions3D, labels: Tensor, boxes: Tensor) -> Losses:
    """The paper's loss for objects with labels (b, m), −1 where there is none, and boxes (b, m, 12).

    Focal over all tokens and queries, L1 over the 12 numbers, and L1 over the 24 coordinates of the corners, in their
    fixed order, in place of OWL-ViT's GIoU; each a sum divided by the image's number of matched objects (at least 1),
    weighed 1, 1, 1, and a mean over images.
    """
    predicted, wanted = _numbers(predictions.boxes), _numbers(boxes)
    matched = _match(predictions.logits, predicted, labels, wanted)  # (b, m)
    is_matched = matched >= 0
    positives = is_matched.sum(1).clamp(min=1)
    label = focal(predictions.logits, class_target(predictions.logits, matched, labels)).sum((1, 2)) / positives
    # Objects without a match count as zeros: to leave them out, the host would have to wait for the device.
    distances = (take(predicted, matched) - wanted).masked_fill(~is_matched[..., None], 0).abs().sum(1)  # (b, 36)
    distances = (distances / positives[:, None]).mean(0)
    return Losses(label.mean(), distances[:12].sum(), distances[12:].sum(), matched)


@torch.no_grad()
def _match(logits: Tensor, predicted: Tensor, labels: Tensor, objects: Tensor) -> Tensor:
    return match(focal_cost(logits, labels) + _distances(predicted, objects), labels >= 0)


def _numbers(boxes: Tensor) -> Tensor:
    """What boxes (…, 12) are compared by, (…, 36): their numbers and the coordinates of their corners."""
    boxes = boxes.float()
    return torch.cat([boxes, box3d.complete_corners(boxes).flatten(-2)], dim=-1)


def _distances(predicted: Tensor, objects: Tensor) -> Tensor:
    """L1 distances (b, n, m) of vectors (b, n, c) and (b, m, c), a few images at a time to bound memory; `cdist` takes
    a hundred times as long on a GPU."""
    images = max(1, _ELEMENTS // max(1, predicted[0].numel() * objects.shape[1]))
    pieces = zip(predicted.split(images), objects.split(images), strict=True)
    return torch.cat([(p[:, :, None] - o[:, None]).abs().sum(-1) for p, o in pieces])


@torch.no_grad()
def best_boxes(predictions: Predictions3D, most: int = 100) -> list[ScoredBoxes]:
    """The boxes of the `most` best pairs of token and query per image, with probabilities as scores and orthonormal
    rotations."""
    scores = predictions.logits.float().sigmoid().flatten(1)  # (b, n q)
    best = scores.topk(min(most, scores.shape[1]), dim=1)
    token, label = best.indices // predictions.logits.shape[2], best.indices % predictions.logits.shape[2]
    boxes = box3d.complete(take(predictions.boxes.float(), token))
    return [ScoredBoxes(*rows) for rows in zip(boxes, label, best.values, strict=True)]
