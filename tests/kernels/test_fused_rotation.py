"""The fused rotation and its gradients are those of the float64 reference, to the precision of the dtype."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from fused_cases import DEVICE, TOLERANCE, Case, error, fused_pair, reference

from stringpe import kernels
from stringpe.kernels import fused_rotation
from stringpe.rotate import rotate

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
NAMES = ("q", "k", "grad q", "grad k", "grad coords", "grad frequencies")
CASES = [
    Case(d=16, dtype=BF16, c=1, layout="packed", n=33),
    Case(d=16, dtype=F32, c=4, groups=4, shared=False, h=1),
    Case(d=32, dtype=F16, c=2, groups=2, layout="bnhd"),
    Case(d=32, dtype=F32, c=3, shared=False, layout="strided"),
    Case(d=48, dtype=BF16, c=3, groups=2, shared=False, layout="packed"),
    Case(d=48, dtype=F32, c=2, layout="bnhd", n=1),
    Case(d=64, dtype=BF16, c=2, layout="bnhd", n=37),
    Case(d=64, dtype=F32, c=3, groups=2, shared=False, layout="packed"),
    Case(d=80, dtype=F16, c=4, shared=False, layout="packed"),
    Case(d=80, dtype=F32, c=1, groups=4, layout="strided", h=1),
    Case(d=128, dtype=BF16, c=3, shared=False, layout="strided"),
    Case(d=256, dtype=F16, c=2, groups=2, layout="packed", b=1, n=9),
    Case(d=256, dtype=F32, c=1, shared=False, b=3, h=1, n=5),
    Case(d=30, dtype=F32, c=5, layout="packed", coords_dtype=torch.float64),  # an odd number of planes
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_pair_agrees_with_the_reference(case: Case) -> None:
    for name, value, truth in zip(NAMES, fused_pair(case), reference(case), strict=True):
        assert error(value, truth) < TOLERANCE[case.dtype], name


@pytest.mark.parametrize("case", [CASES[1], CASES[4], CASES[6]], ids=str)
def test_one_agrees_with_the_pair(case: Case) -> None:
    q, k, coords, theta = case.inputs()
    gq, gk = case.output_gradients()
    one_q = kernels.rotate_one(q, coords, theta, case.groups)
    one_k = kernels.rotate_one(k, coords, theta)
    dq, *q_sums = torch.autograd.grad(one_q, (q, coords, theta), gq)
    dk, *k_sums = torch.autograd.grad(one_k, (k, coords, theta), gk)
    pair_q, pair_k, pair_dq, pair_dk, *sums = fused_pair(case)
    for value, other in ((one_q, pair_q), (one_k, pair_k), (dq, pair_dq), (dk, pair_dk)):
        assert torch.equal(value, other)
    for a, b, both in zip(q_sums, k_sums, sums, strict=True):
        torch.testing.assert_close(a + b, both, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("coords_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shared", [True, False])
def test_far_coordinates_keep_their_precision(coords_dtype: torch.dtype, shared: bool) -> None:
    case = Case(scale=1e4, c=3, shared=shared, coords_dtype=coords_dtype)
    for name, value, truth in zip(NAMES, fused_pair(case), reference(case), strict=True):
        assert error(value, truth) < 1e-6, name


def test_sine_and_cosine_are_within_2e_7() -> None:
    """A plane at (1, 0) turns to (cos a, sin a): over several turns, near the quarter turns, and far away."""
    near = torch.linspace(-7, 7, 4000)
    quarters = torch.arange(-9, 10)[:, None] * (math.pi / 4) + torch.linspace(-1e-6, 1e-6, 21)
    coords = torch.cat([near, quarters.flatten(), 1e6 + near, torch.zeros(1)]).to(DEVICE)[None, :, None]
    x = torch.tensor([1.0, 0.0], device=DEVICE).repeat_interleave(4).expand(1, 1, coords.shape[1], 8)
    y = kernels.rotate_one(x, coords, torch.ones(1, 1, 4, device=DEVICE))[0, 0]
    angle = coords[0].double()
    assert (y[:, :4] - angle.cos()).abs().max() < 2e-7
    assert (y[:, 4:] - angle.sin()).abs().max() < 2e-7
    assert torch.equal(y[-1], x[0, 0, -1])  # R(0) = I, exactly


def test_entries_of_a_program_past_the_end_of_the_batch_are_left_alone() -> None:
    """Five entries, three per program, one token more than a block holds: the masks along the batch and the tokens."""
    case = Case(b=5, groups=2, n=9, d=24)
    q, k, coords, theta = (t.detach() for t in case.inputs())
    (gq, gk), choice = case.output_gradients(), fused_rotation.Tile(tokens=8, batch=3, warps=1)
    rotated = torch.empty_like(q), torch.empty_like(k)
    fused_rotation.forward(q, k, *rotated, coords, theta, case.groups, choice)
    slopes = torch.empty_like(q), torch.empty_like(k)
    sums = fused_rotation.backward(gq, gk, *rotated, *slopes, coords, theta, case.groups, True, True, choice)
    for name, value, truth in zip(NAMES, (*rotated, *slopes, *sums), reference(case), strict=True):
        assert error(value, truth) < TOLERANCE[case.dtype], name


@pytest.mark.parametrize("shared", [True, False])
def test_every_run_gives_the_same_bits(shared: bool) -> None:
    case = Case(d=64, dtype=BF16, c=3, groups=2, shared=shared, n=70)
    assert all(torch.equal(a, b) for a, b in zip(fused_pair(case), fused_pair(case), strict=True))


def test_inputs_stay_as_they_are() -> None:
    case = Case(layout="packed")
    inputs = case.inputs()
    before = [t.detach().clone() for t in inputs]
    rotated = kernels.rotate_pair(*inputs)
    torch.autograd.backward(rotated, case.output_gradients())
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("empty", [{"n": 0}, {"b": 0, "shared": False}, {"b": 0}], ids=str)
def test_nothing_to_rotate(empty: dict[str, int]) -> None:
    case = replace(Case(), **empty)
    inputs = case.inputs()
    *values, d_coords, d_theta = fused_pair(case)
    assert all(v.shape == t.shape for v, t in zip(values, inputs[:2] * 2, strict=True))
    assert torch.equal(d_coords, torch.zeros_like(inputs[2]))
    assert torch.equal(d_theta, torch.zeros_like(inputs[3]))


@pytest.mark.skipif(DEVICE == "cpu", reason="8 GiB, at a GPU's pace")
def test_more_elements_than_32_bits_count() -> None:
    n, d = 2**31 // 64 + 40, 64
    x, coords = torch.zeros(1, 1, n, d, device=DEVICE, dtype=BF16), torch.zeros(1, n, 1, device=DEVICE)
    x[:, :, -40:], coords[:, -40:] = torch.randn(40, d, dtype=BF16), torch.randn(40, 1)
    theta = torch.randn(1, 1, d // 2, device=DEVICE)
    y = kernels.rotate_one(x, coords, theta)
    truth = rotate(x[:, :, -40:].double(), coords[:, -40:].double(), theta.double())
    assert error(y[:, :, -40:], truth) < TOLERANCE[BF16]


@pytest.mark.parametrize("d", [2, 16, 48, 64, 128, 256])
@pytest.mark.parametrize("n", [1, 7, 64, 197, 100_000])
def test_tiles(d: int, n: int) -> None:
    """A block neither wastes much nor grows without bound, and own coordinates mean one entry a program."""
    for batch, c, backward in itertools.product((1, 256), (3, 6), (False, True)):
        tokens, entries, warps = fused_rotation.tile(d // 2, n, batch, 12, True, c, backward=backward)
        assert tokens & (tokens - 1) == 0
        assert tokens <= 16 or -(-n // tokens) * tokens <= 7 / 6 * n
        assert 1 <= entries <= min(batch, fused_rotation.MOST_ENTRIES)
        assert warps in (1, 2, 4, 8)
        assert fused_rotation.tile(d // 2, n, batch, 12, False, c, backward=backward).batch == 1


def test_strides_of_single_elements_are_zero() -> None:
    """Torch may give them any number, and for Triton a 1 would be another kernel."""
    x = torch.empty(2, 3, 5, 8).transpose(1, 2)
    assert fused_rotation._strides(x) == x.stride() == (120, 8, 40, 1)
    assert fused_rotation._strides(x[:1]) == (0, 8, 40, 1)
    assert fused_rotation._strides(x[..., :1]) == (120, 8, 40, 0)
    assert fused_rotation._strides(None) == (0, 0, 0, 0)


@pytest.mark.parametrize("shape", [(1, 2, 3), (64, 1, 33), (65, 7), (1000, 2, 2, 5), (5000, 3)])
def test_sums_of_rows(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape, device=DEVICE)
    torch.testing.assert_close(fused_rotation.sum_rows(x), x.double().sum(0).float())
