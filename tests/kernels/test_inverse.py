"""Small inverses without pivoting: values, derivatives, and the Cayley basis that is built on them."""

import pytest
import torch
from fused_cases import DEVICE
from torch import library

import stringpe
from stringpe import kernels, testing


def matrices(count: int, d: int, scale: float = 0.3) -> torch.Tensor:
    torch.manual_seed(0)
    lower = torch.randn(count, d, d).tril(-1) * scale
    return (torch.eye(d) + lower - lower.mT).to(DEVICE)


@pytest.mark.parametrize("d", [2, 6, 16, 24])
@pytest.mark.parametrize("scale", [0.0, 0.3, 30.0])
def test_inverts(d: int, scale: float) -> None:
    a = matrices(3, d, scale)
    assert testing.relative_error(kernels.invert(a), torch.linalg.inv(a.double())) < 1e-5


def test_strided_and_empty() -> None:
    a = matrices(2, 8)
    torch.testing.assert_close(kernels.invert(a.mT), kernels.invert(a.mT.contiguous()))
    assert kernels.invert(a[:0]).shape == (0, 8, 8)


def test_is_a_well_formed_operator() -> None:
    library.opcheck(torch.ops.stringpe.inverse.default, (matrices(2, 4).requires_grad_(),))


def test_derivative() -> None:
    a = matrices(2, 6).requires_grad_()
    weights = torch.randn_like(a)
    (kernels.invert(a) * weights).sum().backward()
    exact = a.detach().double().requires_grad_()
    (torch.linalg.inv(exact) * weights.double()).sum().backward()
    assert testing.relative_error(a.grad, exact.grad) < 1e-5


def test_the_cayley_basis_uses_it_and_agrees_with_torch() -> None:
    torch.manual_seed(0)
    enc = stringpe.cayley(head_dim=16, num_heads=2).to(DEVICE)
    torch.nn.init.normal_(enc.basis.weight)
    results = []
    for name in ("triton", "torch"):
        with stringpe.use_backend(name):
            enc.zero_grad()
            p = enc.basis()
            (p * torch.arange(16.0, device=DEVICE)).sum().backward()
            results.append((p.detach(), enc.basis.weight.grad.clone()))
    for kernel, plain in zip(*results, strict=True):
        assert testing.relative_error(kernel, plain) < 1e-5
