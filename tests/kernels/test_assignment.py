"""Matching objects to predictions in a kernel: the sums of scipy's Hungarian matching, for every shape of table."""

import pytest
import torch
from fused_cases import DEVICE
from scipy.optimize import linear_sum_assignment

from stringpe import kernels
from stringpe.models import owl_loss


def check(cost: torch.Tensor, valid: torch.Tensor) -> None:
    """The kernel's matching is one, and costs what scipy's costs."""
    found = kernels.assign(cost.to(DEVICE), valid.to(DEVICE)).cpu()
    for table, objects, row in zip(cost.double(), valid, found, strict=True):
        wanted = objects.nonzero()[:, 0]
        predictions, places = linear_sum_assignment(table[:, wanted].numpy())
        best = table[predictions, wanted[places]].sum()
        matched = wanted[row[wanted] >= 0]
        assert (row[~objects] == -1).all()
        assert len(matched) == len(places)
        assert len(set(row[matched].tolist())) == len(matched)
        assert table[row[matched], matched].sum() == pytest.approx(float(best), abs=1e-6)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (3, 2), (5, 5), (12, 4), (2, 5), (1, 3), (40, 12)])
def test_costs_what_scipy_costs(n: int, m: int) -> None:
    torch.manual_seed(n * m)
    images = 6
    cost, valid = torch.randn(images, n, m), torch.rand(images, m) < 0.8
    valid[0], valid[1] = True, False
    check(cost, valid)


def test_ties_and_large_differences() -> None:
    torch.manual_seed(0)
    check(torch.zeros(2, 4, 4), torch.ones(2, 4, dtype=torch.bool))
    check(torch.randint(0, 3, (8, 6, 4)).float(), torch.ones(8, 4, dtype=torch.bool))
    check(torch.randn(4, 6, 4) * torch.tensor([1e-4, 1.0, 1e2, 1e4]), torch.ones(4, 4, dtype=torch.bool))


def test_any_strides() -> None:
    torch.manual_seed(0)
    cost, valid = torch.randn(3, 2, 5), torch.ones(3, 2, dtype=torch.bool)
    check(cost.mT, valid)
    assert torch.equal(
        kernels.assign(cost.mT.to(DEVICE), valid.to(DEVICE)),
        kernels.assign(cost.mT.contiguous().to(DEVICE), valid.to(DEVICE)),
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_costs_that_are_not_finite_end_in_some_matching(bad: float) -> None:
    """On a GPU nobody looks at costs; the loss of such a matching is not finite either, which the loop reports."""
    cost = torch.zeros(1, 4, 3, device=DEVICE)
    cost[0, 1] = bad
    found = kernels.assign(cost, torch.ones(1, 3, dtype=torch.bool, device=DEVICE))[0].tolist()
    assert sorted(found) == [0, 2, 3]
    cost[:] = bad
    found = kernels.assign(cost, torch.ones(1, 3, dtype=torch.bool, device=DEVICE))[0].tolist()
    assert len(set(found)) == 3
    assert min(found) >= 0


def test_empty() -> None:
    nothing = torch.zeros(0, 2, dtype=torch.bool, device=DEVICE)
    assert kernels.assign(torch.zeros(0, 5, 2, device=DEVICE), nothing).shape == (0, 2)
    assert kernels.assign(
        torch.zeros(2, 5, 0, device=DEVICE), torch.zeros(2, 0, dtype=torch.bool, device=DEVICE)
    ).shape == (2, 0)
    none = kernels.assign(torch.zeros(1, 0, 2, device=DEVICE), torch.ones(1, 2, dtype=torch.bool, device=DEVICE))
    assert none.tolist() == [[-1, -1]]


def test_detectors_match_with_it_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    cost, valid = torch.randn(3, 6, 4, device=DEVICE), torch.rand(3, 4, device=DEVICE) < 0.7
    monkeypatch.setattr(owl_loss, "_match_on_host", None)  # not called
    if DEVICE == "cpu":  # there, scipy is faster than the interpreter: choose the kernel
        monkeypatch.setattr(owl_loss, "_matches_on_device", lambda cost: True)
    check(cost.cpu(), valid.cpu())
    assert torch.equal(owl_loss.match(cost, valid), kernels.assign(cost, valid))
