"""The energy policy: it scores how unlikely a chunk of actions is, given an observation, by ranking (section 4.4).

Ranking noise-contrastive estimation: cross-entropy that picks the demonstrated chunk y among K samples of a proposal
q(y|x), with scores −E(x, y) − log q(y|x); q itself is trained by maximum likelihood. Acting starts from samples of q
and takes Langevin steps down the energy.

A chunk has hundreds of numbers, and log q(y|x) differs by hundreds between samples. The energy is therefore written as
a correction of the proposal, E(x, y) = f(x, y) − log q(y|x): the scores are then −f, which is 0 at the start, and the
density that is learned is q · exp(−f).

If the numbers of a chunk were drawn independently, their jitter alone would distinguish a sample from a demonstration,
and the energy would never need the image. The proposal's Gaussians are therefore independent over the chunk's
frequencies in time (an orthonormal cosine transform), with small standard deviations where demonstrations are smooth:
samples are smooth, too, and differ from a demonstration in where they lead. For the same reason the demonstrations get
noise as large as the smallest standard deviation of the proposal; otherwise a demonstration would be recognised as the
one chunk without jitter.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...rotate import full_precision
from .base import PolicyNet, PolicySpec, RobotPolicy
from .chunk_decoder import ChunkDecoder, Memory, repeat_memory
from .noise import Generators, draw_normal
from .observer import ImageEncoder

_NOISE = 0.1  # of demonstrations, and the smallest standard deviation: with less, the image would hardly matter
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def cosines(steps: int) -> Tensor:
    """The orthonormal cosine transform (DCT-II) as a matrix (frequencies, steps); row 0 is the mean times √steps."""
    k, t = torch.arange(steps)[:, None], torch.arange(steps)[None]
    rows = torch.cos(math.pi * (t + 0.5) * k / steps) * math.sqrt(2 / steps)
    rows[0] /= math.sqrt(2)
    return rows


@dataclass(frozen=True)
class Mixture:
    """Gaussians over whole chunks: log weights (b, m), means (b, m, steps, a), and logarithms of the standard
    deviations (b, m, frequencies, a) along the rows of an orthonormal basis (frequencies, steps)."""

    log_weight: Tensor
    mean: Tensor
    log_std: Tensor
    basis: Tensor

    def distance(self, y: Tensor) -> Tensor:
        """Mean squared distance of chunks (b, steps, a) to the nearest of the means."""
        return (y[:, None] - self.mean).square().mean((-2, -1)).amin(1).mean()

    def log_prob(self, y: Tensor) -> Tensor:
        """(b, k) for chunks (b, k, steps, a)."""
        off = self._times(self.basis, y[:, :, None] - self.mean[:, None])  # (b, k, m, frequencies, a)
        z = off * (-self.log_std[:, None]).exp()
        each = (-0.5 * z.square() - self.log_std[:, None] - _HALF_LOG_2PI).sum((-2, -1))
        return (each + self.log_weight[:, None]).logsumexp(-1)

    def sample(self, count: int, generators: Generators = None) -> tuple[Tensor, Tensor]:
        """Chunks (b, count, steps, a), and the standard deviations of the Gaussian that each came from."""
        which = _draw_indices(self.log_weight.exp(), count, generators)  # (b, count)
        index = which[..., None, None].expand(-1, -1, *self.mean.shape[2:])
        mean, std = self.mean.gather(1, index), self.log_std.gather(1, index).exp()
        return mean + self.noise(std, generators), std

    def noise(self, std: Tensor, generators: Generators) -> Tensor:
        """Chunks of noise with these standard deviations along the basis."""
        return self._times(self.basis.mT, std * draw_normal(std.shape, std.device, generators))

    def precondition(self, slope: Tensor, std: Tensor) -> Tensor:
        """A gradient times the covariance that has these standard deviations along the basis."""
        return self._times(self.basis.mT, std.square() * self._times(self.basis, slope))

    @staticmethod
    def _times(basis: Tensor, y: Tensor) -> Tensor:
        """In float32 whatever the autocast state: where std is a hundredth, rounding to bf16 changes log q by tens."""
        with full_precision(y):
            return basis @ y

    def detach(self) -> "Mixture":
        return Mixture(self.log_weight.detach(), self.mean.detach(), self.log_std.detach(), self.basis)


class EnergyPolicy(RobotPolicy):
    """A proposal (a mixture of Gaussians over chunks) and a correction f, both decoders over the observation.

    modes: Gaussians of the proposal. negatives: K of the ranking. candidates: chunks from which Langevin steps start;
    the one of lowest energy is chosen. langevin_steps, langevin_rate: number of steps, and their size in units of the
    proposal's variance. The last third of the steps adds no noise.
    """

    def __init__(
        self,
        encoder: ImageEncoder,
        spec: PolicySpec,
        net: PolicyNet,
        *,
        modes: int = 4,
        negatives: int = 16,
        candidates: int = 8,
        langevin_steps: int = 12,
        langevin_rate: float = 0.1,
    ):
        super().__init__(encoder, spec, net)
        self.modes, self.negatives, self.candidates = modes, negatives, candidates
        self.langevin_steps, self.langevin_rate = langevin_steps, langevin_rate
        self.proposal = ChunkDecoder(1, 2 * modes * spec.action_dim + modes, **net.decoder_sizes)
        self.correction = ChunkDecoder(spec.action_dim, 1, **net.decoder_sizes)
        self.condition = nn.Parameter(torch.empty(1, net.dim))
        self.start = nn.Parameter(torch.empty(modes, 1, spec.action_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """At zero, the layers that read the condition would never learn, and modes must differ to part."""
        nn.init.normal_(self.condition)
        nn.init.normal_(self.start, std=0.5)

    def propose(self, observed: Tensor) -> Mixture:
        """q(y|x)."""
        blank = observed.new_ones(len(observed), self.net.chunk, 1)
        output = self.proposal(blank, self._condition(observed), self.proposal.memory(observed)).float()
        gaussians, weight = output.split([2 * self.modes * self.spec.action_dim, self.modes], dim=-1)
        mean, log_std = gaussians.unflatten(-1, (2, self.modes, -1)).permute(2, 0, 3, 1, 4)  # (b, m, steps, a) each
        basis = cosines(self.net.chunk).to(mean)
        # A soft floor: below a hard one there would be no gradient.
        log_std = torch.logaddexp(log_std - 1, torch.full_like(log_std, math.log(_NOISE)))
        return Mixture(weight.mean(1).log_softmax(-1), self.start + mean, log_std, basis)

    def energy(self, y: Tensor, memory: Memory, proposal: Mixture) -> Tensor:
        """E(x, y) = f(x, y) − log q(y|x), (b, k), for chunks (b, k, steps, a) and the correction's memory of x."""
        count = y.shape[1]
        flat = y.flatten(0, 1)
        output = self.correction(flat, self._condition(flat), repeat_memory(memory, count))
        return output.float().sum((-2, -1)).unflatten(0, (-1, count)) - proposal.log_prob(y)

    def loss(self, observed: Tensor, action: Tensor) -> Tensor:
        """Ranking loss, plus the proposal's negative log likelihood per number, plus its distance.

        The likelihood divides by the variance and so attends first to frequencies that hardly vary; it learns late
        where a chunk leads. The plain distance weighs all frequencies alike."""
        proposal = self.propose(observed)
        noisy = (action + _NOISE * torch.randn_like(action))[:, None]
        likelihood = proposal.log_prob(noisy)[:, 0] / action[0].numel()
        fixed = proposal.detach()  # the ranking trains the energy, not the proposal
        negatives, _ = fixed.sample(self.negatives)
        y = torch.cat([noisy, negatives], dim=1)
        scores = -self.energy(y, self.correction.memory(observed), fixed) - fixed.log_prob(y)
        first = torch.zeros(len(y), dtype=torch.long, device=y.device)
        return F.cross_entropy(scores, first) - likelihood.mean() + proposal.distance(action)

    def sample(self, observed: Tensor, generators: Generators = None) -> Tensor:
        proposal, memory = self.propose(observed).detach(), _detach(self.correction.memory(observed))
        y, std = proposal.sample(self.candidates, generators)
        for i in range(self.langevin_steps):
            with torch.enable_grad():
                y = y.detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.energy(y, memory, proposal).sum(), y)
            y = y.detach() - 0.5 * self.langevin_rate * proposal.precondition(slope, std)
            if i < self.langevin_steps * 2 // 3:
                y = y + self.langevin_rate**0.5 * proposal.noise(std, generators)
        with torch.no_grad():
            best = self.energy(y, memory, proposal).argmin(1)
        return y[torch.arange(len(y), device=y.device), best]

    def _condition(self, like: Tensor) -> Tensor:
        return self.condition.expand(len(like), -1).to(like.dtype)


def _draw_indices(weights: Tensor, count: int, generators: Generators) -> Tensor:
    """`count` indices per row of weights (b, m), drawn in proportion to them; row i from generators[i]."""
    if generators is None:
        return torch.multinomial(weights, count, replacement=True)
    rows = zip(weights.cpu().split(1), generators, strict=True)
    return torch.cat([torch.multinomial(row, count, replacement=True, generator=g) for row, g in rows]).to(
        weights.device
    )


def _detach(memory: Memory) -> Memory:
    return [(k.detach(), v.detach()) for k, v in memory]
