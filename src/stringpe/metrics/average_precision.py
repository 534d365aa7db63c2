"""Average precision of boxes as COCO defines it, with LVIS's federated rules, in numpy.

The tests compare it with pycocotools, and for LVIS with faster-coco-eval, to 1e-9.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_Turn = tuple[NDArray[np.int64], NDArray[np.int64], Array]
"""Rows of detections (k,), their pairs (k,) and their overlaps (k, g) with those pairs' objects, −1 in padding."""

_THRESHOLDS: Array = np.linspace(0.5, 0.95, 10)
_LEVELS: Array = np.minimum(_THRESHOLDS, 1 - 1e-10)
_RECALLS: Array = np.linspace(0.0, 1.0, 101)
_AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
_FREQUENCIES = ("r", "c", "f")
MOST, MOST_LVIS = 100, 300
"""How many detections count: for COCO the best 100 per class and image, for LVIS the best 300 per image."""


class _Rows(NamedTuple):
    """Detections or objects as columns, sorted by class, then image, then (detections) score, best first: pair (n,),
    class · images + image; box (n, 4) as x, y, w, h; area (n,); score (n,) of detections, crowd (n,) of objects."""

    pair: NDArray[np.int64]
    box: Array
    area: Array
    score: Array
    crowd: NDArray[np.bool_]


class _Verdict(NamedTuple):
    """Whether each detection is right and whether it is ignored, (a, t, n) over areas and thresholds."""

    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]


def average_precision(
    dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, lvis: bool = False
) -> dict[str, float]:
    """AP (mean over IoU 0.5 to 0.95 and classes), AP50, AP75, APs, APm, APl and, for LVIS, APr, APc, APf, in [0, 1]; −1
    where there is no object.

    dataset: the content of a COCO annotation file, "images", "annotations" and "categories". results: COCO's results,
    {"image_id", "category_id", "bbox": [x, y, w, h], "score"}. lvis: an image's detections count only for classes that
    are known to be in it or not in it, and not against classes that are not annotated in full."""
    _check_finite(dataset["annotations"], "annotations")
    _check_finite(results, "results")
    if lvis:
        results = _keep_best(results, MOST_LVIS)
    images = {i: number for number, i in enumerate(sorted(i["id"] for i in dataset["images"]))}
    classes = {c: number for number, c in enumerate(sorted(c["id"] for c in dataset["categories"]))}
    truth = _rows(dataset["annotations"], images, classes)
    found = _rows(results, images, classes)
    if lvis:
        known = _pairs(dataset["images"], "neg_category_ids", images, classes)
        found = _select(found, np.isin(found.pair, np.concatenate([known, truth.pair])))
        partial = np.isin(found.pair, _pairs(dataset["images"], "not_exhaustive_category_ids", images, classes))
    else:
        rank = np.arange(len(found.pair)) - np.searchsorted(found.pair, found.pair)
        found = _select(found, rank < MOST)
        partial = np.zeros(len(found.pair), dtype=bool)
    out = truth.crowd | ~_within(truth.area)  # (a, g): objects that need not be found
    verdict = _match(found, truth, out, partial)
    tables = np.full((len(_AREAS), len(_THRESHOLDS), len(classes)), -1.0)
    bounds = np.arange(len(classes) + 1) * len(images)
    own, theirs = (np.searchsorted(rows.pair, bounds) for rows in (found, truth))
    for k in range(len(classes)):
        mine, objects = slice(*own[k : k + 2]), (~out[:, slice(*theirs[k : k + 2])]).sum(1)
        order = np.argsort(-found.score[mine], kind="stable")
        for a in np.flatnonzero(objects):
            right, ignored = verdict.right[a, :, mine][:, order], verdict.ignored[a, :, mine][:, order]
            tables[a, :, k] = mean_precision(right, ~ignored, int(objects[a]))
    by_area = dict(zip(_AREAS, tables, strict=True))
    numbers = {"AP": by_area["all"], "AP50": by_area["all"][:1], "AP75": by_area["all"][5:6]}
    numbers |= {f"AP{name[0]}": by_area[name] for name in ("small", "medium", "large")}
    if lvis:
        frequency = {classes[c["id"]]: c["frequency"] for c in dataset["categories"]}
        for f in _FREQUENCIES:
            numbers[f"AP{f}"] = by_area["all"][:, [frequency[k] == f for k in range(len(classes))]]
    return {name: _mean(table) for name, table in numbers.items()}


