"""The diffusion transformer policy: noise that becomes a chunk of actions, given what is seen (section 4.3)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...baselines import SinCos
from ...models.initialise import fan_in_
from .diffusion import ddim_step, noise_of, noised, squared_cosine, trailing
from .layers import ChunkDecoder, repeated
from .observer import ImageEncoder
from .policy import Net, Policy, Spec

PREDICTIONS = ("epsilon", "sample")


class DiffusionPolicy(Policy):
    """An encoder over what is seen and a decoder that finds the chunk of actions in a noised one.

    train_steps: T of the squared-cosine schedule. sample_steps: of DDIM. repeats: noises that one observation is
    trained on in a step, since looking costs more than denoising. prediction: what the decoder gives, the noise
    "epsilon", as the paper's policies do, or the clean chunk, "sample". The actions of a smooth chunk tell each other
    through the noise, so that what is seen matters only where nearly all is noise. There an error of ε is a small part
    of an error of the action, and ε teaches to look late; the clean chunk does so from the start.
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
        prediction: str = "epsilon",
    ):
        super().__init__(encoder, spec, net)
        if prediction not in PREDICTIONS:
            raise ValueError(f"prediction is {' or '.join(map(repr, PREDICTIONS))}, got {prediction!r}")
        self.train_steps, self.sample_steps, self.repeats = train_steps, sample_steps, repeats
        self.prediction = prediction
        self.signal = squared_cosine(train_steps)  # a plain tensor: float64, whatever the model's dtype
        sizes = {"dim": net.dim, "layers": net.decoder_layers, "num_heads": net.num_heads, "mlp_ratio": net.mlp_ratio}
        self.decoder = ChunkDecoder(spec.action_dim, spec.action_dim, **sizes)  # type: ignore[arg-type]
        self.step = SinCos(net.dim, coord_dim=1)
        self.step_mlp = nn.Sequential(nn.Linear(net.dim, net.dim), nn.SiLU(), nn.Linear(net.dim, net.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The layers that read the denoising step; zero-initialised gates learn as fast as their condition is large."""
        fan_in_(self.step_mlp[0], gain=1.0)  # type: ignore[arg-type]
        fan_in_(self.step_mlp[2], gain=1.0)  # type: ignore[arg-type]

    def loss(self, seen: Tensor, action: Tensor) -> Tensor:
        """Mean squared error of the predicted noise or chunk, at steps drawn evenly."""
        action = action.repeat_interleave(self.repeats, 0)
        t = torch.randint(self.train_steps, (len(action),), device=action.device)
        noise = torch.randn_like(action)
        memory = repeated(self.decoder.memory(seen), self.repeats)
        found = self.decoder(noised(action, noise, t, self.signal), self.condition(t), memory)
        return F.mse_loss(found.float(), noise if self.prediction == "epsilon" else action)

    def sample(self, seen: Tensor, generator: torch.Generator | None = None) -> Tensor:
        memory = self.decoder.memory(seen)
        shape = (len(seen), self.net.chunk, self.spec.action_dim)
        x = torch.randn(shape, device=seen.device, generator=generator)
        steps = trailing(self.train_steps, self.sample_steps)
        for t, before in zip(steps, [*steps[1:], -1], strict=True):
            condition = self.condition(torch.full((len(seen),), t, device=seen.device))
            found = self.decoder(x, condition, memory).float()
            noise = found if self.prediction == "epsilon" else noise_of(x, found, t, self.signal)
            x = ddim_step(x, noise, t, before, self.signal)
        return x

    def condition(self, t: Tensor) -> Tensor:
        """Steps (b,) as vectors (b, dim)."""
        return self.step_mlp(self.step(t[:, None].float()).to(self.step_mlp[0].weight.dtype))
