"""What all policies share: seeing, normalising, and a queue of actions. A policy is a model that stands on its own.

loss = policy(batch)                        # a batch of demonstrations, in LeRobot's keys
chunk = policy.predict_action_chunk(batch)  # (b, chunk, a), in the robot's units
policy.reset()
action = policy.select_action(observation)  # what the environment gave; a new chunk every `execute` calls
"""

import json
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.parquet import ACTION, DEPTH, IMAGES, STATE
from .observer import ImageEncoder, Observer, words

FLAT = 1e-4
"""A joint that moves less than this in all demonstrations stays where it is."""


@dataclass(frozen=True)
class Spec:
    """What a policy is for: cameras in order, sizes of state and action, pictures' side, and frames a second.

    tasks: the texts that it was trained on; the first is taken where none is given."""

    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    image_size: int
    fps: float
    tasks: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Net:
    """Sizes of a policy's transformer. chunk: actions predicted at once; execute: of those carried out before looking
    again (receding horizon). blind: share of the training examples whose robot state is hidden. In a demonstration the
    state soon tells where the arm is going, so that a policy can do without looking until it has to begin by itself."""

    dim: int = 256
    num_heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 4
    mlp_ratio: float = 4.0
    chunk: int = 50
    execute: int = 25
    blind: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.execute <= self.chunk:
            raise ValueError(f"execute is 1 to chunk = {self.chunk} actions, got {self.execute}")
        if not 0 <= self.blind <= 1:
            raise ValueError(f"blind is a share, 0 to 1, got {self.blind}")


