"""The loss of OWL-ViT in 2D, and the parts of it that detection in 3D shares: focal loss and Hungarian matching.

Objects are matched to tokens; a matched token learns its class and box, the others that they show none of the queries.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import kernels
from ..checks import check_count, check_floats, check_tensor
from ..geometry.boxes import area, giou, intersection, to_corners
from .owl import Detections

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALPHA, GAMMA = 0.3, 2.0

_REPEATED = 1e3  # added to the costs of repetitions, so that they go unmatched first where tokens are too few
_IN_A_CROWD = 0.5  # of a box's area, as in COCO's evaluation


class Truth(NamedTuple):
    """Objects of b images, padded to m: boxes (b, m, 4), cxcywh in [0, 1]; labels (b, m), numbers of queries;
    valid (b, m), false for padding; crowd (b, m), true for regions whose objects are not annotated separately (COCO's
    iscrowd, VOC's difficult, objects mostly cut off): these are not targets, and tokens in them do not count as
    wrong."""

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
    found: Detections,
    truth: Truth,
    *,
    mask: Tensor | None = None,
    exhaustive: Tensor | None = None,
    positives: int = 1,
) -> DetectionLoss:
    """Focal class loss over all tokens and queries + L1 of matched boxes + (1 − GIoU) of matched boxes, each divided by
    the image's number of matched objects (at least 1), mean over images. Matching costs: focal class, L1 and −GIoU.

    mask: (b, q), true where there is a query. exhaustive: (b, q), false where not every object of a query is annotated
    (LVIS): only matched tokens learn about such a query. positives: tokens that are matched to every object; with more
    than one, several tokens learn to find the same object, and evaluation needs non-maximum suppression."""
    index = match_repeatedly(matching_cost(found, truth), truth.valid & ~truth.crowd, positives)
    truth = Truth(*(part.repeat(1, positives, *[1] * (part.ndim - 2)) for part in truth))
    positive = (index >= 0).float()  # (b, m)
    count = positive.sum(1).clamp(min=1)  # (b,)
    target = class_target(found.logits, index, truth.labels)
    known = _mark_known_negatives(found, truth, mask, exhaustive) | (target > 0)
    classes = (focal(found.logits, target) * known).sum((1, 2))
    if found.objectness is not None:
        classes = classes + focal(found.objectness, target.amax(2)).sum(1)
    boxes = take(found.boxes.float(), index)
    l1 = ((boxes - truth.boxes).abs().sum(-1) * positive).sum(1)
    apart = ((1 - giou(to_corners(boxes), to_corners(truth.boxes))) * positive).sum(1)
    parts = [(each / count).mean() for each in (classes, l1, apart)]
    return DetectionLoss(parts[0] + parts[1] + parts[2], *parts)


@torch.no_grad()
def match_repeatedly(cost: Tensor, valid: Tensor, times: int) -> Tensor:
    """The predictions (b, times · m) of every object: the first of each object, then the second of each, and so on. It
    is `match` with every object repeated. Where an image has too few predictions, repetitions go unmatched first."""
    _check_costs(cost, valid)
    check_count("times", times)
    extra = torch.arange(times, device=cost.device).clamp(max=1).repeat_interleave(cost.shape[2])
    return match(cost.repeat(1, 1, times) + _REPEATED * extra, valid.repeat(1, times))


@torch.no_grad()
def matching_cost(found: Detections, truth: Truth) -> Tensor:
    """(b, n, m): focal class + L1 + (−GIoU), with equal weights."""
    boxes, objects = found.boxes.float()[:, :, None], truth.boxes[:, None]
    l1 = (boxes - objects).abs().sum(-1)
    return focal_cost(found.logits, truth.labels) + l1 - giou(to_corners(boxes), to_corners(objects))


def class_target(logits: Tensor, index: Tensor, labels: Tensor) -> Tensor:
    """(b, n, q), 1 where token index (b, m) is matched to an object of query labels (b, m), else 0."""
    b, n, q = logits.shape
    # Objects without a match write to a place beyond the last: to leave them out, the host would wait for the device.
    place = torch.where(index >= 0, index * q + labels, n * q)
    target = torch.zeros(b, n * q + 1, device=logits.device).scatter_(1, place, 1.0)
    return target[:, :-1].unflatten(1, (n, q))


@torch.no_grad()
def _mark_known_negatives(found: Detections, truth: Truth, mask: Tensor | None, exhaustive: Tensor | None) -> Tensor:
    """(b, n, q): whether a token, if it is not matched, is known not to show a query."""
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


def focal(logits: Tensor, target: Tensor) -> Tensor:
    """Focal sigmoid cross-entropy of every logit, for targets of the same shape that are 0 or 1: with p the probability
    given to the target, −w (1 − p)^γ log p, w = α for 1 and 1 − α for 0."""
    positive = target > 0.5
    wrong = torch.where(positive, -logits.float(), logits.float())  # the logit of the other outcome than the target
    return torch.where(positive, ALPHA, 1 - ALPHA) * wrong.sigmoid() ** GAMMA * F.softplus(wrong)


def focal_cost(logits: Tensor, labels: Tensor) -> Tensor:
    """The class cost of matching a token to object j, with labels (b, m): logits (b, n, q) to (b, n, m), its loss as a
    positive minus its loss as a negative."""
    logits = logits.float().gather(2, labels.clamp(min=0)[:, None].expand(-1, logits.shape[1], -1))
    p = logits.sigmoid()
    negative = (1 - ALPHA) * p**GAMMA * F.softplus(logits)
    return ALPHA * (1 - p) ** GAMMA * F.softplus(-logits) - negative


@torch.no_grad()
def match(cost: Tensor, valid: Tensor) -> Tensor:
    """The prediction of every object, (b, m) int64, such that the sum of costs is smallest: Hungarian matching, in a
    kernel on a GPU that Triton knows, elsewhere image by image on the CPU's threads.

    cost: (b, n, m), of prediction i for object j. valid: (b, m), true for objects, false for padding, whose costs are
    ignored. The result is −1 for padding, and for the objects that are left over where an image has more of them than
    predictions.
    """
    _check_costs(cost, valid)
    if _matches_on_device(cost):
        return kernels.assign(cost.float(), valid)
    # All costs leave the GPU in one transfer. Padding is 0, so that a cost that is not finite belongs to an object.
    table = cost.masked_fill(~valid[:, None], 0).float().cpu()
    return _match_on_host(table, valid.cpu()).to(cost.device)


def _check_costs(cost: Tensor, valid: Tensor) -> None:
    check_floats("cost", cost, ("b", None), ("n", None), ("m", None))
    check_tensor("valid", valid)
    if valid.shape != (len(cost), cost.shape[-1]) or valid.dtype != torch.bool or valid.device != cost.device:
        raise ValueError(
            f"cost must be (b, n, m) and valid bool (b, m), got {tuple(cost.shape)} on {cost.device} and "
            f"{valid.dtype} {tuple(valid.shape)} on {valid.device}"
        )
    if cost.is_meta:
        raise ValueError("cost must hold numbers to match by, got a tensor on the meta device")


def _matches_on_device(cost: Tensor) -> bool:
    small = max(cost.shape[1:]) <= kernels.LARGEST_ASSIGNMENT
    return cost.device.type == "cuda" and small and kernels.unavailable(cost.new_empty(0, dtype=torch.float32)) is None


def _match_on_host(table: Tensor, objects: Tensor) -> Tensor:
    if not bool(table.isfinite().all()):
        image = int((~table.isfinite()).flatten(1).any(1).nonzero()[0, 0])
        raise ValueError(
            f"a matching cost of image {image} is NaN or infinite: a prediction or a box is not finite; "
            f"lower optim.lr, raise optim.warmup_steps, or check the boxes"
        )
    found = torch.full(objects.shape, -1)
    tables, masks, rows = table.numpy(), objects.numpy(), found.numpy()
    threads = min(16, torch.get_num_threads())
    if threads == 1:
        _assign(tables, masks, rows)
        return found

    def assign(first: int) -> None:
        every = slice(first, None, threads)
        _assign(tables[every], masks[every], rows[every])

    list(_threads(threads).map(assign, range(threads)))  # a list, so that what a thread raises is raised here
    return found


def take(x: Tensor, index: Tensor) -> Tensor:
    """The rows (b, m, …) of x (b, n, …) at the matches index (b, m); row 0 where there is no match."""
    rows = index.clamp(min=0)
    return x.gather(1, rows.view(*rows.shape, *[1] * (x.ndim - 2)).expand(-1, -1, *x.shape[2:]))


def _assign(costs: "NDArray[Any]", valid: "NDArray[Any]", found: "NDArray[Any]") -> None:
    """Write the matches of several images (b, n, m) into found (b, m)."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    for cost, mask, row in zip(costs, valid, found, strict=True):
        objects = np.flatnonzero(mask)
        if len(objects):
            predictions, places = linear_sum_assignment(cost[:, objects])
            row[objects[places]] = predictions


@lru_cache(maxsize=1)
def _threads(threads: int) -> ThreadPoolExecutor:
    """As many threads as torch may use, kept between steps: scipy releases the interpreter's lock while it assigns."""
    return ThreadPoolExecutor(threads, "matching")
