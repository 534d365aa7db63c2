"""Average precision of boxes in 3D as Omni3D counts it, over the exact IoU, and the mean IoU of the paper.

    evaluation = ap3d.evaluate(detections, truths)            # a list of each, one entry per image
    evaluation.ap, evaluation.at[0.25], evaluation.by_label   # AP3D over 0.05 … 0.5, AP25, AP3D of every label

AP3D: the best 100 detections per image and label, best score first, each take the free truth of the same label that
they overlap most, if the IoU reaches the threshold. Precision is read at 101 recalls, as in COCO, and averaged
over them, then over labels that have truths, then over the thresholds 0.05, 0.10 … 0.5. A detection that takes an
ignored truth counts neither as right nor as wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..geometry import box3d
from .average_precision import mean_precision

THRESHOLDS = tuple(round(0.05 * i, 2) for i in range(1, 11))
SHOWN = (0.15, 0.25, 0.5)
"""Thresholds that Omni3D reports separately."""

_CHUNK = 256  # images matched together


class ScoredBoxes(NamedTuple):
    """What was found in one image: boxes (d, 12), their labels (d,) and scores (d,)."""

    box: Tensor
    label: Tensor
    score: Tensor


class Truths(NamedTuple):
    """What is in one image: boxes (g, 12), labels (g,), and which of them do not count (g,) bool."""

    box: Tensor
    label: Tensor
    ignore: Tensor


class Matched(NamedTuple):
    """The matching of one image: for its d detections label, score, and hit and ignored at every threshold, (t, d)
    bool; and the labels of the truths that count."""

    label: Tensor
    score: Tensor
    hit: Tensor
    ignored: Tensor
    truth: Tensor


@dataclass(frozen=True)
class Evaluation:
    """ap: over all thresholds and labels. at: over labels, by threshold. by_label: over thresholds, by label.
    Without any truth that counts there is nothing to average: ap is nan."""

    ap: float
    at: dict[float, float]
    by_label: dict[int, float]


def evaluate(
    detections: Sequence[ScoredBoxes], truths: Sequence[Truths], *, thresholds: Sequence[float] = THRESHOLDS
) -> Evaluation:
    """AP3D of detections in images 0, 1, … against the truths of the same images."""
    return accumulate(match(detections, truths, thresholds=thresholds), thresholds=thresholds)


@torch.no_grad()
def match(
    detections: Sequence[ScoredBoxes],
    truths: Sequence[Truths],
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    most: int = 100,
) -> list[Matched]:
    """Image by image, which detections hit; the best `most` per image and label are kept."""
    if len(detections) != len(truths):
        raise ValueError(f"one entry per image: got detections of {len(detections)} images and truths of {len(truths)}")
    _check_finite([d.score for d in detections], "scores")
    _check_finite([d.box for d in detections], "predicted boxes")
    _check_finite([t.box for t in truths], "true boxes")
    kept = [_best(found, most) for found in detections]
    tables = _overlaps(kept, truths)
    matched: list[Matched] = []
    for first in range(0, len(kept), _CHUNK):
        part = slice(first, first + _CHUNK)
        matched += _greedy(kept[part], truths[part], tables[part], thresholds)
    return matched


def accumulate(matched: Sequence[Matched], *, thresholds: Sequence[float] = THRESHOLDS) -> Evaluation:
    """AP3D from what `match` found, over any number of images, in any order."""
    if not matched:
        return Evaluation(float("nan"), {}, {})
    label, score, truth = (
        torch.cat(column) for column in zip(*((m.label, m.score, m.truth) for m in matched), strict=True)
    )
    hit, ignored = (torch.cat(column, 1) for column in zip(*((m.hit, m.ignored) for m in matched), strict=True))
    order = score.argsort(descending=True, stable=True)
    label, hit, ignored = label[order], hit[:, order], ignored[:, order]
    precision = {}  # by label, (t,)
    for number in truth.unique().tolist():
        own = label == number
        counted = ~ignored[:, own]
        right, objects = hit[:, own] & counted, int((truth == number).sum())
        precision[int(number)] = torch.from_numpy(mean_precision(right.numpy(), counted.numpy(), objects))
    if not precision:
        return Evaluation(float("nan"), {}, {})
    table = torch.stack(list(precision.values()))  # (labels, t)
    at = dict(zip(thresholds, table.mean(0).tolist(), strict=True))
    return Evaluation(float(table.mean()), at, {label: float(row.mean()) for label, row in precision.items()})


def paired_iou(predicted: Tensor, target: Tensor, *, points: int = 0) -> Tensor:
    """IoU (n,) of predictions with the objects that they are paired with, (n, 12) each; the paper's table reports its
    mean over all objects. Predicted rotations may be degenerate: `box3d.complete` replaces those. points: 0 for the
    exact IoU, else the number of points of the Monte-Carlo estimate, 100,000 in the paper."""
    whole = box3d.complete(predicted.double())
    if points:
        return box3d.iou(whole, target.double(), method="monte_carlo", points=points)
    return box3d.iou(whole, target.double())


def _check_finite(values: Sequence[Tensor], what: str) -> None:
    """values: one tensor per image."""
    wrong = [i for i, one in enumerate(values) if not bool(one.isfinite().all())]
    if wrong:
        raise ValueError(
            f"{what} of {len(wrong)} of {len(values)} images are not finite (images {', '.join(map(str, wrong[:5]))}): "
            "AP3D is undefined; check the model's weights and the annotations"
        )


def _best(found: ScoredBoxes, most: int) -> ScoredBoxes:
    """The detections in order of score, at most `most` per label."""
    order = found.score.argsort(descending=True, stable=True)
    label = found.label[order]
    rank = ((label[:, None] == label) & torch.ones(len(label), len(label), device=label.device).tril().bool()).sum(1)
    order = order[rank <= most]
    return ScoredBoxes(found.box[order], found.label[order], found.score[order])


def _overlaps(detections: Sequence[ScoredBoxes], truths: Sequence[Truths]) -> list[Tensor]:
    """IoU (d, g) of every image, 0 where labels differ; all pairs that can meet at all go through one batch."""
    rows, columns = [], []
    tables, places = [], []
    for found, truth in zip(detections, truths, strict=True):
        table = torch.zeros(len(found.box), len(truth.box), dtype=torch.float64)
        place = (_near(found.box, truth.box) & (found.label[:, None] == truth.label)).nonzero()
        rows.append(found.box[place[:, 0]].double())
        columns.append(truth.box[place[:, 1]].double())
        tables.append(table)
        places.append(place.cpu())
    if not tables:
        return []
    iou = paired_iou(torch.cat(rows), torch.cat(columns)).cpu()
    for table, place, values in zip(tables, places, iou.split([len(p) for p in places]), strict=True):
        table[place[:, 0], place[:, 1]] = values
    return tables


def _near(a: Tensor, b: Tensor) -> Tensor:
    """(d, g) bool: whether the balls around boxes (d, 12) and (g, 12) meet; where they do not, the IoU is 0."""
    apart = (a[:, None, :3] - b[:, :3]).norm(dim=-1)
    return apart <= (a[:, None, 9:].norm(dim=-1) + b[:, 9:].norm(dim=-1)) / 2


def _greedy(
    found: Sequence[ScoredBoxes], truths: Sequence[Truths], tables: Sequence[Tensor], thresholds: Sequence[float]
) -> list[Matched]:
    """Each detection, best first, takes the free truth that it overlaps most; ignored ones only if no other will do.
    All images and thresholds take their turns together: b images, t thresholds, at most d detections and g truths."""
    bound = torch.tensor(thresholds, dtype=torch.float64).clamp(max=1 - 1e-10)[:, None]  # (t, 1)
    detected, there = max(len(f.box) for f in found), max(1, *(len(t.box) for t in truths))
    iou = torch.zeros(len(found), detected, there, dtype=torch.float64)
    ignore = torch.zeros(len(found), there, dtype=torch.bool)
    for i, (table, truth) in enumerate(zip(tables, truths, strict=True)):
        iou[i, : table.shape[0], : table.shape[1]] = table
        ignore[i, : len(truth.ignore)] = truth.ignore.cpu()
    free = torch.ones(len(found), len(bound), there, dtype=torch.bool)
    hit = torch.zeros(len(found), len(bound), detected, dtype=torch.bool)
    ignored = torch.zeros_like(hit)
    for turn in range(detected):
        own = iou[:, None, turn]  # (b, 1, g)
        could = free & (own >= bound)  # thresholds are above 0, which the IoU is where labels differ
        worth = torch.where(could, own + 2.0 * ~ignore[:, None], -1.0)  # what counts beats whatever is ignored
        best = there - 1 - worth.flip(2).argmax(2, keepdim=True)  # (b, t, 1); of equals the last, as in COCO
        taken = could.any(2)
        hit[:, :, turn] = taken
        ignored[:, :, turn] = taken & ignore.gather(1, best[..., 0])
        free.scatter_(2, best, free.gather(2, best) & ~taken[..., None])
    return [
        Matched(f.label.cpu(), f.score.double().cpu(), h[:, : len(f.box)], i[:, : len(f.box)], t.label[~t.ignore].cpu())
        for f, t, h, i in zip(found, truths, hit, ignored, strict=True)
    ]
