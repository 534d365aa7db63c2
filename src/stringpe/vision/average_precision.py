"""Average precision of boxes as COCO defines it, with LVIS's federated rules.

`average_precision` asks the package faster-coco-eval where it is installed. `measured` is the same number in numpy,
for machines without it; tests hold both equal to pycocotools to 1e-9.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = dict[tuple[int, int], list[Mapping[str, Any]]]

_THRESHOLDS: Array = np.linspace(0.5, 0.95, 10)
_RECALLS: Array = np.linspace(0.0, 1.0, 101)
_AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2), "large": (96.0**2, 1e10)}
_FREQUENCIES = ("r", "c", "f")
MOST, MOST_LVIS = 100, 300
"""Detections that count: COCO's 100 of every class in an image, LVIS's 300 of an image."""


class _Pair(NamedTuple):
    """One class in one image: scores (d,) and areas (d,) of detections, best first; crowd (g,) and area (g,) of
    objects; their overlaps (d, g); and whether not all objects are annotated."""

    score: Array
    own: Array
    crowd: NDArray[np.bool_]
    area: Array
    overlap: Array
    partial: bool


class _Judged(NamedTuple):
    """Detections of one class in one image: scores (d,), whether each is right and whether it is left out (t, d); and
    the number of objects to find."""

    score: Array
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    objects: int


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
    truth, found = _by_image_and_class(dataset["annotations"]), _by_image_and_class(results)
    partial: set[tuple[int, int]] = set()
    if lvis:
        negative = {(i["id"], c) for i in dataset["images"] for c in i.get("neg_category_ids", ())}
        partial = {(i["id"], c) for i in dataset["images"] for c in i.get("not_exhaustive_category_ids", ())}
        found = {pair: rows for pair, rows in found.items() if pair in negative or pair in truth}
    most = MOST_LVIS if lvis else MOST
    images = sorted(i["id"] for i in dataset["images"])
    classes = sorted(c["id"] for c in dataset["categories"])
    tables = {name: np.full((len(_THRESHOLDS), len(classes)), -1.0) for name in _AREAS}
    for k, c in enumerate(classes):
        keys = [(i, c) for i in images if (i, c) in truth or (i, c) in found]
        pairs = [_pair(truth.get(p, []), found.get(p, []), most, p in partial) for p in keys]
        for area, limits in _AREAS.items():
            tables[area][:, k] = _precision([_judge(pair, limits) for pair in pairs])
    numbers = {"AP": tables["all"], "AP50": tables["all"][:1], "AP75": tables["all"][5:6]}
    numbers |= {f"AP{name[0]}": tables[name] for name in ("small", "medium", "large")}
    if lvis:
        frequency = {c["id"]: c["frequency"] for c in dataset["categories"]}
        for f in _FREQUENCIES:
            numbers[f"AP{f}"] = tables["all"][:, [frequency[c] == f for c in classes]]
    return {name: _mean(table) for name, table in numbers.items()}


def _pair(objects: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]], most: int, partial: bool) -> _Pair:
    """One class in one image, with the best `most` detections."""
    scores = np.array([f["score"] for f in found], dtype=np.float64)
    best = np.argsort(-scores, kind="stable")[:most]
    boxes = np.array([found[i]["bbox"] for i in best], dtype=np.float64).reshape(-1, 4)
    truth = np.array([o["bbox"] for o in objects], dtype=np.float64).reshape(-1, 4)
    crowd = np.array([bool(o.get("iscrowd", 0)) for o in objects], dtype=bool)
    area = np.array([o["area"] for o in objects], dtype=np.float64)
    return _Pair(scores[best], boxes[:, 2] * boxes[:, 3], crowd, area, _overlap(boxes, truth, crowd), partial)


def _judge(pair: _Pair, limits: tuple[float, float]) -> _Judged:
    """Every detection, best first, takes the object that it overlaps best and that is free."""
    out = pair.crowd | (pair.area < limits[0]) | (pair.area > limits[1])
    order = np.argsort(out, kind="stable")  # objects to find come first
    crowd, out, overlap = pair.crowd[order], out[order], pair.overlap[:, order]
    right = np.zeros((len(_THRESHOLDS), len(pair.score)), dtype=bool)
    ignored = np.zeros_like(right)
    free = np.ones((len(_THRESHOLDS), len(out)), dtype=bool)
    levels = np.minimum(_THRESHOLDS, 1 - 1e-10)[:, None]
    for d in np.flatnonzero(overlap.max(1, initial=0) >= _THRESHOLDS[0]):
        able = (free | crowd) & (overlap[d] >= levels)  # (t, g)
        able &= ~out | ~(able & ~out).any(1, keepdims=True)  # what is to be found goes before what is left out
        row = np.where(able, overlap[d], -1)
        g = row.shape[1] - 1 - row[:, ::-1].argmax(1)  # of equals the last, as in COCO's code
        hit = able.any(1)
        right[:, d], ignored[:, d] = hit, hit & out[g]
        free[hit, g[hit]] = False
    elsewhere = (pair.own < limits[0]) | (pair.own > limits[1]) | pair.partial
    return _Judged(pair.score, right & ~ignored, ignored | (~right & elsewhere), int((~out).sum()))


def _precision(judged: Sequence[_Judged]) -> Array:
    """Mean over recalls of the interpolated precision, (t,); −1 without objects."""
    objects = sum(j.objects for j in judged)
    if objects == 0:
        return np.full(len(_THRESHOLDS), -1.0)
    score = np.concatenate([j.score for j in judged])
    order = np.argsort(-score, kind="stable")
    right = np.concatenate([j.right for j in judged], axis=1)[:, order]
    ignored = np.concatenate([j.ignored for j in judged], axis=1)[:, order]
    hits, misses = np.cumsum(right, axis=1, dtype=np.float64), np.cumsum(~right & ~ignored, axis=1, dtype=np.float64)
    result = np.zeros(len(_THRESHOLDS))
    for t in range(len(_THRESHOLDS)):
        precision = hits[t] / (hits[t] + misses[t] + np.spacing(1))
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        place = np.searchsorted(hits[t] / objects, _RECALLS, side="left")
        reached = place < len(precision)
        result[t] = precision[place[reached]].sum() / len(_RECALLS)
    return result


def _overlap(boxes: Array, truth: Array, crowd: NDArray[np.bool_]) -> Array:
    """IoU (d, g) of boxes x, y, w, h; in a crowd, the share of the detection that lies in it."""
    low = np.maximum(boxes[:, None, :2], truth[None, :, :2])
    high = np.minimum(boxes[:, None, :2] + boxes[:, None, 2:], truth[None, :, :2] + truth[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(-1)
    own, theirs = boxes[:, 2:].prod(-1)[:, None], truth[:, 2:].prod(-1)[None]
    whole = np.where(crowd[None], own, own + theirs - shared)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)


def _mean(table: Array) -> float:
    """Over what has objects."""
    some = table[table > -1]
    return float(some.mean()) if some.size else -1.0


def _by_image_and_class(rows: Sequence[Mapping[str, Any]]) -> Rows:
    grouped: Rows = defaultdict(list)
    for row in rows:
        grouped[row["image_id"], row["category_id"]].append(row)
    return dict(grouped)


def _copied(dataset: Mapping[str, Any]) -> dict[str, Any]:
    """The package writes into what it is given."""
    return {name: [dict(row) for row in dataset[name]] for name in ("images", "annotations", "categories")}


def _silent(*_: object) -> None:
    """Prints nothing."""
