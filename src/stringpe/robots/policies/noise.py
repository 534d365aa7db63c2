"""Noise of policies: how it is drawn, row by row, and the schedule of a diffusion policy (squared cosine, DDIM).

The schedule takes forty lines, so that training needs torch alone; the tests hold it equal to DDPMScheduler and
DDIMScheduler of the package diffusers (beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing").
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

Generators = Sequence[torch.Generator] | None
"""One generator per row of a batch, on the CPU so that every device draws the same numbers; None: the global one."""

_RANGE = 1.0  # of normalised actions, on either side of 0
_LARGEST_BETA = 0.999  # a β of 1 would leave no signal, and the sampler divides by it


def draw_normal(shape: Sequence[int], device: torch.device, generators: Generators) -> Tensor:
    """Standard normal noise of a shape (b, …); row i comes from generators[i] and depends on nothing else."""
    if generators is None:
        return torch.randn(tuple(shape), device=device)
    return torch.cat([torch.randn((1, *shape[1:]), generator=g) for g in generators]).to(device)


def squared_cosine(steps: int, device: torch.device | None = None) -> Tensor:
    """ᾱ_t for t = 0 … steps − 1, float64: the share of the signal's power left after step t (Nichol and Dhariwal).
    Computed on the device: a training step that copied it there would wait for the device."""
    u = torch.arange(steps + 1, dtype=torch.float64, device=device) / steps
    remaining = ((u + 0.008) / 1.008 * (math.pi / 2)).cos().square()
    betas = (1 - remaining[1:] / remaining[:-1]).clamp(max=_LARGEST_BETA)
    return (1 - betas).cumprod(0)


def add_noise(x: Tensor, noise: Tensor, t: Tensor, signal: Tensor) -> Tensor:
    """√ᾱ_t x + √(1 − ᾱ_t) ε for x (b, …), t (b,) and signal ᾱ (T,), on one device."""
    power = signal[t].view(-1, *[1] * (x.ndim - 1))  # ᾱ_t
    return (power.sqrt() * x + (1 - power).sqrt() * noise).to(x.dtype)


def noise_of(x: Tensor, clean: Tensor, t: int, signal: Tensor) -> Tensor:
    """The noise in x at step t if its signal is `clean`, clipped to the range of normalised actions."""
    power = float(signal[t])  # ᾱ_t
    return (x - math.sqrt(power) * clean.clamp(-_RANGE, _RANGE)) / math.sqrt(1 - power)


def trailing_steps(steps: int, count: int) -> list[int]:
    """`count` of the steps T − 1 … 0, evenly spaced and beginning with T − 1, where there is nothing but noise."""
    if not 1 <= count <= steps:
        raise ValueError(f"sample_steps must be from 1 to train_steps = {steps}, got {count}")
    return [round(steps - i * steps / count) - 1 for i in range(count)]


def ddim_step(x: Tensor, noise: Tensor, t: int, before: int, signal: Tensor) -> Tensor:
    """One step of DDIM with η = 0, from x at step t to step `before` (−1: no noise left), with the predicted noise.

    The clean sample that the noise implies is clipped to the range of normalised actions."""
    now = float(signal[t])
    then = float(signal[before]) if before >= 0 else 1.0
    clean = ((x - math.sqrt(1 - now) * noise) / math.sqrt(now)).clamp(-_RANGE, _RANGE)
    return math.sqrt(then) * clean + math.sqrt(1 - then) * noise
