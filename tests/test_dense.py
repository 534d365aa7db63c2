"""Theorems 3.2 to 3.5 of the paper, as tests; `docs/mathematics.md` tells the same story in words."""

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stringpe
from cases import CASES, build
from stringpe import testing
from stringpe.basis import matrix_exponential
from stringpe.dense import circulant_exponential, circulant_matrix, exponential, rebuild


def commuting(theta: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """L (c, d, d) with frequencies theta (c, d/2) in a random orthonormal frame."""
    random = torch.Generator().manual_seed(seed)
    d = 2 * theta.shape[1]
    frame = torch.linalg.qr(torch.randn(d, d, generator=random, dtype=torch.float64)).Q
    first, second = frame.chunk(2, dim=1)
    return torch.stack([(second * t) @ first.T - (first * t) @ second.T for t in theta])


class TestTheorem32:
    """Every differentiable family with R(a)ᵀR(b) = R(b − a) and R(0) = I is STRING."""

    @pytest.mark.parametrize("case", CASES)
    def test_a_family_is_rebuilt_from_its_derivative_at_the_origin(self, case):
        enc = build(case, head_dim=8, num_heads=1, coord_dim=3, dtype=torch.float64)
        again = stringpe.from_generators(rebuild(lambda r: enc.matrix(r[None])[0, 0], 3))
        r = torch.randn(5, 3, dtype=torch.float64) * 4
        torch.testing.assert_close(again.matrix(r), enc.matrix(r), atol=1e-10, rtol=0)

    def test_a_family_that_is_not_written_as_string(self):
        """Rotation of a complex pair by a product of phases, written with complex numbers."""

        def family(r):
            z = torch.complex(torch.cos(2 * r[0] - r[1]), torch.sin(2 * r[0] - r[1]))
            return torch.view_as_real(torch.stack([z, 1j * z], dim=-1)).mT.reshape(2, 2).T

        again = stringpe.from_generators(rebuild(family, 2))
        r = torch.tensor([0.3, -1.7], dtype=torch.float64)
        torch.testing.assert_close(again.matrix(r[None])[0, 0], family(r), atol=1e-12, rtol=0)


class TestTheorem33:
    """RoPE is STRING with generators that are non-zero on 2 × 2 blocks only."""

    def test_rope_from_its_generators(self):
        theta = torch.tensor([[1.0, 0.5, 0.1], [0.0, 0.3, 2.0]], dtype=torch.float64)
        l = torch.zeros(2, 6, 6, dtype=torch.float64)
        for p in range(3):
            l[:, p + 3, p], l[:, p, p + 3] = theta[:, p], -theta[:, p]
        r = torch.randn(4, 2, dtype=torch.float64)
        x = torch.randn(1, 1, 4, 6, dtype=torch.float64)
        rotated = torch.einsum("nhij,bhnj->bhni", exponential(l[None], r), x)
        torch.testing.assert_close(rotated, stringpe.rotate.rotate(x, r[None], theta[None]))
        rope = stringpe.rope(head_dim=8, num_heads=1, coord_dim=2)
        off_planes = stringpe.generators(rope)[0].abs().sum(0)
        assert ((off_planes > 0) == (torch.eye(8).roll(4, 0) > 0)).all()


class TestTheorem34:
    """Any commuting skew generators are RoPE in another basis, and the basis can be found."""

    @settings(max_examples=40, deadline=None)
    @given(st.integers(1, 8), st.integers(1, 4), st.integers(0, 10_000))
    def test_random_sets_are_diagonalised(self, planes, coord_dim, seed):
        theta = torch.randn(coord_dim, planes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.check(commuting(theta, seed))

    @pytest.mark.parametrize(
        "theta",
        [
            [[1.0, 1.0, 1.0, 1.0]],  # one frequency four times
            [[1.0, -1.0, 1.0, 0.0], [2.0, 2.0, -2.0, 0.0]],  # equal, opposite and zero
            [[1.0, 1.0, 2.0, 2.0], [3.0, 4.0, 3.0, 4.0]],  # each degenerate, together not
            [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],  # nothing turns
            [[1.0, 1.0 + 1e-9, 1e-5, 1e-9]],  # nearly equal, nearly zero
            [[1e-12, 1e-6, 1.0, 1e6]],
            [[1e-3, 2e-3, 0.0, 1e-3], [1e3, 0.0, 0.0, 1e3]],
        ],
    )
    def test_degenerate_sets_are_diagonalised(self, theta):
        self.check(commuting(torch.tensor(theta, dtype=torch.float64)))

    def check(self, l):
        enc = stringpe.from_generators(l)
        scale = max(l.abs().max().item(), 1e-300)
        assert testing.orthogonality_error(enc) < 1e-12
        assert (stringpe.generators(enc)[0] - l).abs().max().item() < 1e-12 * scale
        r = torch.randn(3, len(l), dtype=torch.float64) / scale * 10
        torch.testing.assert_close(enc.matrix(r), exponential(l[None], r), atol=1e-10, rtol=0)

    @pytest.mark.parametrize("case", CASES)
    def test_every_encoding_survives_the_way_through_its_generators(self, case):
        enc = build(case, dtype=torch.float64)
        r = torch.randn(4, 2, dtype=torch.float64)
        again = stringpe.from_generators(stringpe.generators(enc))
        torch.testing.assert_close(again.matrix(r), enc.matrix(r), atol=1e-10, rtol=0)

    def test_float32_generators(self):
        enc = stringpe.from_generators(stringpe.generators(build("cayley")))
        assert enc.basis().dtype == torch.float32
        testing.check(enc)

    def test_learnable_frequencies(self):
        l = commuting(torch.randn(2, 3, dtype=torch.float64))
        assert [name for name, _ in stringpe.from_generators(l, learnable=True).named_parameters()] == [
            "frequencies.weight"
        ]

    def test_refuses_what_does_not_commute_and_says_by_how_much(self):
        l = torch.randn(2, 4, 4, dtype=torch.float64)
        with pytest.raises(ValueError, match=r"generators must commute, but L_i L_j − L_j L_i is \d\.\de.* relative"):
            stringpe.from_generators(l - l.mT)

    def test_refuses_what_is_not_skew_and_says_by_how_much(self):
        with pytest.raises(ValueError, match=r"generators must be skew, but L \+ Lᵀ is 2\.0e\+00 of the largest entry"):
            stringpe.from_generators(torch.eye(4)[None])

    @pytest.mark.parametrize("heads", [1, 2])
    def test_a_large_generator_does_not_excuse_a_small_one(self, heads):
        """Each pair is measured by its own size, and each head on its own."""
        l = torch.randn(heads, 2, 4, 4, dtype=torch.float64)
        l = l - l.mT
        large = commuting(torch.randn(1, 2, dtype=torch.float64) * 1e8).expand(heads, 1, 4, 4)
        with pytest.raises(ValueError, match="must commute"):
            stringpe.from_generators(torch.cat([l, large], dim=1))
        other = commuting(1e9 * torch.randn(2, 2, dtype=torch.float64))
        with pytest.raises(ValueError, match="must commute"):
            stringpe.from_generators(torch.cat([l, other[None]]))
        skewless = torch.eye(4, dtype=torch.float64).expand(heads, 1, 4, 4)
        with pytest.raises(ValueError, match="must be skew"):
            stringpe.from_generators(torch.cat([skewless, large], dim=1))

    def test_rounding_is_not_taken_for_a_violation(self):
        """An axis that does nothing but for rounding, beside one that does."""
        l = commuting(torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64))
        noise = 1e-18 * torch.randn(1, 6, 6, dtype=torch.float64)
        enc = stringpe.from_generators(torch.cat([l, noise]))
        torch.testing.assert_close(stringpe.generators(enc)[0], torch.cat([l, noise]), atol=1e-12, rtol=0)

    @pytest.mark.parametrize("ratio", [1.0, 1e6, 1e12])
    def test_a_small_generator_is_recovered_beside_a_large_one(self, ratio):
        theta = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
        l = commuting(theta * torch.tensor([[ratio], [1.0]], dtype=torch.float64))
        again = stringpe.generators(stringpe.from_generators(l))[0]
        for own, found in zip(l, again, strict=True):
            torch.testing.assert_close(found, own, atol=1e-10 * own.abs().max().item(), rtol=0)

    def test_refuses_small_violations_too(self):
        l = commuting(torch.randn(2, 3, dtype=torch.float64))
        l[0, 0, 1] += 1e-6
        with pytest.raises(ValueError, match="skew"):
            stringpe.from_generators(l)

    @pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (2, 4, 6), (1, 1, 1, 4, 4)])
    def test_refuses_shapes(self, shape):
        with pytest.raises(ValueError, match=r"must be \(c, d, d\) or \(h, c, d, d\) with d even"):
            stringpe.from_generators(torch.zeros(shape))

    def test_refuses_nan_and_integers(self):
        with pytest.raises(ValueError, match="skew"):
            stringpe.from_generators(torch.full((1, 2, 2), float("nan")))
        with pytest.raises(ValueError, match="floating point"):
            stringpe.from_generators(torch.zeros(1, 2, 2, dtype=torch.int64))
        with pytest.raises(TypeError, match="generators must be a torch tensor, got ndarray"):
            stringpe.from_generators(torch.zeros(1, 2, 2).numpy())
        with pytest.raises(ValueError, match="must not be empty"):
            stringpe.from_generators(torch.zeros(0, 2, 2))


