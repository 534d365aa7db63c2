"""The noise schedule of a diffusion policy: squared cosine, DDIM.

Forty lines in place of the package diffusers, so that training needs torch alone; the tests hold them equal to its
DDPMScheduler and DDIMScheduler (beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing").
"""

import math

import torch
from torch import Tensor

_MOST = 0.999  # of a single β, or the last step would leave nothing to divide by


def squared_cosine(steps: int) -> Tensor:
    """ᾱ_t for t = 0 … steps − 1, float64: the share of the signal's power left after step t (Nichol and Dhariwal)."""

    def remaining(u: float) -> float:
        return math.cos((u + 0.008) / 1.008 * math.pi / 2) ** 2

    betas = [min(1 - remaining((t + 1) / steps) / remaining(t / steps), _MOST) for t in range(steps)]
    return (1 - torch.tensor(betas, dtype=torch.float64)).cumprod(0)


def noised(x: Tensor, noise: Tensor, t: Tensor, signal: Tensor) -> Tensor:
    """√ᾱ_t x + √(1 − ᾱ_t) ε for x (b, …), t (b,) and signal ᾱ (T,)."""
    kept = signal.to(x.device)[t].view(-1, *[1] * (x.ndim - 1))
    return (kept.sqrt() * x + (1 - kept).sqrt() * noise).to(x.dtype)


def noise_of(x: Tensor, clean: Tensor, t: int, signal: Tensor, clip: float = 1.0) -> Tensor:
    """The noise in x at step t, if `clean`, clipped to ± clip, is what lies under it."""
    kept = float(signal[t])
    return (x - math.sqrt(kept) * clean.clamp(-clip, clip)) / math.sqrt(1 - kept)


def trailing(steps: int, few: int) -> list[int]:
    """`few` of the steps T − 1 … 0, evenly spaced from the last, at which there is nothing but noise."""
    if not 1 <= few <= steps:
        raise ValueError(f"needs 1 to {steps} denoising steps, got {few}")
    return [round(steps - i * steps / few) - 1 for i in range(few)]


def ddim_step(x: Tensor, noise: Tensor, t: int, before: int, signal: Tensor, clip: float = 1.0) -> Tensor:
    """From x at step t to step `before` (−1: no noise left), with the predicted noise: DDIM with η = 0.

    The clean sample that the noise implies is clipped to ± clip, where all actions are."""
    now = float(signal[t])
    then = float(signal[before]) if before >= 0 else 1.0
    clean = ((x - math.sqrt(1 - now) * noise) / math.sqrt(now)).clamp(-clip, clip)
    return math.sqrt(then) * clean + math.sqrt(1 - then) * noise
