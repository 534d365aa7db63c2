"""The one operation of the library: rotate plane j of a token at r by the angle (r Θ)_j.

Every encoding of STRING's form ends here. Plane j of a head is the pair of channels (j, j + d/2), and

    RoPE(a) (x_j, x_{j+d/2}) = (cos a_j · x_j − sin a_j · x_{j+d/2},  sin a_j · x_j + cos a_j · x_{j+d/2})

Precision: a float32 product of a coordinate of 10⁴ with a frequency of 1 is wrong by 5e-4 radians, which would break
translation invariance by as much. The product of two float32 numbers is exact in float64, so angles are formed and
brought into [−π, π] there and only then rounded to float32, and neither autocast nor TF32 touches them.

Derivatives: the torch backend has all of them (double backward, forward mode, torch.func). The fused kernels have the
first and second; wherever forward mode or torch.func is active, `auto` takes the torch backend.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import kernels

CACHED_ANGLES = 1 << 17  # 1 MiB in float64


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Inside, autocast leaves products in the dtype they come in: bases and features are not for half precision."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def angles(coords: Tensor, frequencies: Tensor) -> Tensor:
    """a = r Θ modulo 2π, in [−π, π]: (b, n, c) and (h, c, d/2) give (b, h, n, d/2), in float32, or in float64 when
    one of the two is."""
    narrow = torch.promote_types(torch.promote_types(coords.dtype, frequencies.dtype), torch.float32)
    wide = torch.float32 if coords.device.type == "mps" else torch.float64  # mps has no float64
    h, c, planes = frequencies.shape
    theta = frequencies.to(wide).transpose(0, 1).reshape(c, h * planes) / (2 * math.pi)
    turns = coords.to(wide) @ theta  # a float64 product: autocast and TF32 leave it alone
    turns = turns.sub_(turns.detach().round()).to(narrow)
    return (turns * (2 * math.pi)).view(*turns.shape[:-1], h, planes).transpose(1, 2)


def rotate_planes(x: Tensor, angle: Tensor) -> Tensor:
    """RoPE(a) x: x (b, h, n, d), angle (b or 1, h, n, d/2). Computed in float32 or wider, returned in x's dtype."""
    angle = angle.to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


