import math
import time

import pytest
import torch

from stringpe import box3d
from stringpe.metrics import average_precision3d as ap3d
from stringpe.metrics.average_precision import average_precision
from stringpe.metrics.average_precision3d import ScoredBoxes, Truths

EYE = torch.eye(3, dtype=torch.float64)


def cubes(*places, side=1.0):
    """Axis-aligned cubes at x = places."""
    centre = torch.tensor([[x, 0.0, 3.0] for x in places], dtype=torch.float64).view(-1, 3)
    return box3d.from_parts(centre, EYE.expand(len(places), 3, 3), torch.full_like(centre, side))


def found(places, labels, scores):
    return ScoredBoxes(cubes(*places), torch.tensor(labels, dtype=torch.long), torch.tensor(scores))


def true(places, labels, ignore=None):
    ignore = [False] * len(places) if ignore is None else ignore
    return Truths(cubes(*places), torch.tensor(labels, dtype=torch.long), torch.tensor(ignore, dtype=torch.bool))


class TestByHand:
    def test_right_boxes_have_average_precision_one(self):
        out = ap3d.evaluate([found([0, 5], [0, 1], [0.9, 0.8])], [true([0, 5], [0, 1])])
        assert out.ap == 1.0
        assert out.at[0.5] == 1.0
        assert out.by_label == {0: 1.0, 1: 1.0}
        assert list(out.at) == [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]

    def test_a_box_is_right_up_to_its_overlap(self):
        """Cubes half a side apart overlap by 1/3: right up to 0.3 (six thresholds of ten), wrong beyond."""
        out = ap3d.evaluate([found([0.5], [0], [0.9])], [true([0], [0])])
        assert out.at[0.25] == 1.0
        assert out.at[0.5] == 0.0
        assert out.ap == pytest.approx(0.6)

    def test_a_false_alarm_before_the_hit_halves_precision(self):
        out = ap3d.evaluate([found([9, 0], [0, 0], [0.9, 0.8])], [true([0], [0])])
        assert out.ap == pytest.approx(0.5)

    def test_a_false_alarm_after_the_hit_costs_nothing(self):
        assert ap3d.evaluate([found([0, 9], [0, 0], [0.9, 0.8])], [true([0], [0])]).ap == 1.0

    def test_a_second_detection_of_one_truth_is_wrong(self):
        """Right, wrong, right: precision 1 up to a recall of ½, which is 51 of 101, then 2/3."""
        out = ap3d.evaluate([found([0, 0, 5], [0, 0, 0], [0.9, 0.8, 0.7])], [true([0, 5], [0, 0])])
        assert out.ap == pytest.approx((51 + 50 * 2 / 3) / 101)

    def test_the_label_must_be_right(self):
        out = ap3d.evaluate([found([0], [1], [0.9])], [true([0], [0])])
        assert out.ap == 0.0
        assert out.by_label == {0: 0.0}  # no truth has label 1: it is not averaged over

    def test_an_ignored_truth_counts_for_nothing(self):
        both = true([0, 5], [0, 0], [False, True])
        assert ap3d.evaluate([found([5, 0], [0, 0], [0.9, 0.8])], [both]).ap == 1.0
        assert ap3d.evaluate([found([0], [0], [0.8])], [both]).ap == 1.0
        # A truth that counts is preferred, though the ignored one overlaps more.
        near = true([0.2, 0], [0, 0], [False, True])
        assert ap3d.evaluate([found([0], [0], [0.8])], [near]).ap == 1.0

    def test_images_do_not_see_each_other(self):
        out = ap3d.evaluate([found([5], [0], [0.9]), found([0], [0], [0.8])], [true([0], [0]), true([5], [0])])
        assert out.ap == 0.0

    def test_nothing_found_and_nothing_there(self):
        none = found([], [], [])
        assert ap3d.evaluate([none], [true([0], [0])]).ap == 0.0
        assert math.isnan(ap3d.evaluate([none], [true([], [])]).ap)
        assert math.isnan(ap3d.evaluate([], []).ap)

    def test_a_hundred_of_an_image_and_label(self):
        """One right answer behind a hundred wrong ones is not looked at; the other label is not touched by it."""
        many = found([9] * 100 + [0, 0], [0] * 101 + [1], [0.9] * 100 + [0.5, 0.4])
        out = ap3d.evaluate([many], [true([0, 0], [0, 1])])
        assert out.by_label == {0: 0.0, 1: 1.0}

    def test_numbers_of_images_must_agree(self):
        with pytest.raises(ValueError, match="detections of 1 images and truths of 0"):
            ap3d.evaluate([found([0], [0], [0.9])], [])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_refused(value):
    good, there = found([0], [0], [0.9]), true([0], [0])
    bad_score, bad_box = found([0], [0], [value]), found([value], [0], [0.9])
    for detections, truths in (([good, bad_score], [there, there]), ([good, bad_box], [there, there])):
        with pytest.raises(ValueError, match=r"(scores|predicted boxes) of 1 of 2 images are not finite \(images 1\)"):
            ap3d.evaluate(detections, truths)
    with pytest.raises(ValueError, match=r"true boxes of 1 of 2 images are not finite \(images 0\)"):
        ap3d.evaluate([good, good], [true([value], [0]), there])