class Policy(nn.Module):
    """Abstract. Normalisation, and what the policy is for, are buffers: a checkpoint needs no data beside it.

    States are normalised to mean 0 and spread 1, actions to [−1, 1] over all demonstrations; `set_statistics` sets
    both. An action that would leave the demonstrated range is clipped to it."""

    about: Tensor
    state_mean: Tensor
    state_std: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(self, encoder: ImageEncoder, spec: Spec, net: Net):
        super().__init__()
        self.spec, self.net = spec, net
        self.observer = Observer(
            encoder,
            cameras=len(spec.cameras),
            state_dim=spec.state_dim,
            dim=net.dim,
            layers=net.encoder_layers,
            num_heads=net.num_heads,
            mlp_ratio=net.mlp_ratio,
            blind=net.blind,
        )
        self.register_buffer("about", torch.tensor(list(json.dumps(asdict(spec)).encode()), dtype=torch.uint8))
        self.register_buffer("state_mean", torch.zeros(spec.state_dim))
        self.register_buffer("state_std", torch.ones(spec.state_dim))
        self.register_buffer("action_low", -torch.ones(spec.action_dim))
        self.register_buffer("action_high", torch.ones(spec.action_dim))
        self._queue: deque[Tensor] = deque()

    @torch.no_grad()
    def set_statistics(self, state: Tensor, action: Tensor) -> None:
        """Take normalisation from all states (n, s) and actions (n, a) of the demonstrations."""
        self.state_mean.copy_(state.mean(0))
        spread = state.std(0, correction=0)
        self.state_std.copy_(torch.where(spread > FLAT, spread, 1.0))
        low, high = action.amin(0), action.amax(0)
        self.action_low.copy_(low)
        self.action_high.copy_(torch.where(high - low < FLAT, low, high))

    @property
    def moving(self) -> Tensor:
        """Which numbers of an action (a,) the demonstrations change at all."""
        return self.action_high > self.action_low

    def normalised(self, action: Tensor) -> Tensor:
        """Actions in [−1, 1] over the demonstrated range; 0 for a joint that stays."""
        scale = torch.where(self.moving, self.action_high - self.action_low, 1.0)
        return torch.where(self.moving, 2 * (action - self.action_low) / scale - 1, 0.0)

    def restored(self, action: Tensor) -> Tensor:
        """Actions in the robot's units, inside the demonstrated range; a joint that stayed there stays here."""
        return self.action_low + (action.clamp(-1, 1) + 1) / 2 * (self.action_high - self.action_low)

    @abstractmethod
    def loss(self, seen: Tensor, action: Tensor) -> Tensor:
        """Mean loss, given observed tokens (b, n, dim) and normalised chunks (b, chunk, a)."""

    @abstractmethod
    def sample(self, seen: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Normalised chunks (b, chunk, a) for observed tokens (b, n, dim)."""

    def forward(self, batch: Mapping[str, Any], *, predict: bool = False) -> Tensor:
        """The loss of a batch with "action" (b, chunk, a); or, to predict, chunks of actions in the robot's units."""
        if predict:
            return self.restored(self.sample(self.observe(batch)).float())
        action = batch[ACTION]
        wanted = (self.net.chunk, self.spec.action_dim)
        if action.shape[1:] != wanted:
            raise ValueError(f"action must be (b, {wanted[0]}, {wanted[1]}) for this policy, got {tuple(action.shape)}")
        return self.loss(self.observe(batch), self.normalised(action))

    def observe(self, batch: Mapping[str, Any]) -> Tensor:
        """Observed tokens of a batch: see `forward` of `Observer`. Images uint8, or floats in [0, 1]."""
        deep = self.observer.encoder.wants_depth
        self._check(batch, deep)
        image = torch.stack([_to_unit(batch[IMAGES + name]) for name in self.spec.cameras], 1)
        depth = torch.stack([batch[DEPTH + name].float() for name in self.spec.cameras], 1) if deep else None
        state = (batch[STATE].float() - self.state_mean) / self.state_std
        return self.observer(image, depth, state, self._words(batch.get("task"), len(state)))

    @torch.no_grad()
    def predict_action_chunk(self, batch: Mapping[str, Any], generator: torch.Generator | None = None) -> Tensor:
        """Chunks of actions (b, chunk, a) in the robot's units."""
        chunk = self.restored(self.sample(self.observe(batch), generator).float())
        if not chunk.isfinite().all():
            raise ValueError("the policy gave actions that are not finite: its weights or the observation are damaged")
        return chunk

    @property
    def queued(self) -> int:
        """Actions that will be given before the policy looks again."""
        return len(self._queue)

    def reset(self) -> None:
        """Forget what is queued: call it when an episode begins."""
        self._queue.clear()

    def select_action(self, observation: Mapping[str, Any], generator: torch.Generator | None = None) -> Any:
        """The next action: an array (a,) for what an environment observed, a tensor (b, a) for a batch of tensors.

        Looks only when the queue is empty, every `execute` calls."""
        single = not isinstance(observation[STATE], Tensor)
        if not self._queue:
            batch = self._batch(observation) if single else observation
            chunk = self.predict_action_chunk(batch, generator)
            self._queue.extend(chunk[:, : self.net.execute].unbind(1))
        action = self._queue.popleft()
        return action[0].cpu().numpy() if single else action

    def _batch(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        """One observation of an environment, arrays, as a batch of one on this policy's device."""
        batch: dict[str, Any] = {}
        for key, value in observation.items():
            if key.startswith((IMAGES, DEPTH)) or key == STATE:
                tensor = torch.from_numpy(np.ascontiguousarray(value)).to(self.state_mean.device)
                batch[key] = (tensor.permute(2, 0, 1) if key.startswith(IMAGES) else tensor)[None]
        if "task" in observation:
            batch["task"] = [observation["task"]]
        return batch

    def _words(self, task: Tensor | Sequence[str] | None, count: int) -> Tensor:
        if isinstance(task, Tensor):
            return task
        return words(task or [self.spec.tasks[0]] * count).to(self.state_mean.device)

    def _check(self, batch: Mapping[str, Any], deep: bool) -> None:
        """Refuse, in words, what this policy cannot look at."""
        wanted = [STATE, *(IMAGES + n for n in self.spec.cameras), *(DEPTH + n for n in self.spec.cameras if deep)]
        missing = [key for key in wanted if key not in batch]
        if missing:
            raise ValueError(f"the observation lacks {', '.join(missing)}; it has {', '.join(sorted(batch))}")
        side = self.spec.image_size
        for key in wanted[1:]:
            if batch[key].shape[-2:] != (side, side):
                raise ValueError(f"{key} must be {side} × {side} pixels, got {tuple(batch[key].shape)}")
        if batch[STATE].shape[1:] != (self.spec.state_dim,):
            raise ValueError(f"{STATE} must be (b, {self.spec.state_dim}), got {tuple(batch[STATE].shape)}")


def read_spec(weights: Mapping[str, Tensor]) -> Spec:
    """What the policy with these weights is for."""
    if "about" not in weights:
        raise ValueError("this checkpoint holds no policy: train one, for example stringpe train kuka_small")
    found: dict[str, Any] = json.loads(bytes(weights["about"].tolist()))
    return Spec(**found | {"cameras": tuple(found["cameras"]), "tasks": tuple(found["tasks"])})


def _to_unit(image: Tensor) -> Tensor:
    """uint8, or floats in [0, 1], to [−1, 1]."""
    return image.float() / 127.5 - 1 if image.dtype == torch.uint8 else image * 2 - 1
