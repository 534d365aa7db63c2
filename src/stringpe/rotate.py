"""The one operation of the library: rotate plane j of a token at r by the angle (r Θ)_j.

Every encoding, whatever its name, ends here. Plane j of a head is the pair of channels (j, j + d/2), and

    RoPE(a) (x_j, x_{j+d/2}) = (cos a_j · x_j − sin a_j · x_{j+d/2},  sin a_j · x_j + cos a_j · x_{j+d/2})

Precision: a float32 product of a coordinate of 10⁴ with a frequency of 1 is wrong by 5e-4 radians, which would break
translation invariance by as much. The product of two float32 numbers is exact in float64, so angles are formed and
brought into [−π, π] there and only then rounded to float32. Everything is elementwise: neither autocast nor TF32
touches it.
"""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from . import kernels


def full_precision(x: Tensor) -> AbstractContextManager[object]:
    """Inside, autocast leaves products in the dtype they come in: bases and features are not for half precision."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def angles(coords: Tensor, frequencies: Tensor) -> Tensor:
    """a = r Θ modulo 2π, in [−π, π]: (b, n, c) and (h, c, d/2) give (b, h, n, d/2), in float32, or in float64 when
    one of the two is."""
    narrow = torch.promote_types(torch.promote_types(coords.dtype, frequencies.dtype), torch.float32)
    wide = torch.float32 if coords.device.type == "mps" else torch.float64  # mps has no float64
    r = coords.to(wide)[:, None, :, :, None]  # (b, 1, n, c, 1)
    theta = frequencies.to(wide)[None, :, None]  # (1, h, 1, c, d/2)
    a = r[..., 0, :] * theta[..., 0, :]
    for k in range(1, coords.shape[-1]):
        a = a + r[..., k, :] * theta[..., k, :]
    turns = (a.detach() / (2 * math.pi)).round()
    return (a - turns * (2 * math.pi)).to(narrow)


def rotate_planes(x: Tensor, angle: Tensor) -> Tensor:
    """RoPE(a) x: x (b, h, n, d), angle (b or 1, h, n, d/2). Computed in float32 or wider, returned in x's dtype."""
    angle = angle.to(torch.promote_types(x.dtype, torch.float32))
    cos, sin = angle.cos(), angle.sin()
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1).to(x.dtype)


def rotate(x: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> Tensor:
    """RoPE(r Θ) x: x (b, groups·h, n, d), coords (b or 1, n, c), frequencies (h, c, d/2); same shape and dtype as x.
    Head i turns with frequencies[i // groups]."""
    if backend(x) == "triton":
        return kernels.rotate_one(x, coords, frequencies, groups)
    return rotate_planes(x, _shared(angles(coords, frequencies), groups))


def rotate_pair(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
    """`rotate` for queries (b, groups·h, n, d) and keys (b, h, n, d) of the same tokens, with one set of angles."""
    if backend(q) == "triton":
        return kernels.rotate_pair(q, k, coords, frequencies, groups)
    angle = angles(coords, frequencies)
    return rotate_planes(q, _shared(angle, groups)), rotate_planes(k, angle)


def _shared(angle: Tensor, groups: int) -> Tensor:
    return angle.repeat_interleave(groups, dim=1) if groups > 1 else angle


class use_backend:
    """Force what rotates: "triton", the fused kernel; "torch", the reference; or "auto", the kernel wherever it can.

    `use_backend("torch")` sets it from here on; as a context manager it sets it back at the end. A forced kernel that
    cannot run is an error, not a fallback. `backend(x)` tells which one x would get.
    """

    current = "auto"

    def __init__(self, name: str):
        if name not in ("auto", "triton", "torch"):
            raise ValueError(f"backend must be 'auto', 'triton' or 'torch', got {name!r}")
        self.before, use_backend.current = use_backend.current, name

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        use_backend.current = self.before


def backend(x: Tensor) -> str:
    """Which backend rotates x: "triton" or "torch"."""
    if use_backend.current == "torch":
        return "torch"
    obstacle = kernels.unavailable(x)
    if obstacle is None:
        return "triton"
    if use_backend.current == "triton":
        raise ValueError(f"the triton backend was forced, but {obstacle}: use stringpe.use_backend('auto')")
    return "torch"
