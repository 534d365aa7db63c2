import itertools

import pytest
import torch
from scipy.optimize import linear_sum_assignment

from stringpe.geometry.boxes import giou, to_centre, to_corners
from stringpe.models.owl import Detections
from stringpe.models.owl_loss import Truth, detection_loss, focal, focal_cost, match, match_repeatedly, take


def case(b=2, n=9, q=4, m=3, seed=0):
    torch.manual_seed(seed)
    low = torch.rand(b, m, 2) * 0.5
    boxes = to_centre(torch.cat([low, low + 0.1 + 0.4 * torch.rand(b, m, 2)], -1))
    truth = Truth(boxes, torch.randint(q, (b, m)), torch.ones(b, m).bool(), torch.zeros(b, m).bool())
    found = Detections(torch.randn(b, n, q), torch.rand(b, n, 4) * 0.5 + 0.2, torch.randn(b, n, 6))
    return found, truth


def by_hand(logits, boxes, objects, labels):
    """One image's loss in loops, after the words of the recipe."""
    n, q = logits.shape
    cost = torch.zeros(n, len(objects))
    one, zero = torch.tensor(1.0), torch.tensor(0.0)
    for i in range(n):
        for j, label in enumerate(labels.tolist()):
            cost[i, j] += focal(logits[i, label], one) - focal(logits[i, label], zero)
            cost[i, j] += (boxes[i] - objects[j]).abs().sum() - giou(to_corners(boxes[i]), to_corners(objects[j]))
    tokens, places = linear_sum_assignment(cost.numpy())
    target = torch.zeros(n, q)
    total = zero
    for i, j in zip(tokens, places, strict=True):
        target[i, labels[j]] = 1
        total = total + (boxes[i] - objects[j]).abs().sum()
        total = total + 1 - giou(to_corners(boxes[i]), to_corners(objects[j]))
    return (total + focal(logits, target).sum()) / max(len(objects), 1)


def test_the_loss_is_the_recipe():
    found, truth = case()
    each = [by_hand(found.logits[b], found.boxes[b], truth.boxes[b], truth.labels[b]) for b in range(2)]
    assert torch.allclose(detection_loss(found, truth).total, torch.stack(each).mean(), atol=1e-5)


def test_padding_changes_nothing():
    found, truth = case()
    valid = torch.tensor([[True, False, True], [False, False, False]])
    got = detection_loss(found, truth._replace(valid=valid, labels=truth.labels.masked_fill(~valid, -1)))
    keep = valid[0]
    first = by_hand(found.logits[0], found.boxes[0], truth.boxes[0][keep], truth.labels[0][keep])
    empty = focal(found.logits[1], torch.zeros(9, 4)).sum()  # no objects: divided by one
    assert torch.allclose(got.total, (first + empty) / 2, atol=1e-5)


def test_repeated_positives_are_objects_that_are_there_several_times():
    found, truth = case(n=20)
    twice = Truth(*(torch.cat([part, part], 1) for part in truth))
    # The sums run in another order.
    torch.testing.assert_close(detection_loss(found, truth, positives=2).total, detection_loss(found, twice).total)
    assert torch.equal(detection_loss(found, truth, positives=1).total, detection_loss(found, truth).total)
    assert detection_loss(found, truth, positives=2).total != detection_loss(found, truth).total


def test_with_too_few_tokens_every_object_keeps_one():
    cost = torch.tensor([[[0.0, 5], [0, 6], [0, 7]]])  # three tokens, all of them cheap for the first object
    index = match_repeatedly(cost, torch.ones(1, 2).bool(), 2)
    assert index.shape == (1, 4)
    assert index[0, 1] == 0
    assert sorted(index[0].tolist()) == [-1, 0, 1, 2]
    padded = match_repeatedly(cost, torch.tensor([[True, False]]), 3)
    assert (padded[0, 1::2] == -1).all()
    assert sorted(padded[0, ::2].tolist()) == [0, 1, 2]


def test_no_objects_at_all():
    found, _ = case()
    none = Truth(torch.zeros(2, 0, 4), torch.zeros(2, 0).long(), torch.zeros(2, 0).bool(), torch.zeros(2, 0).bool())
    assert torch.allclose(detection_loss(found, none).total, focal(found.logits, torch.zeros(2, 9, 4)).sum() / 2)


def test_masked_queries_do_not_count():
    found, truth = case()
    mask = torch.tensor([[True, True, True, False]] * 2)
    truth = truth._replace(labels=truth.labels.clamp(max=2))
    low = found._replace(logits=found.logits.masked_fill(~mask[:, None], torch.finfo(torch.float32).min))
    cut = found._replace(logits=found.logits[..., :3])
    got, wanted = detection_loss(low, truth, mask=mask), detection_loss(cut, truth)
    assert torch.allclose(got.total, wanted.total)


def test_unmatched_tokens_say_nothing_about_what_is_not_annotated_in_full():
    found, truth = case()
    exhaustive = torch.ones(2, 4).bool()
    label = int(truth.labels[0, 0])
    exhaustive[0, label] = False
    logits = found.logits.clone().requires_grad_()
    detection_loss(found._replace(logits=logits), truth, exhaustive=exhaustive).total.backward()
    matched = int((truth.labels[0] == label).sum())
    assert int((logits.grad[0, :, label] != 0).sum()) == matched
    assert (logits.grad[1] != 0).all()


