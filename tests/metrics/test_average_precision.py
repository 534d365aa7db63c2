import contextlib
import io
import json
import math
import random

import pytest

from stringpe.metrics.average_precision import MOST_LVIS, average_precision


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


def faster_coco_eval(data, results):
    """LVIS's numbers. That package keeps 300 detections per class; LVIS keeps 300 per image: cut before."""
    from faster_coco_eval import COCO, COCOeval_faster

    kept = []
    for image in {r["image_id"] for r in results}:
        own = [r for r in results if r["image_id"] == image]
        kept += sorted(own, key=lambda r: -r["score"])[:MOST_LVIS]
    truth = COCO(json.loads(json.dumps(data)), print_function=lambda *_: None)
    found = truth.loadRes([dict(r) for r in kept])
    judge = COCOeval_faster(truth, found, "bbox", print_function=lambda *_: None, lvis_style=True)
    judge.params.maxDets = [MOST_LVIS]
    judge.run()
    names = {"AP": "AP_all", "AP50": "AP_50", "AP75": "AP_75", "APs": "AP_small", "APm": "AP_medium", "APl": "AP_large"}
    names |= {name: name for name in ("APr", "APc", "APf")}
    return {name: float(judge.stats_as_dict[theirs]) for name, theirs in names.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ties", [False, True])
def test_coco_agrees_with_pycocotools(seed, ties, tmp_path):
    data, results = random_set(seed, ties=ties)
    wanted = pycocotools(data, results, tmp_path)
    assert 0.05 < wanted["AP"] < 0.9
    assert average_precision(data, results) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_lvis_agrees_with_faster_coco_eval(seed):
    data, results = random_set(seed, lvis=True, classes=7)
    wanted = faster_coco_eval(data, results)
    assert average_precision(data, results, lvis=True) == pytest.approx(wanted, abs=1e-9)
    assert wanted["AP"] != average_precision(data, results)["AP"]


def add_noise(data, results, count):
    """False alarms of every class in the first image, with better scores than anything else."""
    dice = random.Random(0)
    for _ in range(count):
        box = [dice.uniform(0, 300), dice.uniform(0, 200), 50, 60]
        label = dice.choice(data["categories"])["id"]
        score = 1 + dice.random()
        results.append({"image_id": data["images"][0]["id"], "category_id": label, "bbox": box, "score": score})


def test_coco_counts_the_best_hundred_per_class_and_image(tmp_path):
    data, results = random_set(5, images=2)
    add_noise(data, results, 600)
    assert average_precision(data, results) == pytest.approx(pycocotools(data, results, tmp_path), abs=1e-9)


def test_lvis_counts_the_best_three_hundred_per_image_over_all_classes():
    data, results = random_set(5, images=4, lvis=True)
    before = average_precision(data, results, lvis=True)["AP"]
    add_noise(data, results, 250)
    found = average_precision(data, results, lvis=True)
    assert found == pytest.approx(faster_coco_eval(data, results), abs=1e-9)
    add_noise(data, results, 1000)  # 300 per class and image would still let true detections through
    crowded = average_precision(data, results, lvis=True)
    assert crowded == pytest.approx(faster_coco_eval(data, results), abs=1e-9)
    assert crowded["AP"] < found["AP"] < before


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["score", "box", "area"])
def test_numbers_that_are_not_finite_are_refused(place, value):
    data, results = random_set(0)
    if place == "score":
        results[3]["score"] = value
    elif place == "box":
        results[3]["bbox"][2] = value
    else:
        data["annotations"][3]["area"] = value
    with pytest.raises(ValueError, match=r"1 of \d+ (results|annotations) have .* not finite, such as {"):
        average_precision(data, results)


def test_nothing_found_and_nothing_there():
    data, _ = random_set(0)
    assert average_precision(data, [])["AP"] == 0
    assert average_precision(data, [], lvis=True)["AP"] == 0
    assert average_precision(data | {"annotations": []}, [])["AP"] == -1


def test_the_given_dicts_stay_as_they_are():
    data, results = random_set(0)
    before = json.dumps([data, results])
    average_precision(data, results)
    average_precision(data, results, lvis=True)
    assert json.dumps([data, results]) == before
