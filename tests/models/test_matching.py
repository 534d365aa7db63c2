import itertools

import pytest
import torch

from stringpe.models.matching import match, take


def best(cost):
    """The cheapest assignment of all, by trying every one: (n, m) to the sum."""
    n, m = cost.shape
    return min(sum(float(cost[i, j]) for j, i in enumerate(p)) for p in itertools.permutations(range(n), m))


def test_it_finds_the_cheapest_of_all_assignments():
    torch.manual_seed(0)
    cost = torch.randn(20, 5, 3)
    index = match(cost, torch.ones(20, 3, dtype=torch.bool))
    for c, i in zip(cost, index, strict=True):
        assert len(set(i.tolist())) == 3
        assert sum(float(c[p, j]) for j, p in enumerate(i.tolist())) == pytest.approx(best(c))


def test_padding_is_not_looked_at():
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


def test_nothing_to_match():
    assert match(torch.zeros(2, 5, 0), torch.zeros(2, 0, dtype=torch.bool)).shape == (2, 0)
    assert match(torch.zeros(0, 5, 2), torch.zeros(0, 2, dtype=torch.bool)).shape == (0, 2)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_costs_that_are_no_numbers_are_refused(bad):
    cost = torch.zeros(3, 4, 2)
    cost[1, 2, 0] = bad
    with pytest.raises(ValueError, match=r"cost of image 1 is NaN or infinite: .* lower optim.lr"):
        match(cost, torch.ones(3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"cost must be \(b, n, m\) and valid bool \(b, m\), got \(3, 4, 2\)"):
        match(cost, torch.ones(3, 3, dtype=torch.bool))


def test_taking_the_matches():
    x = torch.arange(24).view(2, 4, 3)
    assert take(x, torch.tensor([[3, -1], [0, 2]])).tolist() == [[[9, 10, 11], [0, 1, 2]], [[12, 13, 14], [18, 19, 20]]]
    assert take(x[..., 0], torch.tensor([[3], [1]])).tolist() == [[9], [15]]
