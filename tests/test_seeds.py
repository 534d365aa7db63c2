"""Seeds derived from seeds, and what is drawn from them."""

import torch

from stringpe.seeds import derive, generator


def test_derived_seeds_differ_and_fit():
    seeds = {derive(s, what, i) for s in range(5) for what in ("a", "b") for i in range(20)}
    assert len(seeds) == 200
    assert all(0 <= s < 2**63 for s in seeds)


def test_a_purpose_has_a_generator_of_its_own_that_draws_the_same_every_time():
    draws = [torch.rand(3, generator=generator(1, purpose, 7)).tolist() for purpose in ("flip", "crop", "flip")]
    assert draws[0] == draws[2]
    assert draws[0] != draws[1]
