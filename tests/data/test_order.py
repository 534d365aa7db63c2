"""The order of examples, of one data set and of several that are mixed."""

import pytest
import torch

from stringpe.data.order import MixedOrder, Order


def test_an_epoch_takes_every_example_once_even_where_batches_span_epochs():
    order = Order(10, 4, seed=3)
    seen = torch.cat([order(step) for step in range(5)])
    assert sorted(seen[:10].tolist()) == list(range(10))
    assert sorted(seen[10:].tolist()) == list(range(10))
    assert seen[:10].tolist() != seen[10:].tolist()


def test_the_order_is_a_function_of_seed_and_step_and_processes_share_it():
    order = Order(50, 8, seed=1)
    later = order(17)
    assert torch.equal(Order(50, 8, seed=1)(17), later)
    assert torch.equal(torch.cat([order(17, r, 4) for r in range(4)]), later)
    assert not torch.equal(Order(50, 8, seed=2)(17), later)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="training set is empty"):
        Order(0, 8, 0)


def test_shares_are_met_at_every_step_and_sets_are_gone_through_in_full():
    order = MixedOrder([30, 7], [0.8, 0.2], batch=10, seed=3)
    seen = [order(step) for step in range(20)]
    small = torch.cat([batch[batch >= 30] - 30 for batch in seen])
    large = torch.cat([batch[batch < 30] for batch in seen])
    assert len(small) == 40
    for step in range(20):  # nothing is seen twice more often than anything else
        for own in torch.cat(seen[: step + 1]).bincount(minlength=37).split([30, 7]):
            assert own.max() - own.min() <= 1
    assert len(large) == 160
    counts = torch.tensor([int((batch >= 30).sum()) for batch in seen]).cumsum(0)
    assert (counts - 2.0 * torch.arange(1, 21)).abs().max() <= 1
    assert not torch.equal(small[:7], small[7:14])  # shuffled anew


def test_shares_that_divide_no_batch():
    order = MixedOrder([50, 50, 50], [0.45, 0.45, 0.1], batch=7, seed=0)
    batches = torch.stack([order(step) for step in range(100)])
    share = (batches // 50).flatten().bincount() / batches.numel()
    torch.testing.assert_close(share, torch.tensor([0.45, 0.45, 0.1]), atol=2e-3, rtol=0)


def test_a_mixed_order_is_a_function_of_seed_and_step_for_any_number_of_processes():
    make = lambda seed=0: MixedOrder([30, 7], [0.5, 0.5], batch=8, seed=seed)  # noqa: E731
    order = make()
    wanted = [order(step) for step in range(5)]
    assert torch.equal(make()(4), wanted[4])
    assert torch.equal(torch.cat([make()(4, rank, 2) for rank in range(2)]), wanted[4])
    assert not torch.equal(make(1)(4), wanted[4])


def test_a_batch_that_cannot_hold_the_mixture_is_refused():
    with pytest.raises(ValueError, match=r"loop.batch_size=2 is too small to mix 3 data sets"):
        MixedOrder([5, 5, 5], [0.4, 0.3, 0.3], batch=2, seed=0)
