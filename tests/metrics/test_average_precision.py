import contextlib
import io
import json
import random

import pytest

from stringpe.metrics.average_precision import average_precision, measured


def random_set(seed, *, images=25, classes=4, lvis=False, ties=False):
    """A COCO data set and detections near its objects, with crowds, small and large boxes, and empty images."""
    dice = random.Random(seed)
    data = {"images": [], "annotations": [], "categories": []}
    for c in range(classes):
        data["categories"].append({"id": 3 * c + 1, "name": f"c{c}", "frequency": "rcf"[c % 3]})
    results = []
    ids = [c["id"] for c in data["categories"]]
    for i in range(images):
        image = {"id": 10 * i + 3, "width": 400, "height": 300}
        if lvis:
            image["neg_category_ids"] = dice.sample(ids, 1)
            image["not_exhaustive_category_ids"] = dice.sample(ids, dice.randint(0, 1))
        data["images"].append(image)
        for _ in range(dice.choice([0, 1, 3, 8])):
            w, h = dice.choice([(10, 14), (50, 60), (150, 120)])
            box = [dice.uniform(0, 400 - w), dice.uniform(0, 300 - h), w * dice.uniform(0.5, 1.5), h]
            c = dice.choice(ids)
            data["annotations"].append(
                {
                    "id": len(data["annotations"]) + 1,
                    "image_id": image["id"],
                    "category_id": c,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": int(not lvis and dice.random() < 0.1),
                }
            )
            for _ in range(dice.choice([0, 1, 2, 4])):
                near = [v + dice.gauss(0, s) for v, s in zip(box, (0.1 * w, 0.1 * h, 0.05 * w, 0.05 * h), strict=True)]
                results.append((image["id"], dice.choice([c, c, c, dice.choice(ids)]), near))
        for _ in range(3):
            results.append((image["id"], dice.choice(ids), [dice.uniform(0, 300), dice.uniform(0, 200), 40, 50]))
    score = (lambda: dice.randint(1, 5) / 5) if ties else dice.random
    results = [
        {"image_id": i, "category_id": c, "bbox": [x, y, max(w, 1), max(h, 1)], "score": score()}
        for i, c, (x, y, w, h) in results
    ]
    return data, results


def pycocotools(data, results, tmp_path):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    (tmp_path / "truth.json").write_text(json.dumps(data))
    (tmp_path / "results.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(tmp_path / "truth.json"))
        judge = COCOeval(truth, truth.loadRes(str(tmp_path / "results.json")), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return dict(zip(("AP", "AP50", "AP75", "APs", "APm", "APl"), judge.stats[:6].tolist(), strict=True))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ties", [False, True])
def test_all_three_agree(seed, ties, tmp_path):
    data, results = random_set(seed, ties=ties)
    wanted = pycocotools(data, results, tmp_path)
    assert 0.05 < wanted["AP"] < 0.9
    assert measured(data, results) == pytest.approx(wanted, abs=1e-9)
    assert average_precision(data, results) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_lvis_by_both(seed):
    data, results = random_set(seed, lvis=True, classes=7)
    wanted = average_precision(data, results, lvis=True)
    assert set(wanted) >= {"AP", "AP50", "APr", "APc", "APf"}
    assert measured(data, results, lvis=True) == pytest.approx(wanted, abs=1e-9)
    assert wanted["AP"] != average_precision(data, results)["AP"]


def test_many_detections_are_cut():
    data, results = random_set(5, images=2)
    image = data["images"][0]["id"]
    dice = random.Random(0)
    for _ in range(400):
        box = [dice.uniform(0, 300), dice.uniform(0, 200), 50, 60]
        results.append({"image_id": image, "category_id": 1, "bbox": box, "score": dice.random()})
    assert measured(data, results) == pytest.approx(average_precision(data, results), abs=1e-9)


def test_nothing_found_and_nothing_there():
    data, _ = random_set(0)
    assert measured(data, []) == average_precision(data, [])
    assert measured(data, [])["AP"] == 0
    empty = data | {"annotations": []}
    assert measured(empty, [])["AP"] == average_precision(empty, [])["AP"] == -1


def test_the_given_dicts_stay_as_they_are():
    data, results = random_set(0)
    before = json.dumps([data, results])
    average_precision(data, results)
    assert json.dumps([data, results]) == before


def test_without_the_package(monkeypatch):
    import sys

    data, results = random_set(1)
    wanted = average_precision(data, results)
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    assert average_precision(data, results) == pytest.approx(wanted, abs=1e-9)
