"""Inputs of the fused rotation, and what it is measured against: the torch reference in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor

from stringpe import kernels
from stringpe.rotate import rotate

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Of the largest value. Half a unit of the last place at most, but Triton's interpreter truncates to bfloat16.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}


@dataclass(frozen=True)
class Case:
    """Queries (b, groups·h, n, d) and keys (b, h, n, d) in a memory layout, at coords (1 or b, n, c)."""

    d: int = 32
    dtype: torch.dtype = torch.float32
    c: int = 2
    groups: int = 1
    shared: bool = True
    layout: str = "bhnd"
    b: int = 2
    h: int = 2
    n: int = 17
    scale: float = 3.0
    coords_dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        coords = "shared" if self.shared else "own"
        return f"d{self.d}-{str(self.dtype)[6:]}-c{self.c}-g{self.groups}-{coords}-{self.layout}"

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, coords and frequencies, all asking for gradients."""
        torch.manual_seed(0)
        b, n, d, (hq, h) = self.b, self.n, self.d, (self.groups * self.h, self.h)
        match self.layout:
            case "bhnd":
                q, k = torch.randn(b, hq, n, d), torch.randn(b, h, n, d)
            case "bnhd":
                q, k = torch.randn(b, n, hq, d).transpose(1, 2), torch.randn(b, n, h, d).transpose(1, 2)
            case "packed":  # as a projection to q, k and v leaves them
                qkv = torch.randn(b, n, hq + 2 * h, d).to(DEVICE, self.dtype).transpose(1, 2)
                q, k, _ = qkv.split([hq, h, h], dim=1)
            case "strided":  # channels apart in q, heads and tokens swapped between q and k
                q, k = torch.randn(b, hq, n, 2 * d)[..., ::2], torch.randn(b, n, h, d).transpose(1, 2)
            case _:
                raise ValueError(self.layout)
        coords = self.scale * torch.randn(1 if self.shared else b, n, self.c, dtype=self.coords_dtype)
        tensors = (q.to(self.dtype), k.to(self.dtype), coords, torch.randn(h, self.c, d // 2))
        return tuple(t.detach().to(DEVICE).requires_grad_() for t in tensors)

    def output_gradients(self) -> tuple[Tensor, Tensor]:
        """Gradients at q' and k', in two memory layouts."""
        b, n, d, h = self.b, self.n, self.d, self.h
        gq, gk = torch.randn(b, n, self.groups * h, d).transpose(1, 2), torch.randn(b, h, n, d)
        return gq.to(DEVICE, self.dtype), gk.to(DEVICE, self.dtype)


def reference(case: Case) -> list[Tensor]:
    """q', k' and the gradients of q, k, coords and frequencies, in float64."""
    q, k, coords, theta = (t.detach().double().requires_grad_() for t in case.inputs())
    rotated = rotate(q, coords, theta.repeat_interleave(case.groups, dim=0)), rotate(k, coords, theta)
    slopes = tuple(g.double() for g in case.output_gradients())
    return [*rotated, *torch.autograd.grad(rotated, (q, k, coords, theta), slopes)]


def fused_pair(case: Case) -> list[Tensor]:
    """The same from `rotate_pair`."""
    inputs = case.inputs()
    rotated = kernels.rotate_pair(*inputs, case.groups)
    return [*rotated, *torch.autograd.grad(rotated, inputs, case.output_gradients())]


def error(value: Tensor, truth: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    assert value.shape == truth.shape
    return ((value.double() - truth).abs().max() / truth.abs().max()).item()
