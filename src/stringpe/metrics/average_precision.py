"""Average precision of boxes as COCO defines it, with LVIS's federated rules.

`average_precision` asks the package faster-coco-eval where it is installed. `measured` is the same number in numpy,
for machines without it; tests hold both equal to pycocotools to 1e-9.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_Turn = tuple[NDArray[np.int64], NDArray[np.int64], Array]
"""Rows of detections (k,), their pairs (k,) and their overlaps (k, g) with the objects of those, −1 in padding."""

_THRESHOLDS: Array = np.linspace(0.5, 0.95, 10)
_LEVELS: Array = np.minimum(_THRESHOLDS, 1 - 1e-10)
_RECALLS: Array = np.linspace(0.0, 1.0, 101)
_AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
_FREQUENCIES = ("r", "c", "f")
MOST, MOST_LVIS = 100, 300
"""Detections that count: COCO's 100 of every class in an image, LVIS's 300 of an image."""


class _Rows(NamedTuple):
    """Detections or objects as columns, sorted by class, then image, then (detections) score, best first: pair (n,),
    class · images + image; box (n, 4) as x, y, w, h; area (n,); score (n,) of detections, crowd (n,) of objects."""

    pair: NDArray[np.int64]
    box: Array
    area: Array
    score: Array
    crowd: NDArray[np.bool_]


class _Judged(NamedTuple):
    """Whether each detection is right and whether it is left out, (a, t, n) over areas and thresholds."""

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
    try:
        import faster_coco_eval  # type: ignore[import-untyped]
    except ImportError:
        return measured(dataset, results, lvis=lvis)
    quiet: Any = _silent
    truth = faster_coco_eval.COCO(_copied(dataset), print_function=quiet)
    found = truth.loadRes([dict(r) for r in results])
    judge = faster_coco_eval.COCOeval_faster(truth, found, "bbox", print_function=quiet, lvis_style=lvis)
    if lvis:
        judge.params.maxDets = [MOST_LVIS]
    judge.run()
    stats = judge.stats_as_dict
    names = {"AP": "AP_all", "AP50": "AP_50", "AP75": "AP_75", "APs": "AP_small", "APm": "AP_medium", "APl": "AP_large"}
    names |= {name: name for name in ("APr", "APc", "APf")} if lvis else {}
    return {name: float(stats[theirs]) for name, theirs in names.items()}


def measured(
    dataset: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, lvis: bool = False
) -> dict[str, float]:
    """`average_precision` without another package."""
    images = {i: number for number, i in enumerate(sorted(i["id"] for i in dataset["images"]))}
    classes = {c: number for number, c in enumerate(sorted(c["id"] for c in dataset["categories"]))}
    truth, found = _rows(dataset["annotations"], images, classes), _rows(results, images, classes)
    partial = np.zeros(len(found.pair), dtype=bool)
    if lvis:
        known = _pairs(dataset["images"], "neg_category_ids", images, classes)
        found = _chosen(found, np.isin(found.pair, np.concatenate([known, truth.pair])))
        partial = np.isin(found.pair, _pairs(dataset["images"], "not_exhaustive_category_ids", images, classes))
    rank = np.arange(len(found.pair)) - np.searchsorted(found.pair, found.pair)
    few = rank < (MOST_LVIS if lvis else MOST)
    found, partial = _chosen(found, few), partial[few]
    out = truth.crowd | ~_within(truth.area)  # (a, g): objects that are not to be found
    judged = _judged(found, truth, out, partial)
    tables = np.full((len(_AREAS), len(_THRESHOLDS), len(classes)), -1.0)
    bounds = np.arange(len(classes) + 1) * len(images)
    own, theirs = (np.searchsorted(rows.pair, bounds) for rows in (found, truth))
    for k in range(len(classes)):
        mine, objects = slice(*own[k : k + 2]), (~out[:, slice(*theirs[k : k + 2])]).sum(1)
        order = np.argsort(-found.score[mine], kind="stable")
        for a in np.flatnonzero(objects):
            right, ignored = judged.right[a, :, mine][:, order], judged.ignored[a, :, mine][:, order]
            tables[a, :, k] = _precision(right, ignored, int(objects[a]))
    by_area = dict(zip(_AREAS, tables, strict=True))
    numbers = {"AP": by_area["all"], "AP50": by_area["all"][:1], "AP75": by_area["all"][5:6]}
    numbers |= {f"AP{name[0]}": by_area[name] for name in ("small", "medium", "large")}
    if lvis:
        frequency = {classes[c["id"]]: c["frequency"] for c in dataset["categories"]}
        for f in _FREQUENCIES:
            numbers[f"AP{f}"] = by_area["all"][:, [frequency[k] == f for k in range(len(classes))]]
    return {name: _mean(table) for name, table in numbers.items()}


def _rows(rows: Sequence[Mapping[str, Any]], images: Mapping[int, int], classes: Mapping[int, int]) -> _Rows:
    """Columns from dicts; what names another image or class is left out. Of equal scores the first stays first."""
    rows = [r for r in rows if r["image_id"] in images and r["category_id"] in classes]
    pair = np.array([classes[r["category_id"]] * len(images) + images[r["image_id"]] for r in rows], dtype=np.int64)
    box = np.array([r["bbox"] for r in rows], dtype=np.float64).reshape(-1, 4)
    area = np.array([r.get("area", -1.0) for r in rows], dtype=np.float64)
    score = np.array([r.get("score", 0.0) for r in rows], dtype=np.float64)
    crowd = np.array([bool(r.get("iscrowd", 0)) for r in rows], dtype=bool)
    if rows and "score" in rows[0]:
        area = box[:, 2] * box[:, 3]  # of what was found, the box's own
    return _chosen(_Rows(pair, box, area, score, crowd), np.lexsort((-score, pair)))


def _pairs(
    pictures: Sequence[Mapping[str, Any]], name: str, images: Mapping[int, int], classes: Mapping[int, int]
) -> NDArray[np.int64]:
    """The pairs of class and image that LVIS lists at every image under a name."""
    listed = [classes[c] * len(images) + images[i["id"]] for i in pictures for c in i.get(name, ()) if c in classes]
    return np.array(listed, dtype=np.int64)


def _chosen(rows: _Rows, which: NDArray[Any]) -> _Rows:
    return _Rows(*(column[which] for column in rows))


def _within(area: Array) -> NDArray[np.bool_]:
    """(a, n): whether an area lies in each of the ranges."""
    low, high = np.array(list(_AREAS.values())).T[..., None]
    found: NDArray[np.bool_] = (area >= low) & (area <= high)
    return found


def _judged(found: _Rows, truth: _Rows, out: NDArray[np.bool_], partial: NDArray[np.bool_]) -> _Judged:
    """Every detection, best first, takes the object that it overlaps best and that is free."""
    hit = np.zeros((len(_AREAS), len(_THRESHOLDS), len(found.pair)), dtype=bool)
    ignored = np.zeros_like(hit)
    for objects, turns in _tables(found, truth):
        free = np.ones((len(_AREAS), len(_THRESHOLDS), *objects.shape), dtype=bool)  # (a, t, p, g)
        crowd, left_out = truth.crowd[objects], out[:, None, objects]
        for detection, pair, overlap in turns:
            able = (free[:, :, pair] | crowd[pair]) & (overlap >= _LEVELS[:, None, None])
            wanted = able & ~left_out[:, :, pair]
            able = np.where(wanted.any(-1, keepdims=True), wanted, able)  # what is to be found goes first
            g = able.shape[-1] - 1 - np.where(able, overlap, -1)[..., ::-1].argmax(-1)  # of equals the last, as COCO's
            a, t, k = np.nonzero(able.any(-1))
            p, g = pair[k], g[a, t, k]
            free[a, t, p, g] = False
            hit[a, t, detection[k]] = True
            ignored[a, t, detection[k]] = left_out[a, 0, p, g]
    elsewhere = (~_within(found.area) | partial)[:, None]
    return _Judged(hit & ~ignored, ignored | (~hit & elsewhere))


def _tables(found: _Rows, truth: _Rows) -> Iterator[tuple[NDArray[np.int64], list[_Turn]]]:
    """The pairs of class and image with 1, 2, 3 or 4, 5 to 8, … objects, which take their turns together: objects
    (p, g), row numbers, padded with the last; and turn by turn the next detection of every pair that has one left."""
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
    """Detections that overlap something enough: the best of every pair, then the second of each, …"""
    some = overlap.max(1, initial=-1) >= _THRESHOLDS[0]
    own, pair, overlap = own[some], pair[some], overlap[some]
    turn = np.arange(len(pair)) - np.searchsorted(pair, pair)
    order = np.argsort(turn, kind="stable")
    ends = np.cumsum(np.bincount(turn))
    return [(own[k], pair[k], overlap[k]) for k in np.split(order, ends[:-1]) if len(k)]


def _precision(right: NDArray[np.bool_], ignored: NDArray[np.bool_], objects: int) -> Array:
    """Mean over recalls of the interpolated precision (t,), of detections (t, d) in order of score."""
    hits, misses = np.cumsum(right, axis=1, dtype=np.float64), np.cumsum(~right & ~ignored, axis=1, dtype=np.float64)
    precision = hits / (hits + misses + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    result = np.zeros(len(_THRESHOLDS))
    for t, (row, reached) in enumerate(zip(precision, hits / objects, strict=True)):
        place = np.searchsorted(reached, _RECALLS, side="left")
        result[t] = row[place[place < len(row)]].sum() / len(_RECALLS)
    return result


def _overlap(boxes: Array, truth: Array, crowd: NDArray[np.bool_]) -> Array:
    """IoU (d, g) of boxes (d, 4) with objects (d, g, 4), x, y, w, h; in a crowd, the share of the detection that is in
    it."""
    low = np.maximum(boxes[:, None, :2], truth[..., :2])
    high = np.minimum(boxes[:, None, :2] + boxes[:, None, 2:], truth[..., :2] + truth[..., 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    own, theirs = boxes[:, 2:].prod(-1)[:, None], truth[..., 2:].prod(-1)
    whole = np.where(crowd, own, own + theirs - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)


def _mean(table: Array) -> float:
    """Over what has objects."""
    some = table[table > -1]
    return float(some.mean()) if some.size else -1.0


def _copied(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """The package writes into what it is given."""
    return {name: [dict(row) for row in dataset[name]] for name in ("images", "annotations", "categories")}


def _silent(*_: object) -> None:
    """Prints nothing."""
