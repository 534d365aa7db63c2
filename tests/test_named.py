"""What each named encoding is, beyond the properties that all share."""

import math

import pytest
import torch

import stringpe
from cases import build, perturbed
from stringpe import testing
from stringpe.basis import Cayley
from stringpe.dense import circulant_matrix


class TestRope:
    def test_is_the_papers_formula(self):
        enc = stringpe.rope(head_dim=8, num_heads=1, coord_dim=1)
        expected = torch.tensor([10_000 ** (-2 * n / 8) for n in range(4)])
        torch.testing.assert_close(enc.frequencies()[0, 0], expected)

    @pytest.mark.parametrize(
        ("head_dim", "coord_dim", "planes"), [(64, 3, [11, 11, 10]), (64, 2, [16, 16]), (10, 3, [2, 2, 1])]
    )
    def test_planes_are_dealt_out(self, head_dim, coord_dim, planes):
        theta = stringpe.rope(head_dim=head_dim, num_heads=1, coord_dim=coord_dim).frequencies()[0]
        assert (theta != 0).sum(1).tolist() == planes
        assert ((theta != 0).sum(0) == 1).all()

    def test_truncation_zeroes_the_lowest(self):
        whole = stringpe.rope(head_dim=16, num_heads=1, coord_dim=2).frequencies()[0]
        cut = stringpe.rope(head_dim=16, num_heads=1, coord_dim=2, zero_fraction=0.5).frequencies()[0]
        assert (cut != 0).sum(1).tolist() == [2, 2]
        assert torch.equal(cut[cut != 0], whole[cut != 0])
        assert cut[0, :2].min() > whole[0, 2:4].max()

    def test_fixed_unless_asked(self):
        assert not list(stringpe.rope(head_dim=8, num_heads=2).parameters())
        assert len(list(stringpe.rope(head_dim=8, num_heads=2, learnable=True).parameters())) == 1

    def test_refuses_more_axes_than_planes(self):
        with pytest.raises(ValueError, match=r"head_dim=4 has 2 planes, too few for coord_dim=3.*rope_mixed"):
            stringpe.rope(head_dim=4, num_heads=1, coord_dim=3)


class TestMixed:
    def test_directions_are_drawn_per_head(self):
        theta = stringpe.rope_mixed(head_dim=16, num_heads=4, coord_dim=2).frequencies()
        angle = torch.atan2(theta[:, 1, 0], theta[:, 0, 0])
        assert angle.unique().numel() == 4

    @pytest.mark.parametrize("coord_dim", [2, 3, 4])
    def test_a_frame_of_orthogonal_directions(self, coord_dim):
        theta = stringpe.rope_mixed(head_dim=8 * coord_dim, num_heads=2, coord_dim=coord_dim).frequencies().double()
        magnitude = theta.norm(dim=1)  # of numbers that are drawn, and rounded, in float32
        torch.testing.assert_close(magnitude[0, :4], 100.0 ** -(torch.arange(4) / 4).double(), atol=0, rtol=1e-6)
        top = theta[:, :, ::4] / magnitude[:, None, ::4]  # the first plane of each direction
        torch.testing.assert_close(top.mT @ top, torch.eye(coord_dim).double().expand(2, -1, -1), atol=1e-6, rtol=0)

    def test_scale_is_per_axis(self):
        torch.manual_seed(0)
        plain = stringpe.rope_mixed(head_dim=16, num_heads=2, coord_dim=3).frequencies()
        torch.manual_seed(0)
        scaled = stringpe.rope_mixed(head_dim=16, num_heads=2, coord_dim=3, scale=(1, 1, 5)).frequencies()
        torch.testing.assert_close(scaled, plain * torch.tensor([1.0, 1, 5])[:, None])


class TestCayley:
    def test_solve_agrees_with_the_formed_basis(self):
        formed, solved = build("cayley", dtype=torch.float64), build("cayley-solve", dtype=torch.float64)
        solved.load_state_dict(formed.state_dict())
        x, coords = torch.randn(2, 3, 7, 16).double(), torch.randn(2, 7, 2).double()
        assert testing.relative_error(solved.rotate(x, coords), formed.rotate(x, coords)) < 1e-13

    def test_is_the_transform_of_the_paper(self):
        basis = perturbed(Cayley(6, 2)).double()
        s, eye = basis.skew(), torch.eye(6).double()
        torch.testing.assert_close(basis(), (eye - s) @ torch.linalg.inv(eye + s))

    def test_sparsity_states_the_pattern(self):
        band = perturbed(Cayley(8, 1, sparsity=2)).skew()[0]
        distance = (torch.arange(8)[:, None] - torch.arange(8)).abs()
        assert ((band != 0) == ((distance > 0) & (distance <= 2))).all()
        mask = torch.zeros(8, 8, dtype=torch.bool)
        mask[0, 5] = mask[5, 0] = True
        assert perturbed(Cayley(8, 1, sparsity=mask)).weight.shape == (1, 1)

    @pytest.mark.parametrize("bad", [0, 8, torch.ones(8, 8), torch.ones(4, 4).bool(), torch.ones(8, 8).bool().triu()])
    def test_refuses_what_is_not_a_pattern(self, bad):
        with pytest.raises(ValueError, match="sparsity"):
            Cayley(8, 1, sparsity=bad)

    def test_large_skew_stays_orthogonal(self):
        enc = perturbed(stringpe.cayley(head_dim=64, num_heads=2), scale=30.0)
        assert testing.orthogonality_error(enc) < 1e-5


