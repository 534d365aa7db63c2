"""What Circulant-STRING learns: orthonormal coordinates of Θ, of the same functions as the paper's coefficients."""

import math

import pytest
import torch

import stringpe
from cases import build
from stringpe.composed_frequencies import Gated
from stringpe.dense import circulant_matrix, exponential


@pytest.mark.parametrize("block_size", [4, 6, 16, 64])
def test_coefficients_are_orthonormal_coordinates(block_size):
    frequencies = stringpe.circulant(head_dim=192, num_heads=1, block_size=block_size).double().frequencies
    d = frequencies.sines(frequencies.weight)
    eye = torch.eye(block_size // 2 - 1, dtype=torch.float64)
    torch.testing.assert_close(d @ d.T, eye, atol=1e-14, rtol=0)


def test_an_equal_step_of_every_coefficient_moves_theta_by_its_own_norm():
    """Adam's first step: every entry by the rate. RoPE-Mixed's Θ moves by rate · √entries, and so must this one."""
    for name, options in {"circulant": {"block_size": 16}, "rope_mixed": {}}.items():
        enc = stringpe.create(name, head_dim=64, num_heads=2, **options).double()
        before = enc.frequencies().detach().clone()
        with torch.no_grad():
            enc.frequencies.weight.add_(0.01 * torch.randn_like(enc.frequencies.weight).sign())
        moved = (enc.frequencies() - before).norm()
        assert moved.item() == pytest.approx(0.01 * math.sqrt(enc.frequencies.weight.numel())), name


def test_the_functions_are_those_of_the_papers_coefficients():
    """L = C − Cᵀ of any b coefficients per block: the symmetric half drops out, the rest is √b (c_m − c_{b−m})."""
    torch.manual_seed(0)
    c = torch.randn(2, 3, 8, dtype=torch.float64)  # 2 axes, 3 blocks of 8
    matrix = circulant_matrix(c)
    generators = torch.stack([torch.block_diag(*axis) for axis in matrix - matrix.mT])[None]
    enc = stringpe.circulant(head_dim=24, num_heads=1, coord_dim=2, block_size=8).double()
    with torch.no_grad():
        enc.frequencies.coefficients.copy_(math.sqrt(8) * (c[..., 1:4] - c[..., 5:].flip(-1)))
    r = torch.randn(5, 2, dtype=torch.float64)
    torch.testing.assert_close(enc.matrix(r), exponential(generators, r), atol=1e-12, rtol=0)


def test_the_symmetric_half_has_no_gradient():
    c = torch.randn(1, 8, dtype=torch.float64, requires_grad=True)
    matrix = circulant_matrix(c)
    exponential((matrix - matrix.mT)[None], torch.ones(1, 1).double())[..., 0, :3].sum().backward()
    torch.testing.assert_close(c.grad, -c.grad.flip(-1).roll(1, -1))


def test_states_saved_before_still_load():
    old = build("circulant", dtype=torch.float64)
    state = old.state_dict()
    d_old = old.frequencies.sines(old.frequencies.weight) * math.sqrt(16)  # D D = b I, as it was
    state["frequencies.weight"] = state.pop("frequencies.coefficients") / math.sqrt(16)
    theta = (state["frequencies.weight"] @ d_old).flatten(2)
    enc = build("circulant", seed=1, dtype=torch.float64)
    enc.load_state_dict(state)
    torch.testing.assert_close(enc.frequencies()[..., 1:], theta)
    assert "frequencies.weight" in state  # the caller's dict is not written to
    gated = Gated(enc.frequencies, start=1.0).double()
    gated.load_state_dict({"weight": gated.weight, "inner.weight": 2 * state["frequencies.weight"]})
    torch.testing.assert_close(gated()[..., 1:], 2 * theta)