class TestTheorem35:
    """Circulant-STRING by FFT equals the matrix exponential and scales as d log d."""

    @settings(max_examples=30, deadline=None)
    @given(st.integers(2, 24), st.integers(1, 3), st.integers(0, 1000))
    def test_fft_equals_expm(self, d, coord_dim, seed):
        random = torch.Generator().manual_seed(seed)
        c = torch.randn(coord_dim, d, generator=random, dtype=torch.float64)
        r = torch.randn(5, coord_dim, generator=random, dtype=torch.float64)
        z = torch.randn(5, d, generator=random, dtype=torch.float64)
        l = circulant_matrix(c) - circulant_matrix(c).mT
        dense = (exponential(l[None], r)[:, 0] @ z[..., None])[..., 0]
        torch.testing.assert_close(circulant_exponential(c, r, z), dense, atol=1e-10, rtol=0)

    def test_cost_grows_as_d_log_d(self):
        """From d = 2¹⁰ to 2¹⁶, d log d grows 102-fold and d² 4096-fold."""

        def seconds(d):
            c, r, z = torch.randn(2, d), torch.randn(64, 2), torch.randn(64, d)
            best = float("inf")
            for _ in range(5):
                start = time.process_time()
                circulant_exponential(c, r, z)
                best = min(best, time.process_time() - start)
            return best

        seconds(2**10)
        assert seconds(2**16) / seconds(2**10) < 1000


def test_circulant_matrix_is_the_papers():
    c = circulant_matrix(torch.tensor([0.0, 1.0, 2.0, 3.0]))
    assert c.tolist() == [[0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0]]


@pytest.mark.parametrize("size", [1e-3, 1e-1])
def test_the_exponential_is_rounded_once_in_float32(size):
    """Torch's own in float32 is off by many roundings: 1e-6 here, up to 5e-5 in earlier versions."""
    matrix = size * torch.randn(20, 64, 64, generator=torch.Generator().manual_seed(0))
    skew = matrix - matrix.mT
    exact = torch.linalg.matrix_exp(skew.double())
    assert (matrix_exponential(skew) - exact).abs().max() < 1e-7
