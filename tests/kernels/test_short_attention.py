"""Softmax attention of short sequences in a kernel: the reference in float64, forward and backward."""

import pytest
import torch
from fused_cases import DEVICE, error
from torch import library

import stringpe
from stringpe import kernels
from stringpe.softmax_attention import softmax_attention

# Of the largest value: half precision of the operands and of the weights; Triton's interpreter truncates to bfloat16.
TOLERANCE = {torch.bfloat16: 2**-6, torch.float16: 2**-9}


def inputs(n, m, d, dtype, b=2, h=3, packed=False):
    torch.manual_seed(0)
    if packed:  # as a projection leaves them
        qkv = torch.randn(b, n, 3, h, d).to(DEVICE, dtype)
        return tuple(t.transpose(1, 2).detach().requires_grad_() for t in qkv.unbind(2))
    shapes = ((b, h, n, d), (b, h, m, d), (b, h, m, d))
    return tuple(torch.randn(shape).to(DEVICE, dtype).requires_grad_() for shape in shapes)


def reference(q, k, v, scale, slopes):
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    out = (scale * q @ k.mT).softmax(-1) @ v
    return [out, *torch.autograd.grad(out, (q, k, v), slopes.double())]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("n", "m", "d", "packed"),
    [(64, 64, 64, True), (100, 100, 32, True), (17, 17, 80, True), (1, 5, 16, False), (20, 68, 64, False),
     (64, 64, 128, True), (33, 128, 24, False)],
)  # fmt: skip
def test_is_attention_and_its_derivative(n, m, d, packed, dtype):
    q, k, v = inputs(n, m, d, dtype, packed=packed)
    slopes = torch.randn(q.shape).to(DEVICE, dtype)
    assert kernels.can_attend(q, k, v)
    out = kernels.attend(q, k, v, d**-0.5)
    found = [out, *torch.autograd.grad(out, (q, k, v), slopes)]
    for ours, truth in zip(found, reference(q, k, v, d**-0.5, slopes), strict=True):
        assert error(ours, truth) < TOLERANCE[dtype]
    assert (out.transpose(1, 2) if packed else out).is_contiguous()


def test_large_scores_stay_finite():
    q, k, v = inputs(16, 16, 16, torch.bfloat16)
    slopes = torch.randn(q.shape).to(DEVICE, q.dtype)
    out = kernels.attend(q, k, v, 1e3)
    wanted = reference(q, k, v, 1e3, slopes)
    found = [out, *torch.autograd.grad(out, (q, k, v), slopes)]
    assert error(found[0], wanted[0]) < 0.02
    assert all(t.isfinite().all() for t in found)


def test_gradients_may_have_any_strides():
    q, k, v = inputs(16, 16, 16, torch.bfloat16)
    out = kernels.attend(q, k, v, 0.25)
    slopes = torch.randn(out.shape, device=DEVICE).to(out.dtype)
    wanted = torch.autograd.grad(out, (q, k, v), slopes, retain_graph=True)
    moved = slopes.mT.contiguous().mT
    found = torch.autograd.grad(out, (q, k, v), moved, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    broadcast = torch.autograd.grad(out.sum(), (q, k, v))  # a gradient of ones with strides of 0
    assert all(g.isfinite().all() for g in broadcast)


def test_second_derivatives_are_those_of_the_formula():
    q, k, v = inputs(8, 8, 16, torch.bfloat16, b=1, h=1)

    def second(attend):
        (first,) = torch.autograd.grad(attend(q, k, v).float().square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), (q, k, v))

    found = second(lambda q, k, v: kernels.attend(q, k, v, 0.25))
    q, k, v = (t.detach().double().requires_grad_() for t in (q, k, v))
    wanted = second(lambda q, k, v: (0.25 * q @ k.mT).softmax(-1) @ v)
    for ours, truth in zip(found, wanted, strict=True):
        assert error(ours, truth) < 0.05  # half precision, twice


def test_the_operators_are_well_formed():
    q, k, v = inputs(6, 9, 16, torch.float16)
    library.opcheck(torch.ops.stringpe.attend.default, (q, k, v, 0.25), test_utils=("test_schema", "test_faketensor"))
    plain = (t.detach() for t in (q, q, k, v))
    library.opcheck(
        torch.ops.stringpe.attend_backward.default, (*plain, 0.25), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("empty", [(0, 2, 4), (2, 0, 4)])
def test_nothing_to_attend_from(empty):
    b, n, m = empty
    q = torch.randn(b, 2, n, 16).to(DEVICE, torch.bfloat16).requires_grad_()
    k = torch.randn(b, 2, m, 16).to(DEVICE, torch.bfloat16).requires_grad_()
    out = kernels.attend(q, k, k, 0.25)
    assert out.shape == q.shape
    (gradient,) = torch.autograd.grad(out.sum(), k)
    assert not gradient.any()


def test_what_the_kernel_does_not_take_goes_to_torch():
    q, k, v = inputs(16, 16, 16, torch.bfloat16)
    long = torch.randn(1, 1, 129, 16).to(DEVICE, torch.bfloat16)
    wide = torch.randn(1, 1, 65, 128).to(DEVICE, torch.bfloat16)
    assert not kernels.can_attend(long, long, long)
    assert not kernels.can_attend(wide, wide, wide)
    assert not kernels.can_attend(q.float(), k.float(), v.float())
    assert not kernels.can_attend(q, k[:, :1], v[:, :1])
    assert not kernels.can_attend(q, k, v.float())
    nothing = k[:, :, :0]
    assert not kernels.can_attend(q, nothing, nothing)
    grouped = softmax_attention(q[:, :2], k[:, :1], v[:, :1], scale=0.25)
    assert grouped.shape == (2, 2, 16, 16)
    seen = torch.ones(16, 16, dtype=torch.bool, device=DEVICE).tril()
    masked, causal = (softmax_attention(q, k, v, scale=0.25, **how) for how in ({"mask": seen}, {"causal": True}))
    torch.testing.assert_close(masked, causal, rtol=0, atol=0.02)


@pytest.mark.parametrize("encoding", [None, "cayley", "circulant"])
def test_attention_layers_use_it_and_agree_with_torch(encoding, monkeypatch):
    torch.manual_seed(0)
    made = encoding and stringpe.create(encoding, head_dim=32, num_heads=2, coord_dim=2)
    layer = stringpe.Attention(64, 2, made).to(DEVICE)
    x = torch.randn(2, 12, 64, device=DEVICE)
    coords = None if made is None else stringpe.coords.grid(3, 4, device=torch.device(DEVICE))
    calls = []
    own = kernels.attend
    monkeypatch.setattr(kernels, "attend", lambda *a: calls.append(1) or own(*a))
    with torch.autocast(DEVICE, torch.bfloat16):
        found = layer(x, coords)
        assert calls
        with stringpe.use_backend("torch"):
            wanted = layer(x, coords)
    assert len(calls) == 1
    torch.testing.assert_close(found.float(), wanted.float(), rtol=0, atol=0.02)
