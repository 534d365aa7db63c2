"""The diffusion transformer policy: noise that becomes a chunk of actions, given what is seen (section 4.3)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..baselines import SinCos
from .diffusion import ddim_step, noised, squared_cosine, trailing
from .layers import ChunkDecoder, repeated
from .observer import ImageEncoder
from .policy import Net, Policy, Spec


class DiffusionPolicy(Policy):
    """An encoder over what is seen and a decoder that predicts the noise ε in a chunk of actions.

    train_steps: T of the squared-cosine schedule. sample_steps: of DDIM. repeats: noises that one observation is
    trained on in a step, since looking costs more than denoising. emphasis: largest weight of a step's error. The
    actions of a smooth chunk tell each other through the noise, so that what is seen matters only where nearly
    everything is drowned, and there an error of ε is a small part of an error of the action. So it is weighted by
    (1 − ᾱ) / ᾱ, which makes it the action's, from 1 up to this.
    """

    def __init__(
        self,
        encoder: ImageEncoder,
        spec: Spec,
        net: Net,
        *,
        train_steps: int = 100,
        sample_steps: int = 10,
        repeats: int = 1,
        emphasis: float = 1.0,
    ):
        super().__init__(encoder, spec, net)
        self.train_steps, self.sample_steps, self.repeats = train_steps, sample_steps, repeats
        if emphasis < 1:
            raise ValueError(f"emphasis is a weight of at least 1, got {emphasis}")
        self.signal = squared_cosine(train_steps)  # a plain tensor: float64, whatever the model's dtype
        self.weight = ((1 - self.signal) / self.signal).clamp(1, emphasis)
        sizes = {"dim": net.dim, "layers": net.decoder_layers, "num_heads": net.num_heads, "mlp_ratio": net.mlp_ratio}
        self.decoder = ChunkDecoder(spec.action_dim, spec.action_dim, **sizes)  # type: ignore[arg-type]
        self.step = SinCos(net.dim, coord_dim=1)
        self.step_mlp = nn.Sequential(nn.Linear(net.dim, net.dim), nn.SiLU(), nn.Linear(net.dim, net.dim))

    def loss(self, seen: Tensor, action: Tensor) -> Tensor:
        """Weighted mean squared error of the predicted noise, at steps drawn evenly."""
        action = action.repeat_interleave(self.repeats, 0)
        t = torch.randint(self.train_steps, (len(action),), device=action.device)
        noise = torch.randn_like(action)
        memory = repeated(self.decoder.memory(seen), self.repeats)
        found = self.decoder(noised(action, noise, t, self.signal), self.condition(t), memory)
        error = F.mse_loss(found.float(), noise, reduction="none").mean((1, 2))
        return (error * self.weight.to(t.device)[t].to(error.dtype)).mean()

    def sample(self, seen: Tensor, generator: torch.Generator | None = None) -> Tensor:
        memory = self.decoder.memory(seen)
        shape = (len(seen), self.net.chunk, self.spec.action_dim)
        x = torch.randn(shape, device=seen.device, generator=generator)
        steps = trailing(self.train_steps, self.sample_steps)
        for t, before in zip(steps, [*steps[1:], -1], strict=True):
            condition = self.condition(torch.full((len(seen),), t, device=seen.device))
            x = ddim_step(x, self.decoder(x, condition, memory).float(), t, before, self.signal)
        return x

    def condition(self, t: Tensor) -> Tensor:
        """Steps (b,) as vectors (b, dim)."""
        return self.step_mlp(self.step(t[:, None].float()).to(self.step_mlp[0].weight.dtype))
