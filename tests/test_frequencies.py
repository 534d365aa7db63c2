"""Where Θ starts, for each set of frequencies and each option that they share."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stringpe
from cases import CASES, build, perturbed
from stringpe import testing
from stringpe.composed_frequencies import Gated, with_depth
from stringpe.frequencies import FREQUENCIES, Axial, Simplex, golden_directions, simplex_directions

every_case = pytest.mark.parametrize("case", CASES)
every_kind = pytest.mark.parametrize("kind", FREQUENCIES)


class TestDirections:
    @given(st.integers(1, 9))
    def test_corners_of_a_simplex_are_equally_far_apart(self, axes):
        corners = torch.tensor(simplex_directions(axes), dtype=torch.float64)
        wanted = torch.full((axes + 1, axes + 1), -1 / axes, dtype=torch.float64).fill_diagonal_(1)
        torch.testing.assert_close(corners @ corners.T, wanted, atol=1e-12, rtol=0)

    def test_simplex_spectrum_is_that_of_nd_rope(self):
        theta = stringpe.simplex(head_dim=24, num_heads=2, coord_dim=2).frequencies()
        assert torch.equal(theta[0], theta[1])
        magnitude = torch.tensor([math.exp(-(j // 3) / 2) for j in range(12)])
        torch.testing.assert_close(theta[0].norm(dim=0), magnitude)
        torch.testing.assert_close((theta[0, :, :3]).sum(1), torch.zeros(2), atol=1e-6, rtol=0)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(1, 6), st.integers(1, 300))
    def test_golden_directions_are_unit_vectors(self, axes, count):
        lengths = torch.tensor(golden_directions(count, axes), dtype=torch.float64).norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones(count, dtype=torch.float64))

    @pytest.mark.parametrize("axes", [2, 3, 4])
    def test_golden_directions_are_more_even_than_random_ones(self, axes):
        """Σ u uᵀ / n is I/c for directions that favour no axis."""

        def unevenness(u):
            return (u.mT @ u / 64 - torch.eye(axes) / axes).norm(dim=(-2, -1))

        random = torch.nn.functional.normalize(torch.randn(100, 64, axes), dim=-1)
        assert unevenness(torch.tensor(golden_directions(64, axes))) < 0.7 * unevenness(random).mean()

    def test_golden_heads_differ(self):
        theta = stringpe.golden(head_dim=16, num_heads=4, coord_dim=3).frequencies()
        assert theta.unique(dim=0).shape[0] == 4
        torch.testing.assert_close(theta.norm(dim=1)[0], torch.tensor([100 ** (-t / 8) for t in range(8)]))


class TestOptions:
    @every_kind
    @pytest.mark.parametrize("zero_fraction", [0.25, 0.5])
    def test_zero_fraction_holds_the_lowest_frequencies(self, kind, zero_fraction):
        options = {"head_dim": 48, "num_heads": 2, "coord_dim": 2, "frequencies": kind}
        torch.manual_seed(0)
        whole = stringpe.cayley(**options)
        torch.manual_seed(0)
        cut = stringpe.cayley(**options, zero_fraction=zero_fraction)
        speed, held = whole.frequencies().norm(dim=1), cut.frequencies().norm(dim=1) == 0
        assert held.sum(1).tolist() == [24 * zero_fraction] * 2
        assert torch.equal(cut.frequencies().mT[~held], whole.frequencies().mT[~held])
        for planes in torch.arange(24).split(12 if kind in ("axial", "mixed") else 24):  # one direction at a time
            at = held[:, planes]
            assert speed[:, planes][at].max() <= speed[:, planes][~at].min()
        assert cut.frequencies.turning() == (~held[0]).tolist()

    @pytest.mark.parametrize("case", [case for case in CASES if "truncated" in case])
    def test_what_is_held_stays_held(self, case):
        """Through training, behind a gate, and with an axis more."""
        enc = build(case)
        held = ~torch.tensor(enc.frequencies.turning())
        assert held.any()
        assert (enc.frequencies()[..., held] == 0).all()
        for lifted in (with_depth(enc.frequencies), with_depth(Gated(enc.frequencies, start=0.5))):
            theta = perturbed(lifted)()
            assert theta.shape[1] == 3
            assert (theta[..., held] == 0).all()
            assert (theta[:, 2, ~held] != 0).all()

    @pytest.mark.parametrize("name", [*stringpe.names(), "harope", "outer"])
    def test_every_encoding_can_hold_half_of_its_planes_still(self, name):
        whole, cut = (
            stringpe.create(name, head_dim=32, num_heads=2, zero_fraction=share).frequencies() for share in (0.0, 0.5)
        )
        still = [int((theta == 0).all(1).sum(1).min()) for theta in (whole, cut)]
        turning = whole.shape[2] - still[0]
        assert turning // 2 - 1 <= still[1] - still[0] <= turning // 2  # rounded down in each of two directions

    def test_one_base_per_axis(self):
        theta = stringpe.rope(head_dim=16, num_heads=1, coord_dim=2, base=(100.0, 16.0)).frequencies()[0]
        torch.testing.assert_close(theta[0, :4], torch.tensor([100 ** (-t / 4) for t in range(4)]))
        torch.testing.assert_close(theta[1, 4:], torch.tensor([16 ** (-t / 4) for t in range(4)]))
        with pytest.raises(ValueError, match="base has 3 numbers for coord_dim=2: give one number, or one per axis"):
            stringpe.rope(head_dim=16, num_heads=1, coord_dim=2, base=(1.0, 2.0, 3.0))
        with pytest.raises(ValueError, match="Golden spreads its directions over all axes: give one base"):
            stringpe.golden(head_dim=16, num_heads=1, coord_dim=2, base=(100.0, 16.0))

    def test_equation_5_as_written(self):
        """RoPE(r) = Π_k RoPE(r_k): every axis turns every plane, each by its own series."""
        enc = stringpe.rope(head_dim=8, num_heads=1, coord_dim=2, every_plane=True, base=(100.0, 10.0)).double()
        axes = [stringpe.rope(head_dim=8, num_heads=1, coord_dim=1, base=b).double() for b in (100.0, 10.0)]
        r = torch.randn(5, 2, dtype=torch.float64)
        truth = axes[0].matrix(r[:, :1]) @ axes[1].matrix(r[:, 1:])
        torch.testing.assert_close(enc.matrix(r), truth, atol=1e-6, rtol=0)
        same = stringpe.rope(head_dim=8, num_heads=1, coord_dim=2, every_plane=True)
        assert torch.equal(same.frequencies()[:, 0], same.frequencies()[:, 1])  # one base: only Σ r counts

    @pytest.mark.parametrize("name", ["cayley", "general", "harope"])
    def test_heads_share_what_they_are_told_to(self, name):
        def sets(**options):
            enc = stringpe.create(name, head_dim=8, num_heads=3, learnable=True, **options)
            return {key.partition(".")[0]: p.shape[0] for key, p in enc.named_parameters()}

        assert sets() == {"basis": 3, "frequencies": 3}
        assert sets(share_heads=True) == {"basis": 1, "frequencies": 1}
        assert sets(share_basis=True) == {"basis": 1, "frequencies": 3}
        assert sets(share_frequencies=True) == {"basis": 3, "frequencies": 1}
        assert sets(share_heads=True, share_basis=False) == {"basis": 3, "frequencies": 1}

    def test_what_harope_measured_as_string(self):
        enc = stringpe.cayley(head_dim=16, num_heads=4, frequencies="axial", share_basis=True)
        plain = stringpe.rope(head_dim=16, num_heads=4)
        assert torch.equal(enc.frequencies(), plain.frequencies())
        assert [(name, p.shape) for name, p in enc.named_parameters()] == [("basis.weight", (1, 120))]

    @every_kind
    def test_fixed_or_learned(self, kind):
        for learnable in (True, False):
            enc = stringpe.cayley(head_dim=12, num_heads=2, frequencies=kind, learnable=learnable)
            assert isinstance(enc.frequencies.weight, torch.nn.Parameter) == learnable
            testing.check(enc)


@pytest.mark.parametrize("case", CASES)
def test_with_depth_is_of_the_same_kind_and_not_zero(case):
    enc = build(case)
    before = enc.frequencies()
    enc.frequencies = with_depth(enc.frequencies)
    enc.coord_dim = 3
    theta = enc.frequencies()
    assert torch.equal(theta[:, :2], before)
    assert (theta[:, 2, torch.tensor(enc.frequencies.turning())] != 0).all()
    assert testing.shift_error(enc) < 1e-5


class TestPeriodic:
    @every_case
    def test_no_seam(self, case):
        if case == "from_generators":
            pytest.skip("frequencies are what they were given")
        torch.manual_seed(0)
        enc = perturbed(CASES[case](head_dim=16, num_heads=2, coord_dim=2, periodic=(1,)))
        x = torch.randn(1, 2, 1, 16)
        here, there = torch.tensor([[0.3, -math.pi]]), torch.tensor([[0.3, math.pi]])
        torch.testing.assert_close(enc.rotate(x, here), enc.rotate(x, there), atol=1e-5, rtol=0)
        theta = enc.frequencies()
        assert torch.equal(theta[:, 1], theta[:, 1].round())
        assert (theta[:, 1] != 0).any()
        assert not torch.equal(theta[:, 0], theta[:, 0].round())

    @every_case
    def test_no_plane_that_sees_the_axis_starts_at_zero(self, case):
        if case == "from_generators":
            pytest.skip("frequencies are what they were given")
        frequencies = CASES[case](head_dim=32, num_heads=2, coord_dim=2, periodic=(1,)).frequencies
        theta = frequencies()[:, 1]
        assert theta.abs().max() <= 8
        sees = torch.tensor(frequencies.turning())
        if isinstance(frequencies, Axial):
            sees &= torch.arange(16) >= 8
        if isinstance(frequencies, Simplex):
            sees &= torch.arange(16) % 3 > 0  # one corner of the triangle lies on the other axis
        assert (theta[:, sees] != 0).all()

    def test_gradient_passes_the_rounding(self):
        enc = stringpe.rope_mixed(head_dim=8, num_heads=1, coord_dim=1, periodic=(0,))
        enc.rotate(torch.randn(1, 1, 3, 8), torch.randn(3, 1)).sum().backward()
        assert (enc.frequencies.weight.grad != 0).all()

    def test_refuses_an_axis_that_is_not_there(self):
        with pytest.raises(ValueError, match=r"periodic names axis 2, but coord_dim=2 has axes 0 to 1"):
            stringpe.rope_mixed(head_dim=8, num_heads=1, coord_dim=2, periodic=(2,))
