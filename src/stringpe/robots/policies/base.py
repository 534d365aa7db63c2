"""What all policies share: observing, normalising, and planning chunks of actions. A policy needs no data beside it.

loss = policy(batch)                        # a batch of demonstrations, in LeRobot's keys
chunk = policy.predict_action_chunk(batch)  # (b, chunk, a), in the robot's units
policy.reset()
action = policy.select_action(observation)  # for one environment: a new chunk every `execute` calls
plans = policy.plan_actions(observations, generators)  # for several environments at once: (n, execute, a)
"""

import json
from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...checks import check_choice
from ...data.transforms import to_unit
from ...io.files import find_mismatch
from ...models.blocks import check_encoding
from ...models.depth import FRAMES
from ..calibration import CAMERA, calibration_keys, stack_calibration
from ..data.columns import ACTION, DEPTH, IMAGES, STATE
from .noise import Generators
from .observer import ImageEncoder, Observer, hash_words

FLAT = 1e-4
"""A joint whose demonstrated actions span less than this is held still."""

WIDTH = 8
"""Observations per call of the network in `RobotPolicy.plan_actions`."""


@dataclass(frozen=True)
class PolicySpec:
    """What a policy is made for: its cameras in order, the sizes of state and action, the side of the pictures in
    pixels, and actions per second.

    tasks: the texts that it was trained on; the first is used where an observation has none."""

    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    image_size: int
    fps: float
    tasks: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class PolicyNet:
    """A policy's transformer: its sizes and its frame. chunk: actions predicted at once; execute: how many of them are
    carried out before the next observation (receding horizon). blind: share of the training examples whose robot state
    is hidden. In a demonstration the state soon reveals where the arm is going; a policy that relies on it cannot begin
    an episode by itself.

    frame: "camera", patches of each camera in its image; or "world", all of them in the robot's frame, from depth and
    calibration: see `observer`. encoding, encoding_options: what acts on these points, as in `stringpe.ViT`; absolute
    embeddings and "none" leave what is added to the tokens. The camera frame does not use them."""

    dim: int = 256
    num_heads: int = 4
    encoder_layers: int = 2
    decoder_layers: int = 4
    mlp_ratio: float = 4.0
    chunk: int = 50
    execute: int = 25
    blind: float = 0.0
    frame: str = "camera"
    encoding: str = "cayley"
    encoding_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("frame", self.frame, FRAMES)
        check_encoding(self.encoding)
        if not 1 <= self.execute <= self.chunk:
            raise ValueError(f"execute must be from 1 to chunk = {self.chunk} actions, got {self.execute}")
        if not 0 <= self.blind <= 1:
            raise ValueError(f"blind is a share and must be from 0 to 1, got {self.blind}")

    @property
    def decoder_sizes(self) -> dict[str, Any]:
        """The sizes of a `ChunkDecoder`, as its keywords."""
        return {
            "dim": self.dim,
            "layers": self.decoder_layers,
            "num_heads": self.num_heads,
            "mlp_ratio": self.mlp_ratio,
        }