class TestCirculant:
    @pytest.mark.parametrize("block_size", [4, 8, 16, 32, 64])
    def test_methods_agree_with_each_other_and_with_expm(self, block_size):
        torch.manual_seed(0)
        options = {"head_dim": 64, "num_heads": 2, "coord_dim": 2, "block_size": block_size}
        formed = perturbed(stringpe.circulant(**options)).double()
        fourier = stringpe.circulant(**options, method="fft").double()
        fourier.load_state_dict(formed.state_dict())
        x, coords = torch.randn(1, 2, 9, 64).double(), torch.randn(9, 2).double()
        truth = torch.einsum(
            "nhij,bhnj->bhni",
            torch.linalg.matrix_exp(torch.einsum("nc,hcij->nhij", coords, dense_generators(formed))),
            x,
        )
        for enc in (formed, fourier):
            assert testing.relative_error(enc.rotate(x, coords, whole=True), truth) < 1e-10
        assert testing.relative_error(fourier.rotate(x, coords), formed.rotate(x, coords)) < 1e-13

    @pytest.mark.parametrize(("block_size", "unturned"), [(4, 32), (16, 8), (64, 2)])
    def test_planes_that_do_not_turn_have_no_parameters(self, block_size, unturned):
        enc = stringpe.circulant(head_dim=64, num_heads=1, block_size=block_size)
        assert 2 * (enc.frequencies()[0].abs().sum(0) == 0).sum() == unturned
        assert enc.frequencies.weight.numel() == 2 * (64 - unturned) // 2  # no dead parameter

    @pytest.mark.parametrize(("head_dim", "block"), [(64, 16), (32, 16), (24, 12), (20, 10), (22, 22), (4, 4)])
    def test_default_block_divides(self, head_dim, block):
        assert stringpe.circulant(head_dim=head_dim, num_heads=1).basis.block_size == block

    def test_starts_with_the_spectrum_of_rope_mixed(self):
        theta = stringpe.circulant(head_dim=32, num_heads=1, coord_dim=2, block_size=8).frequencies()[0].norm(dim=0)
        torch.testing.assert_close(theta.max(), torch.tensor(1.0))
        torch.testing.assert_close(theta[theta > 0].min(), torch.tensor(100 ** (-5 / 6)))

    @pytest.mark.parametrize("block_size", [2, 3, 5, 12, 128])
    def test_refuses_blocks_that_do_not_fit(self, block_size):
        with pytest.raises(ValueError, match=rf"block_size must be even.*got {block_size}: it can be 4 or 8 or 16"):
            stringpe.circulant(head_dim=16, num_heads=1, block_size=block_size)


def dense_generators(enc):
    """C − Cᵀ written out from the stored coefficients, √b times the antisymmetric half, block by block."""
    b = enc.basis.block_size
    weight = enc.frequencies.weight / math.sqrt(b)
    coefficients = torch.zeros(*weight.shape[:-1], b, dtype=weight.dtype)
    coefficients[..., 1 : b // 2] = weight / 2
    coefficients[..., b // 2 + 1 :] = -weight.flip(-1) / 2
    c = circulant_matrix(coefficients)
    blocks = c - c.mT  # (h, c, blocks, b, b)
    return torch.stack([torch.stack([torch.block_diag(*axis) for axis in head]) for head in blocks])


class TestGeneral:
    def test_reaches_an_eigenvalue_of_minus_one(self):
        """A half turn has eigenvalue −1: the exponential gets there, Cayley only in the limit."""
        enc = stringpe.general(head_dim=2, num_heads=1, coord_dim=1)
        with torch.no_grad():
            enc.basis.weight.fill_(math.pi)
        torch.testing.assert_close(enc.basis()[0], -torch.eye(2), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("head_dim", [2, 4, 6])
    @pytest.mark.parametrize("seed", range(5))
    def test_small_heads_pass_their_own_check(self, head_dim, seed):
        """torch's float32 exponential of small matrices is too coarse for it."""
        torch.manual_seed(seed)
        enc = perturbed(stringpe.general(head_dim=head_dim, num_heads=8, coord_dim=1), scale=3.0)
        exact = torch.linalg.matrix_exp(enc.basis.skew().double())
        assert testing.relative_error(enc.basis(), exact) < 1e-7
        testing.check(enc)

    def test_determinant_is_one(self):
        torch.testing.assert_close(torch.linalg.det(build("general").basis()), torch.ones(3))