def random_set(seed, images=6, labels=3):
    random = torch.Generator().manual_seed(seed)

    def draw(count, spread):
        q = torch.linalg.qr(torch.randn(count, 3, 3, generator=random, dtype=torch.float64)).Q
        q = q * torch.linalg.det(q)[:, None, None]
        centre = torch.randn(count, 3, generator=random, dtype=torch.float64) * spread
        return box3d.from_parts(centre, q, torch.rand(count, 3, generator=random, dtype=torch.float64) + 0.5)

    detections, truths = [], []
    for _ in range(images):
        g = int(torch.randint(0, 6, (), generator=random))
        box, label = draw(g, 1.0), torch.randint(0, labels, (g,), generator=random)
        noisy = box.repeat(2, 1)
        noisy[:, :3] += torch.randn(2 * g, 3, generator=random, dtype=torch.float64) * 0.2
        extra = draw(4, 1.0)
        other = torch.randint(0, labels, (4,), generator=random)
        score = torch.rand(2 * g + 4, generator=random, dtype=torch.float64)
        detections.append(ScoredBoxes(torch.cat([noisy, extra]), torch.cat([label, label, other]), score))
        truths.append(Truths(box, label, torch.rand(g, generator=random) < 0.2))
    return detections, truths


def brute_force(detections, truths):
    """COCO's rules once more, with loops and no pruning."""
    labels = sorted({int(c) for t in truths for c, i in zip(t.label, t.ignore, strict=True) if not i})
    table = []
    for threshold in ap3d.THRESHOLDS:
        for label in labels:
            records, count = [], 0
            for found_here, true_here in zip(detections, truths, strict=True):
                gts = [i for i in range(len(true_here.box)) if true_here.label[i] == label]
                gts.sort(key=lambda i, t=true_here: bool(t.ignore[i]))
                count += sum(not true_here.ignore[i] for i in gts)
                used = set()
                dts = [i for i in range(len(found_here.box)) if found_here.label[i] == label]
                for d in sorted(dts, key=lambda i, f=found_here: -float(f.score[i]))[:100]:
                    best, chosen = threshold, None
                    for g in gts:
                        if g in used or (chosen is not None and not true_here.ignore[chosen] and true_here.ignore[g]):
                            continue
                        iou = float(box3d.iou(found_here.box[d], true_here.box[g]))
                        if iou >= best:
                            best, chosen = iou, g
                    if chosen is not None:
                        used.add(chosen)
                    ignored = chosen is not None and bool(true_here.ignore[chosen])
                    records.append((float(found_here.score[d]), chosen is not None, ignored))
            records = [r for r in sorted(records, reverse=True) if not r[2]]
            curve, right = [], 0
            for i, (_, hit, _) in enumerate(records):
                right += hit
                curve.append((right / count, right / (i + 1)))
            at = [max((p for r, p in curve if r >= k / 100 - 1e-12), default=0.0) for k in range(101)]
            table.append(sum(at) / 101)
    return sum(table) / len(table)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.slow
def test_agrees_with_brute_force(seed):
    detections, truths = random_set(seed)
    out = ap3d.evaluate(detections, truths)
    assert 0.05 < out.ap < 0.98
    assert out.ap == pytest.approx(brute_force(detections, truths), abs=1e-12)


def test_images_can_be_matched_in_parts():
    detections, truths = random_set(7)
    parts = [ap3d.match(detections[i : i + 2], truths[i : i + 2]) for i in (4, 0, 2)]
    assert ap3d.accumulate([m for part in parts for m in part]).ap == pytest.approx(
        ap3d.evaluate(detections, truths).ap, abs=1e-12
    )


def test_pairs_that_cannot_meet_are_not_computed(monkeypatch):
    asked = []
    monkeypatch.setattr(ap3d, "paired_iou", lambda a, b: asked.append(len(a)) or torch.ones(len(a)).double())
    ap3d.match([found([0, 1.6, 3], [0, 0, 0], [0.9, 0.8, 0.7])], [true([0], [0])])
    assert asked == [2]  # the balls around cubes of side 1 meet up to √3 apart


def test_a_hundred_images_take_seconds():
    """A hundred images with a hundred detections each."""
    detections, truths = random_set(1, images=100, labels=10)
    detections = [
        ScoredBoxes(d.box.repeat(8, 1)[:100], d.label.repeat(8)[:100], torch.rand(len(d.score) * 8)[:100])
        for d in detections
    ]
    start = time.perf_counter()
    ap3d.evaluate(detections, truths)
    assert time.perf_counter() - start < 20


class TestPairedIoU:
    def test_exact_and_the_papers_way(self):
        a, b = cubes(0, 0.5), cubes(0, 0)
        torch.testing.assert_close(ap3d.paired_iou(a, b), torch.tensor([1.0, 1 / 3]).double())
        assert ap3d.paired_iou(a, b, points=100_000)[1] == pytest.approx(1 / 3, abs=0.01)

    def test_degenerate_predictions_have_an_overlap_too(self):
        bad = cubes(0, 0, 0)
        bad[0, 3:9] = 0
        bad[1, 6:9] = bad[1, 3:6]
        bad[2, 3:6] = math.nan
        out = ap3d.paired_iou(bad, cubes(0, 0, 0))
        assert out.isfinite().all()
        assert (out > 0.5).all()


def test_precision_is_read_at_the_recalls_of_coco():
    """A hundred objects, so that every recall is a hundredth up to rounding, which COCO's own recalls are not."""
    truths = [true([0], [0]) for _ in range(100)]
    detections = [found([0, 9], [0, 0], [1 - 0.002 * i, 0.999 - 0.002 * i]) for i in range(100)]  # right, wrong, right…
    data = {
        "images": [{"id": i} for i in range(100)],
        "categories": [{"id": 1}],
        "annotations": [{"image_id": i, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100.0} for i in range(100)],
    }
    results = [
        {"image_id": i, "category_id": 1, "bbox": [x, 0, 10, 10], "score": 1 - 0.002 * i - 0.001 * (x > 0)}
        for i in range(100)
        for x in (0, 90)
    ]
    assert ap3d.evaluate(detections, truths).ap == pytest.approx(average_precision(data, results)["AP"], abs=1e-12)