def _keep_best(results: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The best detections of every image, over all classes; of equal scores the first."""
    by_image: dict[Any, list[Mapping[str, Any]]] = {}
    for row in sorted(results, key=lambda row: row["score"], reverse=True):
        by_image.setdefault(row["image_id"], []).append(row)
    return [row for rows in by_image.values() for row in rows[:most]]


def _check_finite(rows: Sequence[Mapping[str, Any]], what: str) -> None:
    numbers = np.array([[*r["bbox"], r.get("area", 0.0), r.get("score", 0.0)] for r in rows], dtype=np.float64)
    wrong = np.flatnonzero(~np.isfinite(numbers.reshape(-1, 6)).all(1))
    if len(wrong):
        raise ValueError(
            f"{len(wrong)} of {len(rows)} {what} have a box, area or score that is not finite, such as "
            f"{dict(rows[wrong[0]])}: average precision is undefined; check the model or the file that they come from"
        )


def _rows(rows: Sequence[Mapping[str, Any]], images: Mapping[int, int], classes: Mapping[int, int]) -> _Rows:
    """Columns from dicts; rows of other images or classes are left out. Of equal scores the first stays first."""
    rows = [r for r in rows if r["image_id"] in images and r["category_id"] in classes]
    pair = np.array([classes[r["category_id"]] * len(images) + images[r["image_id"]] for r in rows], dtype=np.int64)
    box = np.array([r["bbox"] for r in rows], dtype=np.float64).reshape(-1, 4)
    area = np.array([r.get("area", -1.0) for r in rows], dtype=np.float64)
    score = np.array([r.get("score", 0.0) for r in rows], dtype=np.float64)
    crowd = np.array([bool(r.get("iscrowd", 0)) for r in rows], dtype=bool)
    if rows and "score" in rows[0]:
        area = box[:, 2] * box[:, 3]  # a detection has the area of its box
    return _select(_Rows(pair, box, area, score, crowd), np.lexsort((-score, pair)))


def _pairs(
    pictures: Sequence[Mapping[str, Any]], name: str, images: Mapping[int, int], classes: Mapping[int, int]
) -> NDArray[np.int64]:
    """The pairs of class and image that LVIS lists at every image under a name."""
    listed = [classes[c] * len(images) + images[i["id"]] for i in pictures for c in i.get(name, ()) if c in classes]
    return np.array(listed, dtype=np.int64)


def _select(rows: _Rows, which: NDArray[Any]) -> _Rows:
    return _Rows(*(column[which] for column in rows))


def _within(area: Array) -> NDArray[np.bool_]:
    """(a, n): whether an area lies in each of the ranges."""
    low, high = np.array(list(_AREAS.values())).T[..., None]
    found: NDArray[np.bool_] = (area >= low) & (area <= high)
    return found


def _match(found: _Rows, truth: _Rows, out: NDArray[np.bool_], partial: NDArray[np.bool_]) -> _Verdict:
    """Every detection, best first, takes the free object that it overlaps most."""
    hit = np.zeros((len(_AREAS), len(_THRESHOLDS), len(found.pair)), dtype=bool)
    ignored = np.zeros_like(hit)
    for objects, turns in _tables(found, truth):
        free = np.ones((len(_AREAS), len(_THRESHOLDS), *objects.shape), dtype=bool)  # (a, t, p, g)
        crowd, left_out = truth.crowd[objects], out[:, None, objects]
        for detection, pair, overlap in turns:
            able = (free[:, :, pair] | crowd[pair]) & (overlap >= _LEVELS[:, None, None])
            wanted = able & ~left_out[:, :, pair]
            able = np.where(wanted.any(-1, keepdims=True), wanted, able)  # objects that must be found go first
            g = (
                able.shape[-1] - 1 - np.where(able, overlap, -1)[..., ::-1].argmax(-1)
            )  # of equals the last, as COCO does
            a, t, k = np.nonzero(able.any(-1))
            p, g = pair[k], g[a, t, k]
            free[a, t, p, g] = False
            hit[a, t, detection[k]] = True
            ignored[a, t, detection[k]] = left_out[a, 0, p, g]
    elsewhere = (~_within(found.area) | partial)[:, None]
    return _Verdict(hit & ~ignored, ignored | (~hit & elsewhere))


def _tables(found: _Rows, truth: _Rows) -> Iterator[tuple[NDArray[np.int64], list[_Turn]]]:
    """The pairs of class and image with 1, 2, 3 to 4, 5 to 8, … objects, which are matched together: the rows of their
    objects (p, g), padded with the last one; and turn by turn the next detection of every pair that has one left."""
    pairs, first, count = np.unique(truth.pair, return_index=True, return_counts=True)
    most = 1
    while most < 2 * count.max(initial=0):
        some = (count <= most) & (count > most // 2)
        number = np.minimum(np.arange(most), count[some, None] - 1)
        objects = first[some, None] + number
        own = np.flatnonzero(np.isin(found.pair, pairs[some]))
        pair = np.searchsorted(pairs[some], found.pair[own])
        overlap = _overlap(found.box[own], truth.box[objects[pair]], truth.crowd[objects[pair]])
        overlap[number[pair] < np.arange(most)] = -1
        yield objects, _turns(own, pair, overlap)
        most *= 2


def _turns(own: NDArray[np.int64], pair: NDArray[np.int64], overlap: Array) -> list[_Turn]:
    """Detections that overlap some object enough: the best one of every pair, then the second of each, and so on."""
    some = overlap.max(1, initial=-1) >= _THRESHOLDS[0]
    own, pair, overlap = own[some], pair[some], overlap[some]
    turn = np.arange(len(pair)) - np.searchsorted(pair, pair)
    order = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    return [(own[k], pair[k], overlap[k]) for k in np.split(order, ends[:-1]) if len(k)]


def mean_precision(right: NDArray[np.bool_], counted: NDArray[np.bool_], objects: int) -> Array:
    """Mean over COCO's 101 recalls of the interpolated precision, (t,), of detections (t, d) in order of score: which
    of them are right, and which count, as all that are right do. Beyond the last recall that is reached it is 0."""
    hits = np.cumsum(right, axis=1, dtype=np.float64)
    precision = hits / np.maximum(np.cumsum(counted, axis=1), 1)
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]  # the best at this recall or beyond
    result = np.zeros(len(right))
    for t, (row, reached) in enumerate(zip(precision, hits / objects, strict=True)):
        place = np.searchsorted(reached, _RECALLS, side="left")
        result[t] = row[place[place < len(row)]].sum() / len(_RECALLS)
    return result


def _overlap(boxes: Array, truth: Array, crowd: NDArray[np.bool_]) -> Array:
    """IoU (d, g) of boxes (d, 4) with objects (d, g, 4), x, y, w, h; for a crowd, the share of the detection that is
    in it."""
    low = np.maximum(boxes[:, None, :2], truth[..., :2])
    high = np.minimum(boxes[:, None, :2] + boxes[:, None, 2:], truth[..., :2] + truth[..., 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    own, theirs = boxes[:, 2:].prod(-1)[:, None], truth[..., 2:].prod(-1)
    whole = np.where(crowd, own, own + theirs - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)


def _mean(table: Array) -> float:
    """The mean over entries that have objects (−1: none), or −1."""
    some = table[table > -1]
    return float(some.mean()) if some.size else -1.0
