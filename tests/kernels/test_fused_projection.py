"""The projection with the rotation in its epilogue, against a float64 product and the reference rotation."""

import pytest
import torch
from fused_cases import DEVICE, error
from torch import Tensor, library

import stringpe
from stringpe import kernels
from stringpe.rotate import rotate

# b, n, h, d, m, c; tokens that do not fill the last tile of 128, and tiles of two, one and one head
SHAPES = [(2, 40, 4, 32, 64, 1), (3, 50, 2, 64, 128, 3), (1, 130, 1, 128, 64, 2)]


def inputs(b: int, n: int, h: int, d: int, m: int, c: int, shared: bool, scale: float = 5.0) -> list[Tensor]:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(b, n, m), torch.randn(2 * h * d, m) / m**0.5, torch.randn(2 * h * d)
    coords = scale * torch.randn(1 if shared else b, n, c)
    halves = [t.to(DEVICE, torch.float16) for t in (x, weight, bias)]
    return [t.requires_grad_() for t in (*halves, coords.to(DEVICE), torch.randn(h, c, d // 2, device=DEVICE))]


def truth(x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
    """In the dtype of its inputs, here float64."""
    h, _, planes = theta.shape
    packed = torch.nn.functional.linear(x, weight, bias).unflatten(-1, (2, h, 2 * planes))
    q, k = (t.transpose(1, 2) for t in packed.unbind(2))
    return rotate(q, coords, theta), rotate(k, coords, theta)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape: tuple[int, ...], shared: bool) -> None:
    given = inputs(*shape, shared=shared)
    b, n, h, d, *_ = shape
    slopes = [torch.randn(b, h, n, d, device=DEVICE, dtype=torch.float16) for _ in range(2)]
    q, k = kernels.project(*given)
    ours = [q, k, *torch.autograd.grad((q, k), given, slopes)]
    wide = [t.detach().double().requires_grad_() for t in given]
    turned = truth(*wide)
    theirs = [*turned, *torch.autograd.grad(turned, wide, [g.double() for g in slopes])]
    # The results are rounded once. Gradients pass through a rotated gradient in half precision and sums of it.
    for name, value, exact in zip(("q", "k", "x", "weight", "bias", "coords", "theta"), ours, theirs, strict=True):
        assert error(value, exact) < (2**-10 if name in "qk" else 2**-8), name


def test_far_coordinates_keep_their_precision() -> None:
    given = inputs(2, 40, 2, 64, 64, 3, shared=False, scale=1e4)
    exact = truth(*(t.detach().double() for t in given))
    for value, wanted in zip(kernels.project(*given), exact, strict=True):
        assert error(value, wanted) < 2**-10


def test_without_bias() -> None:
    x, weight, _, coords, theta = inputs(1, 9, 2, 64, 64, 2, shared=True)
    exact = truth(*(t.detach().double() for t in (x, weight)), None, coords.detach().double(), theta.detach().double())
    q, k = kernels.project(x, weight, None, coords, theta)
    assert max(error(q, exact[0]), error(k, exact[1])) < 2**-10


def test_second_derivatives() -> None:
    """d²/dW dΘ, d²/dx dr and the others, against the plain formula in float64."""

    def second(turn, tensors):
        loss = sum(y.double().square().sum() + y.double().sum() for y in turn(*tensors))
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        return torch.autograd.grad(sum(g.double().square().sum() for g in first), tensors)

    given = inputs(1, 3, 2, 32, 64, 2, shared=False, scale=1.0)
    wide = [t.detach().double().requires_grad_() for t in given]
    for value, exact in zip(second(kernels.project, given), second(truth, wide), strict=True):
        assert exact.abs().max() > 0
        assert error(value, exact) < 2**-6  # two passes in half precision, each of the size of the first derivative's


def test_the_operator_is_well_formed() -> None:
    library.opcheck(torch.ops.stringpe.project.default, tuple(inputs(1, 3, 1, 64, 64, 1, shared=True)))


def test_what_it_takes() -> None:
    x, theta = torch.zeros(1, 2, 128, device=DEVICE), torch.zeros(2, 3, 32, device=DEVICE)
    hopper = DEVICE == "cpu" or torch.cuda.get_device_capability()[0] >= 9
    assert kernels.can_project(x, torch.bfloat16, theta) == hopper
    assert not kernels.can_project(x, torch.float32, theta)
    assert not kernels.can_project(x[..., :100], torch.bfloat16, theta)
    assert not kernels.can_project(x, torch.bfloat16, theta[..., :20])  # heads of 40
    assert not kernels.can_project(x, torch.bfloat16, theta[:1, :, :16])  # a tile has two heads of 32


@pytest.mark.parametrize(("name", "qk_norm"), [("rope", None), ("cayley", None), ("cayley", "rms")])
def test_attention_uses_it_under_autocast(name: str, qk_norm: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    encoding = stringpe.create(name, head_dim=64, num_heads=2)
    attention = stringpe.Attention(128, 2, encoding, qk_norm=qk_norm).to(DEVICE)
    for parameter in attention.encoding.basis.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x, coords = torch.randn(2, 7, 128, device=DEVICE), 5 * torch.randn(7, 2, device=DEVICE)
    taken = []
    monkeypatch.setattr(kernels, "project", lambda *args, plain=kernels.project: taken.append(1) or plain(*args))
    exact = attention(x, coords)
    assert not taken  # float32
    with torch.autocast(DEVICE, torch.float16):
        out = attention(x, coords)
        with stringpe.use_backend("torch"):
            plain = attention(x, coords)
    assert len(taken) == 1
    assert error(out, exact.double()) < 1.5 * error(plain, exact.double()) + 2**-12
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in attention.parameters() if p.requires_grad)
