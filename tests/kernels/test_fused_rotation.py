"""The fused rotation and its gradients are those of the float64 reference, to the precision of the dtype."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from fused_cases import DEVICE, TOLERANCE, Case, error, fused_pair, reference

from stringpe import kernels
from stringpe.kernels import fused_rotation, row_sums
from stringpe.kernels.fused_rotation import Tile
from stringpe.rotate import rotate

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
NAMES = ("q", "k", "grad q", "grad k", "grad coords", "grad frequencies")
CASES = [
    Case(d=16, dtype=BF16, c=1, layout="packed", n=33),
    Case(d=16, dtype=F32, c=4, groups=4, shared=False, h=1),
    Case(d=24, dtype=BF16, c=3, shared=False, layout="packed", h=3),
    Case(d=32, dtype=F16, c=2, groups=2, layout="bnhd"),
    Case(d=32, dtype=F32, c=3, shared=False, layout="strided"),
    Case(d=40, dtype=F16, c=6, layout="packed", b=5),
    Case(d=48, dtype=BF16, c=3, groups=2, shared=False, layout="packed"),
    Case(d=48, dtype=F32, c=2, layout="bnhd", n=1),
    Case(d=64, dtype=BF16, c=2, layout="bnhd", n=37),
    Case(d=64, dtype=F32, c=3, groups=2, shared=False, layout="packed"),
    Case(d=72, dtype=F32, c=3, groups=2, layout="strided", h=3),
    Case(d=80, dtype=F16, c=4, shared=False, layout="packed"),
    Case(d=80, dtype=F32, c=1, groups=4, layout="strided", h=1),
    Case(d=88, dtype=BF16, c=2, shared=False, layout="bnhd"),
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


@pytest.mark.parametrize(
    ("case", "choice"),
    [
        # five entries of the batch, three per program; one token more than a block holds
        (Case(b=5, groups=2, n=9, d=24), Tile(tokens=8, width=16, columns=16, batch=3, warps=1)),
        (Case(b=5, groups=2, n=9, d=24), Tile(tokens=4, width=16, columns=16, batch=2, warps=1, steps=2)),
        # several blocks of tokens per program, the last program with fewer; they go on into the next entry
        (
            Case(b=3, n=21, d=40, c=3, shared=False, h=3),
            Tile(tokens=4, width=32, columns=32, batch=1, warps=1, steps=4),
        ),
        (
            Case(b=3, n=21, d=16, c=6, shared=False, h=5),
            Tile(tokens=2, width=16, columns=16, batch=1, warps=1, steps=8, stages=2),
        ),
        # heads that share a program, with several queries per key; a block of columns wider than all of them
        (
            Case(b=3, n=21, d=24, c=3, shared=False, h=5),
            Tile(tokens=4, width=32, columns=24, batch=1, warps=1, steps=4),
        ),
        (Case(b=2, n=9, d=80, c=6, layout="packed", h=3), Tile(tokens=2, width=64, columns=40, batch=2, warps=1)),
        (
            Case(groups=3, n=7, d=24, h=3, layout="packed"),
            Tile(tokens=4, width=64, columns=64, batch=1, warps=1, steps=3),
        ),
        (Case(b=1, n=1, d=16, h=1), Tile(tokens=16, width=128, columns=128, batch=1, warps=1, steps=64)),
    ],
    ids=str,
)
def test_blocks_that_hang_over_an_end(case: Case, choice: Tile) -> None:
    q, k, coords, theta = (t.detach() for t in case.inputs())
    gq, gk = case.output_gradients()
    rotated = torch.empty_like(q), torch.empty_like(k)
    fused_rotation.forward(q, k, *rotated, coords, theta, case.groups, choice)
    slopes = torch.empty_like(q), torch.empty_like(k)
    places = coords, theta, case.groups, True, True, choice
    sums = fused_rotation.backward(gq, gk, *rotated, *slopes, *places)
    for name, value, truth in zip(NAMES, (*rotated, *slopes, *sums), reference(case), strict=True):
        assert error(value, truth) < TOLERANCE[case.dtype], name
    again = fused_rotation.backward(gq, gk, *rotated, *slopes, *places)
    assert all(torch.equal(a, b) for a, b in zip(sums, again, strict=True))


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


@pytest.mark.parametrize("d", [2, *range(16, 257, 8)])
@pytest.mark.parametrize("n", [1, 7, 64, 197, 100_000])
def test_tiles(d: int, n: int) -> None:
    """A block neither wastes much nor grows without bound, and own coordinates mean one entry per program."""
    for batch, c, backward in itertools.product((1, 256), (3, 6), (False, True)):
        choice = fused_rotation.tile(d // 2, n, batch, 12, True, c, backward=backward)
        assert choice.tokens & (choice.tokens - 1) == choice.width & (choice.width - 1) == 0
        assert choice.tokens <= 16 or -(-n // choice.tokens) * choice.tokens <= 7 / 6 * n
        blocks = -(-6 * d // choice.columns)
        if d % 32 == 0 or d > 256:  # heads end where 32 bytes do
            assert choice.columns == choice.width
            assert blocks * choice.width <= 1.25 * 6 * d
        else:
            assert choice.columns % (d // 2) == 0
            assert choice.columns <= choice.width
            assert d == 2 or blocks * choice.width <= 1.9 * 6 * d
        assert 1 <= choice.batch <= min(batch, fused_rotation.MOST_ENTRIES)
        assert 1 <= choice.steps <= (fused_rotation.MOST_STEPS if backward else 1)
        assert fused_rotation.tile(d // 2, n, batch, 12, False, c, backward=backward).batch == 1


def test_strides_come_in_units_without_those_of_single_elements() -> None:
    """Torch may give them any number, and from an odd one Triton would conclude that nothing is aligned."""
    x = torch.empty(2, 3, 5, 24).transpose(1, 2)
    strides = [fused_rotation._strides((y.shape, y.stride())) for y in (x, x[:1], x[..., :1])]
    assert strides == [(360, 24, 120, 1), (0, 24, 120, 1), (360, 24, 120, 0)]
    assert fused_rotation._strides(None) == (0, 0, 0, 0)
    assert fused_rotation._in_units(*strides[:2]) == (8, [45, 3, 15, 1, 0, 3, 15, 1])


@pytest.mark.parametrize("rows", [1, 64, 65, 1000, 2100])
@pytest.mark.parametrize("shape", [(33,), (2, 2, 5)])
def test_sums_of_rows(rows: int, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(rows, *shape, device=DEVICE), torch.randn(3, 1500, device=DEVICE)
    x_out, y_out = torch.empty(shape, device=DEVICE), torch.empty(1500, device=DEVICE, dtype=torch.float64)
    row_sums.sum_rows(x, x_out, y, y_out)
    torch.testing.assert_close(x_out, x.double().sum(0).float())
    torch.testing.assert_close(y_out, y.double().sum(0), rtol=1e-6, atol=1e-6)
    first = x_out.clone()
    row_sums.sum_rows(None, None, x, x_out)
    assert torch.equal(x_out, first)
    row_sums.sum_rows(x, x_out, None, None)
    assert torch.equal(x_out, first)
