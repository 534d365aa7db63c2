"""Alternatives to our rotation: the usual ways to rotate queries and keys, written out.

Each takes q and k (b, h, n, d), coords (b, n, c), frequencies (h, c, d/2), and S (h, d, d) where it has a basis, and
computes the same scores as ours in its own layout. Layouts differ from ours where their authors' do.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor

Rotation = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From q, k, coordinates, frequencies and S to rotated queries and keys."""


def rotate_half(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """x cos + rotate_half(x) sin with tables of the whole head, as in most language models."""
    angle = torch.einsum("bnc,hcp->bhnp", coords, frequencies)
    angle = torch.cat([angle, angle], dim=-1)
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)

    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    return turn(q), turn(k)


def complex_numbers(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """Neighbouring channels as complex numbers times e^{ia}, as RoPE-Mixed was published."""
    angle = torch.einsum("bnc,hcp->bhnp", coords, frequencies)
    phase = torch.polar(torch.ones_like(angle), angle)

    def turn(x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(z * phase).flatten(-2).to(x.dtype)

    return turn(q), turn(k)


def cayley_matmul(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """P formed by a solve and multiplied with every token, then rotate-half."""
    eye = torch.eye(q.shape[-1], device=q.device)
    p = torch.linalg.solve(eye + skew, eye - skew).to(q.dtype)
    return rotate_half(q @ p.mT, k @ p.mT, coords, frequencies, skew)


def cayley_solve(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """The paper's way: (I + S)⁻¹ applied to every token by a linear solver, then rotate-half."""
    eye = torch.eye(q.shape[-1], device=q.device)

    def turn(x: Tensor) -> Tensor:
        tokens = x.float().permute(1, 3, 0, 2)  # (h, d, b, n)
        solved = torch.linalg.solve(eye + skew, tokens.flatten(2)).view_as(tokens)
        return ((eye - skew) @ solved.flatten(2)).view_as(tokens).permute(2, 0, 3, 1).to(x.dtype)

    return rotate_half(turn(q), turn(k), coords, frequencies, skew)


def circulant_fft(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """Theorem 3.5 on the whole head: FFT, a phase, and back; d/2 − 1 of the frequencies."""
    angle = torch.einsum("bnc,hcp->bhnp", coords, frequencies)
    angle = torch.nn.functional.pad(angle[..., 1:], (1, 1))
    phase = torch.polar(torch.ones_like(angle), angle)

    def turn(x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x.float()) * phase, n=x.shape[-1]).to(x.dtype)

    return turn(q), turn(k)


ALTERNATIVES: dict[str, Rotation] = {
    "rotate-half": rotate_half,
    "complex numbers": complex_numbers,
    "Cayley, P by matmul on tokens": cayley_matmul,
    "Cayley, solve on tokens (the paper)": cayley_solve,
    "Circulant, FFT on tokens": circulant_fft,
}


def find_peers() -> dict[str, Rotation]:
    """Kernels of other libraries, where they are installed. They take one table for all heads and samples and give no
    gradient to frequencies; this is less than the whole job, so their time is a lower bound. Each imports its library
    when it is called, and raises if the library is installed but does not work."""
    kernels: dict[str, tuple[str, Rotation]] = {
        "Liger (one table)": ("liger_kernel", _liger),
        "flash-attn (one table)": ("flash_attn", _flash),
        "timm (one table)": ("timm", _timm),
    }
    return {name: kernel for name, (package, kernel) in kernels.items() if find_spec(package) is not None}


def _table(coords: Tensor, frequencies: Tensor) -> Tensor:
    """(n, d/2): the angles of the first sample and head."""
    return coords[0] @ frequencies[0]


def _liger(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    angle = _table(coords, frequencies)
    angle = torch.cat([angle, angle], dim=-1)[None]
    turned: tuple[Tensor, Tensor] = liger_rotary_pos_emb(q.clone(), k.clone(), angle.cos(), angle.sin())
    return turned


def _flash(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    from flash_attn.layers.rotary import apply_rotary_emb

    angle = _table(coords, frequencies)
    cos, sin = angle.cos().to(q.dtype), angle.sin().to(q.dtype)
    turned = [apply_rotary_emb(x.transpose(1, 2), cos, sin).transpose(1, 2) for x in (q, k)]
    return turned[0], turned[1]


def _timm(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    from timm.layers import apply_rot_embed_cat  # type: ignore[import-not-found,attr-defined,unused-ignore]

    angle = _table(coords, frequencies).repeat_interleave(2, dim=-1)
    table = torch.cat([angle.sin(), angle.cos()], dim=-1).to(q.dtype)
    return apply_rot_embed_cat(q, table), apply_rot_embed_cat(k, table)
