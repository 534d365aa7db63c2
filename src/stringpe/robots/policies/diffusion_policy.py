"""The diffusion transformer policy: it turns noise into a chunk of actions, given an observation (section 4.3)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...baselines import SinCos
from ...checks import check_choice
from ...models.initialise import draw_by_fan_in
from .base import PolicyNet, PolicySpec, RobotPolicy
from .chunk_decoder import ChunkDecoder, repeat_memory
from .noise import (
    Generators,
    add_noise,
    ddim_step,
    draw_normal,
    noise_of,
    squared_cosine,
    trailing_steps,
)
from .observer import ImageEncoder

PREDICTIONS = ("epsilon", "sample")


class DiffusionPolicy(RobotPolicy):
    """An encoder over the observation and a decoder that recovers a chunk of actions from a noised one.

    train_steps: T of the squared-cosine schedule. sample_steps: of DDIM. repeats: noised chunks per observation in a
    training step, since encoding the observation costs more than denoising. prediction: what the decoder predicts, the
    noise ("epsilon", as the paper's policies do) or the clean chunk ("sample"). The actions of a smooth chunk reveal
    each other through the noise, so the observation matters only where nearly everything is noise. There, an error of ε
    is a small part of an error of the action, and a policy that predicts ε learns to use its cameras late.
    """

    def __init__(
        self,
        encoder: ImageEncoder,
        spec: PolicySpec,
        net: PolicyNet,
        *,
        train_steps: int = 100,
        sample_steps: int = 10,
        repeats: int = 1,
        prediction: str = "epsilon",
    ):
        super().__init__(encoder, spec, net)
        check_choice("prediction", prediction, PREDICTIONS)
        self.train_steps, self.sample_steps, self.repeats = train_steps, sample_steps, repeats
        self.prediction = prediction
        self.signal = squared_cosine(train_steps)  # a plain tensor: float64, whatever the model's dtype
        self.decoder = ChunkDecoder(spec.action_dim, spec.action_dim, **net.decoder_sizes)
        self.step = SinCos(net.dim, coord_dim=1)
        self.step_mlp = nn.Sequential(nn.Linear(net.dim, net.dim), nn.SiLU(), nn.Linear(net.dim, net.dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The layers that read the denoising step; zero-initialised gates learn as fast as their condition is large."""
        draw_by_fan_in(self.step_mlp[0], gain=1.0)  # type: ignore[arg-type]
        draw_by_fan_in(self.step_mlp[2], gain=1.0)  # type: ignore[arg-type]

    def loss(self, observed: Tensor, action: Tensor) -> Tensor:
        """Mean squared error of the predicted noise or chunk, at steps drawn evenly."""
        action = action.repeat_interleave(self.repeats, 0)
        t = torch.randint(self.train_steps, (len(action),), device=action.device)
        noise = torch.randn_like(action)
        memory = repeat_memory(self.decoder.memory(observed), self.repeats)
        noised = add_noise(action, noise, t, squared_cosine(self.train_steps, action.device))
        predicted = self.decoder(noised, self.condition(t), memory)
        return F.mse_loss(predicted.float(), noise if self.prediction == "epsilon" else action)

    def sample(self, observed: Tensor, generators: Generators = None) -> Tensor:
        memory = self.decoder.memory(observed)
        x = draw_normal((len(observed), self.net.chunk, self.spec.action_dim), observed.device, generators)
        steps = trailing_steps(self.train_steps, self.sample_steps)
        for t, before in zip(steps, [*steps[1:], -1], strict=True):
            condition = self.condition(torch.full((1,), t, device=observed.device))  # the same for all rows
            predicted = self.decoder(x, condition, memory).float()
            noise = predicted if self.prediction == "epsilon" else noise_of(x, predicted, t, self.signal)
            x = ddim_step(x, noise, t, before, self.signal)
        return x

    def condition(self, t: Tensor) -> Tensor:
        """Steps (b,) as vectors (b, dim)."""
        return self.step_mlp(self.step(t[:, None].float()).to(self.step_mlp[0].weight.dtype))
