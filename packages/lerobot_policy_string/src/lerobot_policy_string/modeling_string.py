"""A policy of stringpe behind LeRobot's interface. LeRobot's processors normalise; the policy itself does not."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from stringpe.robots.calibration import intrinsics_key, pose_key
from stringpe.robots.data.columns import ACTION, DEPTH, IMAGES, STATE, UNITS
from stringpe.tasks.load import refuse_foreign_code
from stringpe.tasks.policy import new_policy

from .configuration_string import StringConfig


class StringPolicy(PreTrainedPolicy):
    """A diffusion or energy policy over one or more cameras, with or without depth."""

    config_class = StringConfig
    name = "string"

    def __init__(self, config: StringConfig, dataset_meta: Any = None, **_: Any):
        super().__init__(config)
        config.validate_features()
        config.drop_unused_features()
        recipe = config.build_recipe()
        if config.as_built:  # a saved policy is data and must not choose which modules are imported
            refuse_foreign_code(recipe, Path("this policy's config.json"))
        if dataset_meta is not None and not config.as_built:
            config.fps = float(dataset_meta.fps)
            config.tasks = [str(text) for text in dataset_meta.tasks.index]
            config.calibrate(dataset_meta.features)
        self.model = new_policy(recipe, config.spec(), pretrained=not config.as_built)
        config.as_built = json.dumps(recipe.to_dict())
        self._cameras, self._depths = config.camera_keys(), config.depth_keys()
        self._queue: deque[Tensor] = deque()
        self._noise: list[torch.Generator] | None = None
        self._episodes = 0  # begun since loading

    def get_optim_params(self) -> list[dict[str, Any]]:
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, None]:
        """The loss of a batch of demonstrations with chunks of actions (b, chunk, a), normalised."""
        return self.model(self._observation(batch) | {ACTION: batch[ACTION]}), None

    def reset(self) -> None:
        self._queue.clear()
        self._noise = None

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """Chunks (b, chunk, a), normalised as LeRobot's processors do."""
        chunk: Tensor = self.model.predict_action_chunk(self._observation(batch), self._generators(len(batch[STATE])))
        return chunk

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """The next actions (b, a). The network runs only when no planned action is left."""
        if not self._queue:
            chunk = self.predict_action_chunk(batch)
            self._queue.extend(chunk[:, : self.model.net.execute].unbind(1))
        return self._queue.popleft()

    def _generators(self, count: int) -> list[torch.Generator] | None:
        """One source of noise per row, which lasts for an episode; None for torch's global one."""
        if self.config.noise_seed is None:
            return None
        if self._noise is None:
            first = self.config.noise_seed + self._episodes
            self._noise = [torch.Generator().manual_seed(first + row) for row in range(count)]
            self._episodes += count
        return self._noise

    def _observation(self, batch: dict[str, Any]) -> dict[str, Any]:
        """LeRobot's batch in stringpe's form: images in [−1, 1], depth in metres, both of the policy's size."""
        side = self.model.spec.image_size
        observation: dict[str, Any] = {STATE: batch[STATE]}
        if batch.get("task") is not None:
            observation["task"] = list(batch["task"])
        for name, key in self._cameras.items():
            image = batch[key].float() / 255 if batch[key].dtype == torch.uint8 else batch[key].float()
            if image.shape[-2:] != (side, side):
                image = F.interpolate(image, (side, side), mode="bilinear", antialias=True)
            observation[IMAGES + name] = 2 * image - 1
        for name, key in self._depths.items():
            depth = batch[key].float() * UNITS[self.config.depth_unit]  # (b, 1, h, w)
            if depth.shape[-2:] != (side, side):
                # The nearest pixel, so that missing depths are not mixed with measured ones.
                depth = F.interpolate(depth, (side, side), mode="nearest-exact")
            observation[DEPTH + name] = depth[:, 0]
        for name, calibration in self.config.calibration.items():
            observation |= _calibrate_camera(name, calibration, batch)
        return observation


def _calibrate_camera(name: str, calibration: dict[str, Any], batch: dict[str, Any]) -> dict[str, Tensor]:
    """The intrinsics (b, 3, 3) and the pose (b, 4, 4) of a camera."""
    state = batch[STATE]
    pose = batch[pose_key(name)] if pose_key(name) in batch else state.new_tensor(calibration["pose"])
    intrinsics = state.new_tensor(calibration["intrinsics"])
    return {
        intrinsics_key(name): intrinsics.expand(len(state), 3, 3),
        pose_key(name): pose.to(state).reshape(-1, 4, 4).expand(len(state), 4, 4),
    }
