import math

import pytest
import torch

from stringpe.models.class_head import ClassHead, unit
from stringpe.models.focal_loss import focal, focal_cost


def head(dim=8, query_dim=6, seed=0):
    torch.manual_seed(seed)
    made = ClassHead(dim, query_dim)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def test_a_logit_is_the_formula():
    made, x, q = head(), torch.randn(2, 5, 8), torch.randn(3, 6)
    logits = made(x, q).logits
    for b, i, j in ((0, 0, 0), (1, 4, 2)):
        e = made.project(x[b, i])
        cos = torch.dot(e, q[j]) / e.norm() / q[j].norm()
        scale = made.scale(x[b, i])
        scale = scale + 1 if scale > 0 else scale.exp()
        assert torch.allclose(logits[b, i, j], ((cos + made.shift(x[b, i])) * scale)[0], atol=1e-5)


def test_it_starts_at_one_percent_for_what_looks_like_nothing():
    made = ClassHead(8, 6)
    torch.nn.init.zeros_(made.project.weight)
    torch.nn.init.zeros_(made.project.bias)
    logits = made(torch.randn(2, 5, 8), torch.randn(3, 6)).logits
    assert torch.allclose(logits.sigmoid(), torch.tensor(0.01))
    assert made.shift.bias.item() == pytest.approx(math.log(0.01 / 0.99))


def test_a_larger_factor_has_the_same_prior():
    made = ClassHead(8, 6, factor=10)
    x = torch.randn(2, 5, 8)
    named = made(x, torch.randn(3, 6))
    prior = math.log(0.01 / 0.99)
    queries = torch.eye(6)
    assert torch.allclose(made(x, queries).logits, 10 * named.embeddings + prior, atol=1e-4)
    with pytest.raises(ValueError, match=r"starts at 1 or above, got 0.5"):
        ClassHead(8, 6, factor=0.5)


def test_queries_of_every_image_or_of_each():
    made, x, q = head(), torch.randn(2, 5, 8), torch.randn(2, 3, 6)
    own = made(x, q).logits
    for b in range(2):
        assert torch.allclose(own[b], made(x, q[b]).logits[b], atol=1e-6)


def test_masked_queries_are_never_seen():
    made, x, q = head(), torch.randn(2, 5, 8), torch.randn(3, 6)
    mask = torch.tensor([[True, False, True], [True, True, True]])
    logits = made(x, q, mask).logits
    assert (logits[0, :, 1].sigmoid() == 0).all()
    assert logits.isfinite().all()
    assert torch.equal(logits[1], made(x, q).logits[1])
    assert torch.equal(made(x, q, mask[0]).logits[1, :, 1], logits[0, :, 1])


def test_the_logit_of_mean_queries_is_the_mean_of_logits():
    made, x, q = head(), torch.randn(2, 5, 8), torch.randn(7, 3, 6)
    mean = torch.stack([made(x, t).logits for t in q]).mean(0)
    assert torch.allclose(made(x, unit(q).mean(0), normalised=True).logits, mean, atol=1e-5)


def test_embeddings_are_queries_again():
    made, x = head(), torch.randn(1, 5, 8)
    out = made(x, made(x, torch.randn(2, 6)).embeddings[0])
    same = (out.logits[0] / (torch.nn.functional.elu(made.scale(x[0])) + 1) - made.shift(x[0])).diagonal()
    assert torch.allclose(same, torch.ones(5), atol=1e-4)


def test_autocast_takes_no_digits():
    made, x, q = head(), torch.randn(2, 5, 8), torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        half = made(x, q).logits
    assert torch.equal(half, made(x, q).logits)


def test_bad_queries_are_refused():
    made, x = head(), torch.randn(2, 5, 8)
    for shape in ((3, 5), (0, 6), (3, 4, 6), (6,)):
        with pytest.raises(ValueError, match=r"queries must be \(q, 6\) or \(2, q, 6\) with at least one"):
            made(x, torch.randn(shape))
    with pytest.raises(ValueError, match=r"mask must be bool \(3,\) or \(2, 3\), got torch.bool \(2,\)"):
        made(x, torch.randn(3, 6), torch.ones(2, dtype=torch.bool))


def test_focal_is_weighted_cross_entropy():
    logits = torch.tensor([-2.0, 0.5, 3.0], dtype=torch.float64)
    p = logits.sigmoid()
    ones, zeros = torch.ones(3), torch.zeros(3)
    assert torch.allclose(focal(logits, ones).double(), -0.3 * (1 - p) ** 2 * p.log(), atol=1e-6)
    assert torch.allclose(focal(logits, zeros).double(), -0.7 * p**2 * (1 - p).log(), atol=1e-6)
    plain = torch.nn.functional.binary_cross_entropy_with_logits(logits, ones.double())
    assert torch.allclose(focal(logits, ones, alpha=1, gamma=0).double().mean(), plain, atol=1e-6)
    assert focal(torch.tensor([-1e38, 1e38]), torch.tensor([0.0, 1.0])).tolist() == [0, 0]


def test_the_cost_of_a_match_is_what_it_changes_in_the_loss():
    logits, labels = torch.randn(2, 4, 3), torch.tensor([[2, 0], [1, -1]])
    cost = focal_cost(logits, labels)
    as_object = focal(logits[0, 1, 2], torch.tensor(1.0)) - focal(logits[0, 1, 2], torch.tensor(0.0))
    assert torch.allclose(cost[0, 1, 0], as_object)
    assert cost.shape == (2, 4, 2)
    assert cost.isfinite().all()