def rotate(x: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> Tensor:
    """RoPE(r Θ) x: x (b, groups·h, n, d), coords (b or 1, n, c), frequencies (h, c, d/2); same shape and dtype as x.
    Head i turns with frequencies[i // groups]."""
    if backend(x, coords, frequencies) == "triton":
        return kernels.rotate_one(x, coords, frequencies, groups)
    return _reference(coords, frequencies, (groups,), x)[0]


def rotate_pair(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """`rotate` for queries (b, groups·h, n, d) and keys (b, h, n, d) of the same tokens, with one set of angles."""
    if backend(q, k, coords, frequencies) == "triton":
        return kernels.rotate_pair(q, k, coords, frequencies, groups)
    q, k = _reference(coords, frequencies, (groups, 1), q, k)
    return q, k


def rotate_packed(qk: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """`rotate_pair` of queries and keys side by side, as the projection returns them: qk (b, n, (groups + 1)·h·d)."""
    if backend(qk, coords, frequencies) == "triton":
        return kernels.rotate_packed(qk, coords, frequencies, groups)
    q, k = _reference(coords, frequencies, (groups, 1), *kernels.heads_of(qk, frequencies, groups))
    return q, k


def can_project(x: Tensor, frequencies: Tensor, groups: int = 1) -> bool:
    """Whether one kernel can project x (b, n, m) to queries and keys and rotate them: see `project`."""
    if groups != 1 or use_backend.current == "torch" or needs_all_derivatives(x, frequencies):
        return False
    return kernels.can_project(x, product_dtype(x), frequencies)


def project(
    x: Tensor, weight: Tensor, bias: Tensor | None, coords: Tensor, frequencies: Tensor
) -> tuple[Tensor, Tensor]:
    """RoPE(r Θ) (W x + b): queries and keys (b, h, n, d) of weight (2 h d, m), in one kernel, where `can_project`."""
    dtype = product_dtype(x)
    bias = None if bias is None else bias.to(dtype)
    return kernels.project(x.to(dtype), weight.to(dtype), bias, coords, frequencies)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear layer multiplies x: autocast's where that is on, otherwise that of x."""
    autocast = not x.is_meta and torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if autocast and x.dtype != torch.float64 else x.dtype


def _reference(coords: Tensor, frequencies: Tensor, groups: tuple[int, ...], *tensors: Tensor) -> tuple[Tensor, ...]:
    """The torch backend. A compiler fuses the plain formula, and torch.func and forward mode differentiate it; in eager
    mode a hand-written derivative saves passes over memory."""
    if torch.compiler.is_compiling() or needs_all_derivatives(coords, frequencies, *tensors):
        angle = angles(coords, frequencies)
        return tuple(rotate_planes(x, _repeat(angle, g)) for x, g in zip(tensors, groups, strict=True))
    if torch.is_grad_enabled() and any(t.requires_grad for t in (coords, frequencies, *tensors)):
        rotated: tuple[Tensor, ...] = _Rotation.apply(coords, frequencies, groups, *tensors)
        return rotated
    cos, sin = _cos_sin(coords, frequencies)
    return tuple(_turn(x, _repeat(cos, g), _repeat(sin, g)) for x, g in zip(tensors, groups, strict=True))


def needs_all_derivatives(*tensors: Tensor) -> bool:
    """Whether torch.func (vmap, grad, jvp, jacrev, …) is active or one of these carries a forward-mode tangent: only
    the plain formula has those derivatives."""
    if torch.compiler.is_compiling():  # the compiler traces through such transforms, or refuses them
        return False
    if torch._C._are_functorch_transforms_active():
        return True
    return any(forward_ad.unpack_dual(t).tangent is not None for t in tensors)


def _cos_sin(coords: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """(b, h, n, d/2) each. On a CPU some samples at a time, so that their float64 angles stay in its cache."""
    h, _, planes = frequencies.shape
    b, n, _ = coords.shape
    samples = max(1, CACHED_ANGLES // max(1, n * h * planes))
    if coords.device.type != "cpu" or b <= samples:
        angle = angles(coords, frequencies)
        return angle.cos(), angle.sin_()
    kind = torch.promote_types(torch.promote_types(coords.dtype, frequencies.dtype), torch.float32)
    cos, sin = (torch.empty(b, n, h, planes, dtype=kind).transpose(1, 2) for _ in range(2))
    for start in range(0, b, samples):
        angle = angles(coords[start : start + samples], frequencies)
        torch.cos(angle, out=cos[start : start + samples])
        torch.sin(angle, out=sin[start : start + samples])
    return cos, sin


class _Rotation(torch.autograd.Function):
    """y = RoPE(r Θ) x for tensors of the same tokens, and its derivative from y: with g the gradient at y,

    dx = RoPE(−a) g,    da_j = g_{j+d/2} y_j − g_j y_{j+d/2},    dΘ = Σ_tokens r da,    dr = Σ_planes Θ da
    """

    @staticmethod
    def forward(
        ctx: Any, coords: Tensor, frequencies: Tensor, groups: tuple[int, ...], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        cos, sin = _cos_sin(coords, frequencies)
        rotated = tuple(_turn(x, _repeat(cos, g), _repeat(sin, g)) for x, g in zip(tensors, groups, strict=True))
        ctx.groups = groups
        ctx.save_for_backward(coords, frequencies, cos, sin, *rotated)
        return rotated

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        coords, frequencies, cos, sin, *rotated = ctx.saved_tensors
        needs = bool(ctx.needs_input_grad[0] or ctx.needs_input_grad[1])
        if torch.is_grad_enabled():  # create_graph=True: the derivative must be differentiable itself
            sums, back = differentiable_gradients(grads, rotated, coords, frequencies, ctx.groups)
            return *(sums if needs else (None, None)), None, *back
        back_sin = -sin
        back = [_turn(g, _repeat(cos, n), _repeat(back_sin, n)) for g, n in zip(grads, ctx.groups, strict=True)]
        if not needs:
            return None, None, None, *back
        return *_sums(grads, rotated, coords, frequencies, ctx.groups), None, *back


def differentiable_gradients(
    grads: Sequence[Tensor],
    rotated: Sequence[Tensor],
    coords: Tensor,
    frequencies: Tensor,
    groups: Sequence[int],
) -> tuple[tuple[Tensor, Tensor], list[Tensor]]:
    """The derivative of the rotation in operations that can be differentiated again: (dr, dΘ), and dx of every tensor.

    grads, rotated: the gradients at the outputs y and the outputs themselves, (b, groups·h, n, d) each.
    """
    angle = -angles(coords, frequencies)
    back = [rotate_planes(g, _repeat(angle, n)) for g, n in zip(grads, groups, strict=True)]
    return _sums(grads, rotated, coords, frequencies, groups), back


def _sums(
    grads: Sequence[Tensor],
    rotated: Sequence[Tensor],
    coords: Tensor,
    frequencies: Tensor,
    groups: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """dr = Σ_planes Θ da and dΘ = Σ_tokens r da, from the gradients g at the outputs y."""
    kind = torch.promote_types(torch.promote_types(coords.dtype, frequencies.dtype), torch.float32)
    change = torch.zeros((), dtype=kind, device=coords.device)
    for g, y, n in zip(grads, rotated, groups, strict=True):
        (g1, g2), (y1, y2) = (t.to(torch.promote_types(t.dtype, torch.float32)).chunk(2, dim=-1) for t in (g, y))
        turn = torch.addcmul(g2 * y1, g1, y2, value=-1)  # (b, n·h, tokens, d/2)
        change = change + (turn.unflatten(1, (-1, n)).sum(2) if n > 1 else turn)
    h, c, planes = frequencies.shape
    change = change.transpose(1, 2).flatten(2)  # (b, n, h d/2)
    if len(coords) == 1:
        change = change.sum(0, keepdim=True)
    with full_precision(change):
        flat = coords.to(change.dtype).flatten(0, 1)
        d_theta = (flat.T @ change.flatten(0, 1)).unflatten(1, (h, planes)).transpose(0, 1)
        d_coords = change @ frequencies.to(change.dtype).transpose(1, 2).reshape(h * planes, c)
    return d_coords.to(coords.dtype), d_theta.to(frequencies.dtype)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """(x₁ cos − x₂ sin, x₁ sin + x₂ cos), in as few passes over memory as torch allows."""
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = cos.to(wide), sin.to(wide)
    x1, x2 = x.to(wide).chunk(2, dim=-1)
    out = torch.empty_like(x, dtype=wide)
    y1, y2 = out.chunk(2, dim=-1)
    torch.mul(x1, cos, out=y1).addcmul_(x2, sin, value=-1)
    torch.mul(x1, sin, out=y2).addcmul_(x2, cos)
    return out.to(x.dtype)


def _repeat(angle: Tensor, groups: int) -> Tensor:
    return angle.repeat_interleave(groups, dim=1) if groups > 1 else angle


class use_backend:
    """Choose the backend of the rotation: "triton", the fused kernel; "torch", the reference; or "auto", the kernel
    wherever it can run.

    `use_backend("torch")` sets it from here on; as a context manager it restores the previous choice at the end. Where
    a forced kernel cannot run, that is an error. `backend(x)` says which one rotates x.
    """

    current = "auto"

    def __init__(self, name: str):
        if not isinstance(name, str) or name not in ("auto", "triton", "torch"):
            raise ValueError(f"backend must be 'auto', 'triton' or 'torch', got {name!r}")
        self.before, use_backend.current = use_backend.current, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        use_backend.current = self.before


def backend(x: Tensor, *others: Tensor) -> str:
    """Which backend rotates x: "triton" or "torch". others: tensors that go into the same computation (coordinates,
    frequencies), whose forward-mode tangents count too."""
    if use_backend.current == "torch":
        return "torch"
    obstacle = kernels.unavailable(x)
    if obstacle is None and needs_all_derivatives(x, *others):
        obstacle = "it has no forward-mode derivatives and does not work inside torch.func"
    if obstacle is None:
        return "triton"
    if use_backend.current == "triton":
        raise ValueError(f"the triton backend was forced, but {obstacle}: use stringpe.use_backend('auto') or 'torch'")
    return "torch"