def test_tokens_in_a_crowd_are_not_wrong_about_it():
    found, truth = case(m=1)
    crowd = Truth(torch.tensor([[[0.25, 0.5, 0.5, 1.0]]] * 2), truth.labels, truth.valid, torch.ones(2, 1).bool())
    boxes = torch.tensor([0.25, 0.5, 0.2, 0.2]).repeat(2, 9, 1)
    boxes[:, 4:] = torch.tensor([0.6, 0.5, 0.25, 0.2])  # a tenth of it inside
    logits = found.logits.clone().requires_grad_()
    parts = detection_loss(Detections(logits, boxes, found.embeddings), crowd)
    parts.total.backward()
    assert parts.l1 == parts.giou == 0  # nothing is matched to a crowd
    for b in range(2):
        quiet = logits.grad[b] == 0
        assert quiet[:4, truth.labels[b, 0]].all()
        assert int(quiet.sum()) == 4


def test_gradient_moves_boxes_and_logits_to_the_truth():
    found, truth = case(seed=3)
    logits, raw = found.logits.clone().requires_grad_(), torch.logit(found.boxes).requires_grad_()
    optimiser = torch.optim.Adam([logits, raw], 0.1)
    for _ in range(300):
        loss = detection_loss(Detections(logits, raw.sigmoid(), found.embeddings), truth)
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
    assert loss.l1 < 0.05
    assert loss.giou < 0.05
    assert loss.classes < 0.1


def test_objectness_learns_which_tokens_are_matched():
    found, truth = case()
    objectness = torch.zeros(2, 9, requires_grad=True)
    detection_loss(found._replace(objectness=objectness), truth).total.backward()
    assert ((objectness.grad < 0).sum(1) == 3).all()


def test_focal_is_weighted_cross_entropy():
    logits = torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64)
    p = logits.sigmoid()
    ones, zeros = torch.ones(3), torch.zeros(3)
    assert torch.allclose(focal(logits, ones).double(), -0.3 * (1 - p) ** 2 * p.log(), atol=1e-6)
    assert torch.allclose(focal(logits, zeros).double(), -0.7 * p**2 * (1 - p).log(), atol=1e-6)
    assert focal(torch.tensor([-1e38, 1e38]), torch.tensor([0.0, 1.0])).tolist() == [0, 0]


def test_the_cost_of_a_match_is_what_it_changes_in_the_loss():
    logits, labels = torch.randn(2, 4, 3), torch.tensor([[2, 0], [1, -1]])
    cost = focal_cost(logits, labels)
    as_object = focal(logits[0, 1, 2], torch.tensor(1.0)) - focal(logits[0, 1, 2], torch.tensor(0.0))
    assert torch.allclose(cost[0, 1, 0], as_object)
    assert cost.shape == (2, 4, 2)
    assert cost.isfinite().all()


def cheapest(cost):
    """The cheapest assignment of all, by trying every one: (n, m) to the sum."""
    n, m = cost.shape
    return min(sum(float(cost[i, j]) for j, i in enumerate(p)) for p in itertools.permutations(range(n), m))


def test_matching_finds_the_cheapest_of_all_assignments():
    torch.manual_seed(0)
    cost = torch.randn(20, 5, 3)
    index = match(cost, torch.ones(20, 3, dtype=torch.bool))
    for c, i in zip(cost, index, strict=True):
        assert len(set(i.tolist())) == 3
        assert sum(float(c[p, j]) for j, p in enumerate(i.tolist())) == pytest.approx(cheapest(c))


def test_matching_ignores_padding():
    torch.manual_seed(1)
    cost, valid = torch.randn(4, 6, 3), torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]]).bool()
    index = match(cost, valid)
    assert torch.equal(index >= 0, valid)
    cost[:, :, :][~valid[:, None].expand_as(cost)] = float("nan")
    assert torch.equal(match(cost, valid), index)
    alone = match(cost[:1, :, [0, 2]], valid[:1, [0, 2]])
    assert torch.equal(alone[0], index[0, [0, 2]])


def test_more_objects_than_predictions_leave_some_over():
    index = match(torch.tensor([[[3.0, 1.0, 2.0]]]), torch.ones(1, 3, dtype=torch.bool))
    assert index.tolist() == [[-1, 0, -1]]


def test_no_objects_and_no_images_have_no_matches():
    assert match(torch.zeros(2, 5, 0), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0)
    assert match(torch.zeros(0, 5, 2), torch.zeros(0, 2, dtype=torch.bool)).shape == (0, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_costs_that_are_not_finite_are_refused(bad):
    cost = torch.zeros(3, 4, 2)
    cost[1, 2, 0] = bad
    with pytest.raises(ValueError, match=r"cost of image 1 is NaN or infinite: .* lower optim.lr"):
        match(cost, torch.ones(3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"cost must be \(b, n, m\) and valid bool \(b, m\), got \(3, 4, 2\)"):
        match(cost, torch.ones(3, 3, dtype=torch.bool))


def test_costs_that_are_no_numbers_to_match_by_are_refused():
    cost, valid = torch.zeros(1, 2, 2), torch.ones(1, 2, dtype=torch.bool)
    for wrong in (cost.tolist(), cost.long(), cost.to(torch.complex64), cost[0]):
        with pytest.raises((TypeError, ValueError), match="cost must be"):
            match(wrong, valid)
    with pytest.raises(TypeError, match="valid must be a torch tensor, got list"):
        match(cost, valid.tolist())
    with pytest.raises(ValueError, match="got a tensor on the meta device"):
        match(cost.to("meta"), valid.to("meta"))


def test_take_gives_the_rows_that_were_matched():
    x = torch.arange(24).view(2, 4, 3)
    assert take(x, torch.tensor([[3, -1], [0, 2]])).tolist() == [[[9, 10, 11], [0, 1, 2]], [[12, 13, 14], [18, 19, 20]]]
    assert take(x[..., 0], torch.tensor([[3], [1]])).tolist() == [[9], [15]]
