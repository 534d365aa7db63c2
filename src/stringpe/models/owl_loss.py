"""The loss of OWL-ViT in 2D: objects are matched to tokens, matched tokens learn their class and box, the others that
they show none of the queries."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..geometry.boxes import area, giou, intersection, to_corners
from .focal_loss import focal, focal_cost
from .matching import match, take
from .owl import Detections

_IN_A_CROWD = 0.5  # of a box's area: as in COCO's evaluation


class Truth(NamedTuple):
    """Objects of b images, padded to m: boxes (b, m, 4), cxcywh in [0, 1]; labels (b, m), an image's query numbers;
    valid (b, m), false for padding; crowd (b, m), true for regions where nothing is known one by one (COCO's iscrowd,
    VOC's difficult, objects mostly cut off): they are no targets, and tokens in them are not wrong."""

    boxes: Tensor
    labels: Tensor
    valid: Tensor
    crowd: Tensor


class DetectionLoss(NamedTuple):
    """The sum and its parts, means over images."""

    total: Tensor
    classes: Tensor
    l1: Tensor
    giou: Tensor


def detection_loss(
    found: Detections, truth: Truth, *, mask: Tensor | None = None, exhaustive: Tensor | None = None
) -> DetectionLoss:
    """Focal class loss over all tokens and queries + L1 of matched boxes + (1 − GIoU) of matched boxes, each divided by
    the image's number of matched objects (at least 1), mean over images. Matching costs: focal class, L1 and −GIoU.

    mask: (b, q), true where there is a query. exhaustive: (b, q), false where not every object of a query is annotated
    (LVIS): only matched tokens learn about such a query."""
    objects = truth.valid & ~truth.crowd
    index = match(matching_cost(found, truth), objects)
    positive = (index >= 0).float()  # (b, m)
    count = positive.sum(1).clamp(min=1)  # (b,)
    target = class_target(found.logits, index, truth.labels)
    known = _known(found, truth, mask, exhaustive) | (target > 0)
    classes = (focal(found.logits, target) * known).sum((1, 2))
    if found.objectness is not None:
        classes = classes + focal(found.objectness, target.amax(2)).sum(1)
    boxes = take(found.boxes.float(), index)
    l1 = ((boxes - truth.boxes).abs().sum(-1) * positive).sum(1)
    apart = ((1 - giou(to_corners(boxes), to_corners(truth.boxes))) * positive).sum(1)
    parts = [(each / count).mean() for each in (classes, l1, apart)]
    return DetectionLoss(parts[0] + parts[1] + parts[2], *parts)


@torch.no_grad()
def matching_cost(found: Detections, truth: Truth) -> Tensor:
    """(b, n, m): focal class + L1 + (−GIoU), with equal weights."""
    boxes, objects = found.boxes.float()[:, :, None], truth.boxes[:, None]
    l1 = (boxes - objects).abs().sum(-1)
    return focal_cost(found.logits, truth.labels) + l1 - giou(to_corners(boxes), to_corners(objects))


def class_target(logits: Tensor, index: Tensor, labels: Tensor) -> Tensor:
    """(b, n, q), 1 where token index (b, m) is matched to an object of query labels (b, m), else 0."""
    b, n, q = logits.shape
    # What has no match goes to a place beyond the last, so that no number of matches must be asked of the device.
    place = torch.where(index >= 0, index * q + labels, n * q)
    target = torch.zeros(b, n * q + 1, device=logits.device).scatter_(1, place, 1.0)
    return target[:, :-1].unflatten(1, (n, q))


@torch.no_grad()
def _known(found: Detections, truth: Truth, mask: Tensor | None, exhaustive: Tensor | None) -> Tensor:
    """(b, n, q): whether an unmatched token is known to be wrong about a query."""
    known = torch.ones_like(found.logits, dtype=torch.bool)
    for good in (mask, exhaustive):
        if good is not None:
            known = known & good[:, None]
    crowd = truth.valid & truth.crowd
    boxes = to_corners(found.boxes.float())[:, :, None]  # (b, n, 1, 4)
    shared = intersection(boxes, to_corners(truth.boxes)[:, None])  # (b, n, m)
    within = (shared > _IN_A_CROWD * area(boxes)) & crowd[:, None]
    labels = truth.labels.clamp(min=0)[:, None].expand_as(within)
    inside = torch.zeros_like(found.logits).scatter_add_(2, labels, within.to(found.logits.dtype))
    return known & (inside == 0)