class RobotPolicy(nn.Module):
    """Abstract. The normalisation and the `PolicySpec` are buffers, so that a checkpoint holds all that acting needs.

    States are normalised to mean 0 and standard deviation 1, actions to [−1, 1] over all demonstrations;
    `set_statistics` sets both. An action outside the demonstrated range is clipped to it."""

    about: Tensor
    state_mean: Tensor
    state_std: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(self, encoder: ImageEncoder, spec: PolicySpec, net: PolicyNet):
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
            frame=net.frame,
            encoding=net.encoding,
            encoding_options=net.encoding_options,
        )
        self.register_buffer("about", torch.tensor(list(json.dumps(asdict(spec)).encode()), dtype=torch.uint8))
        self.register_buffer("state_mean", torch.zeros(spec.state_dim))
        self.register_buffer("state_std", torch.ones(spec.state_dim))
        self.register_buffer("action_low", -torch.ones(spec.action_dim))
        self.register_buffer("action_high", torch.ones(spec.action_dim))
        self._queue: deque[Tensor] = deque()

    @torch.no_grad()
    def set_statistics(self, state: Tensor, action: Tensor) -> None:
        """Set the normalisation from all states (n, s) and actions (n, a) of the demonstrations."""
        self.state_mean.copy_(state.mean(0))
        spread = state.std(0, correction=0)
        self.state_std.copy_(torch.where(spread > FLAT, spread, 1.0))
        low, high = action.amin(0), action.amax(0)
        self.action_low.copy_(low)
        self.action_high.copy_(torch.where(high - low < FLAT, low, high))

    @property
    def moving(self) -> Tensor:
        """Which numbers of an action (a,) differ between demonstrations at all."""
        return self.action_high > self.action_low

    def normalise(self, action: Tensor) -> Tensor:
        """Actions mapped to [−1, 1] over the demonstrated range; 0 for a joint that is held still."""
        scale = torch.where(self.moving, self.action_high - self.action_low, 1.0)
        return torch.where(self.moving, 2 * (action - self.action_low) / scale - 1, 0.0)

    def denormalise(self, action: Tensor) -> Tensor:
        """Actions in the robot's units, clipped to the demonstrated range: the inverse of `normalise`."""
        return self.action_low + (action.clamp(-1, 1) + 1) / 2 * (self.action_high - self.action_low)

    @abstractmethod
    def loss(self, observed: Tensor, action: Tensor) -> Tensor:
        """Mean loss, given observed tokens (b, n, dim) and normalised chunks (b, chunk, a)."""

    @abstractmethod
    def sample(self, observed: Tensor, generators: Generators = None) -> Tensor:
        """Normalised chunks (b, chunk, a) for observed tokens (b, n, dim). Row i draws its noise from generators[i]
        alone; without generators, all rows draw from torch's global one."""

    def forward(self, batch: Mapping[str, Any], *, predict: bool = False) -> Tensor:
        """The loss of a batch with "action" (b, chunk, a); with predict=True, chunks in the robot's units."""
        if predict:
            return self.denormalise(self.sample(self.observe(batch)).float())
        action = batch[ACTION]
        wanted = (self.net.chunk, self.spec.action_dim)
        if action.shape[1:] != wanted:
            raise ValueError(f"action must be (b, {wanted[0]}, {wanted[1]}) for this policy, got {tuple(action.shape)}")
        return self.loss(self.observe(batch), self.normalise(action))

    def observe(self, batch: Mapping[str, Any]) -> Tensor:
        """Observed tokens of a batch: see `Observer.forward`. Images (b, 3, S, S) are uint8, or floats in [−1, 1]."""
        with_depth = self.observer.wants_depth
        self._check(batch, with_depth)
        images = (batch[IMAGES + name] for name in self.spec.cameras)
        image = torch.stack([to_unit(x) if x.dtype == torch.uint8 else x for x in images], 1)
        depth = torch.stack([batch[DEPTH + name].float() for name in self.spec.cameras], 1) if with_depth else None
        state = (batch[STATE].float() - self.state_mean) / self.state_std
        calibration = stack_calibration(batch, self.spec.cameras) if self.net.frame == "world" else None
        return self.observer(image, depth, state, self._words(batch.get("task"), len(state)), calibration)

    @torch.no_grad()
    def predict_action_chunk(self, batch: Mapping[str, Any], generators: Generators = None) -> Tensor:
        """Chunks of actions (b, chunk, a) in the robot's units."""
        chunk = self.denormalise(self.sample(self.observe(batch), generators).float())
        if not chunk.isfinite().all():
            raise ValueError("the policy gave actions that are not finite: its weights or the observation are damaged")
        return chunk

    def plan_actions(
        self, observations: Sequence[Mapping[str, Any]], generators: Sequence[torch.Generator], width: int = WIDTH
    ) -> NDArray[np.float32]:
        """Actions (n, execute, a) to carry out before the next observation, for n environments at once.

        Observation i draws its noise from generators[i]. The network always sees `width` rows, the last ones repeated
        where there are fewer observations: matrix products of other sizes round differently, so a plan would depend on
        how many other environments are under way. With a fixed width it depends on its observation and its generator
        alone (on a CPU; tests/robots/test_policies.py checks it)."""
        plans = []
        for start in range(0, len(observations), width):
            rows = list(observations[start : start + width])
            missing = width - len(rows)
            padding = [torch.Generator().manual_seed(0) for _ in range(missing)]
            noise = [*generators[start : start + width], *padding]
            chunk = self.predict_action_chunk(self._batch(rows + rows[-1:] * missing), noise)
            plans.append(chunk[: len(rows), : self.net.execute].cpu().numpy())
        return np.concatenate(plans)

    def reset(self) -> None:
        """Forget the actions that `select_action` has planned: call it when an episode begins."""
        self._queue.clear()

    def select_action(self, observation: Mapping[str, Any], generators: Generators = None) -> Any:
        """The next action: an array (a,) for one environment's observation, a tensor (b, a) for a batch of tensors.

        The network runs only when no planned action is left, every `execute` calls."""
        single = not isinstance(observation[STATE], Tensor)
        if not self._queue:
            batch = self._batch([observation]) if single else observation
            chunk = self.predict_action_chunk(batch, generators)
            self._queue.extend(chunk[:, : self.net.execute].unbind(1))
        action = self._queue.popleft()
        return action[0].cpu().numpy() if single else action

    def _batch(self, observations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Observations of environments, dictionaries of arrays, as one batch on this policy's device."""
        batch: dict[str, Any] = {}
        for key in observations[0]:
            if key.startswith((IMAGES, DEPTH, CAMERA)) or key == STATE:
                tensor = torch.from_numpy(np.stack([each[key] for each in observations])).to(self.state_mean.device)
                batch[key] = tensor.permute(0, 3, 1, 2) if key.startswith(IMAGES) else tensor
        if "task" in observations[0]:
            batch["task"] = [each["task"] for each in observations]
        return batch

    def _words(self, task: Tensor | Sequence[str] | None, count: int) -> Tensor:
        if isinstance(task, Tensor):
            return task
        return hash_words(task or [self.spec.tasks[0]] * count).to(self.state_mean.device)

    def _check(self, batch: Mapping[str, Any], with_depth: bool) -> None:
        """Refuse an observation that lacks something or has another size."""
        wanted = [
            STATE,
            *(IMAGES + n for n in self.spec.cameras),
            *(DEPTH + n for n in self.spec.cameras if with_depth),
        ]
        missing = [key for key in wanted if key not in batch]
        if missing:
            raise ValueError(f"the observation lacks {', '.join(missing)}; it has {', '.join(sorted(batch))}")
        self._check_calibration(batch)
        side = self.spec.image_size
        for key in wanted[1:]:
            if batch[key].shape[-2:] != (side, side):
                raise ValueError(f"{key} must be {side} × {side} pixels, got {tuple(batch[key].shape)}")
        if batch[STATE].shape[1:] != (self.spec.state_dim,):
            raise ValueError(f"{STATE} must be (b, {self.spec.state_dim}), got {tuple(batch[STATE].shape)}")

    def _check_calibration(self, batch: Mapping[str, Any]) -> None:
        missing = [key for key in calibration_keys(self.spec.cameras) if key not in batch]
        if self.net.frame == "world" and missing:
            raise ValueError(
                f"this policy sees the world frame and needs calibrated cameras; the observation lacks "
                f"{', '.join(missing)}: make the environment with calibration=True, or train with policy.frame=camera"
            )


def read_spec(weights: Mapping[str, Tensor]) -> PolicySpec:
    """The `PolicySpec` that the weights of a policy hold."""
    if "about" not in weights:
        raise ValueError("this is not the checkpoint of a policy: train one, for example stringpe train kuka_small")
    shape = {"cameras": [str], "state_dim": int, "action_dim": int, "image_size": int, "fps": float, "tasks": [str]}
    try:
        fields: dict[str, Any] = json.loads(bytes(weights["about"].tolist()))
        wrong = find_mismatch(fields, shape)
    except (ValueError, TypeError, RecursionError) as error:
        wrong = str(error)
    if wrong or set(fields) != set(shape):
        raise ValueError(f"the weights do not say what the policy was made for ({wrong}): use another checkpoint")
    return PolicySpec(**fields | {"cameras": tuple(fields["cameras"]), "tasks": tuple(fields["tasks"])})
