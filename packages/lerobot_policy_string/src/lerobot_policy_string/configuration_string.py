"""The configuration of a stringpe policy in LeRobot: a recipe of stringpe, changes to it, and LeRobot's features."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lerobot.configs import FeatureType, NormalizationMode, PreTrainedConfig
from lerobot.optim import AdamWConfig, CosineDecayWithWarmupSchedulerConfig

from stringpe import recipes
from stringpe.recipes.overrides import from_dict, override
from stringpe.recipes.schema import Recipe, is_read
from stringpe.robots.calibration import fit_intrinsics, pose_key
from stringpe.robots.policies.base import PolicySpec
from stringpe.tasks.policy import PolicyTask

IMAGES = "observation.images."
DEPTH = "_depth"
"""The suffix of LeRobot's keys of depth: observation.images.<camera>_depth."""

_USED = (
    *("seed", "model.*", "policy.*", "data.image_size"),
    *("optim.lr", "optim.beta1", "optim.beta2", "optim.eps", "optim.weight_decay", "optim.clip", "optim.warmup_steps"),
)
"""Keys of a recipe that a policy in LeRobot depends on."""
_TRAINING_ONLY = (
    *("policy.cameras", "policy.stride", "policy.first", "policy.held_out"),
    *("policy.simulate", "policy.trials"),
)
"""Keys among these that only stringpe's own training reads."""


@PreTrainedConfig.register_subclass("string")
@dataclass
class StringConfig(PreTrainedConfig):
    """A policy of a stringpe recipe.

    recipe: kuka_small, aloha_small, kuka or aloha: sizes of the image encoder and of the policy, learning rate, … kind:
    diffusion or energy. encoding: a name of `stringpe.names()`. depth: none, lift, channel, normals or lift+normals.
    encoder: a run or checkpoint of stringpe from whose image encoder the policy's starts. Each of these that is left
    empty is taken from the recipe. changes: further settings of the recipe as `stringpe train` takes them, for example
    '["policy.chunk=32", "model.layers=4"]'.
    cameras: their names, by default all cameras of the data set. image_size: side in pixels of the resized images, 0
    for the recipe's. depth_unit: the unit of LeRobot's depth (`--dataset.depth_output_unit`). noise_seed: if set,
    episode i after loading draws its noise from this seed + i alone, as `stringpe eval` does.
    as_built, fps, tasks, calibration: filled in when a policy is created; a saved policy is built from them.
    calibration: of the cameras of a policy in the world frame, by name: "intrinsics" in pixels of images of side
    image_size, and "pose" for cameras that stand still; the poses of other cameras are a column
    `observation.camera.<camera>.pose`."""

    recipe: str = "kuka_small"
    kind: str = ""
    encoding: str = ""
    depth: str = ""
    encoder: str = ""
    changes: list[str] = field(default_factory=list)
    cameras: list[str] = field(default_factory=list)
    image_size: int = 0
    depth_unit: str = "mm"
    noise_seed: int | None = None
    as_built: str = ""
    fps: float = 0.0
    tasks: list[str] = field(default_factory=list)
    calibration: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: {
            "STATE": NormalizationMode.MEAN_STD,
            "ACTION": NormalizationMode.MIN_MAX,
            "VISUAL": NormalizationMode.IDENTITY,
        }
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_obs_steps != 1:
            raise ValueError(f"these policies see one observation at a time, received n_obs_steps={self.n_obs_steps}")
        if self.depth_unit not in ("m", "mm"):
            raise ValueError(f"depth_unit is m or mm, received {self.depth_unit!r}")
        self.build_recipe()  # reports a wrong name before any data is read

    def build_recipe(self) -> Recipe:
        """The recipe with all changes applied."""
        if self.as_built:
            return from_dict(json.loads(self.as_built))
        given = {
            "policy.kind": self.kind,
            "model.encoding": self.encoding,
            "model.depth": self.depth,
            "policy.encoder": self.encoder,
            "data.image_size": self.image_size,
        }
        changes = [*(f"{key}={value}" for key, value in given.items() if value), *self.changes]
        recipe = override(recipes.load(self.recipe), changes)
        if recipe.task != "policy":
            raise ValueError(f"{self.recipe} is a recipe for {recipe.task}, not for a policy: use kuka_small, …")
        keys = [change.partition("=")[0] for change in changes]
        unread = [key for key in keys if not is_read(key, _USED) or key in _TRAINING_ONLY]
        if unread:
            raise ValueError(f"{unread[0]} would change nothing: LeRobot's data, loop and options determine it")
        PolicyTask.check(recipe, keys)
        return recipe

    def camera_keys(self) -> dict[str, str]:
        """LeRobot's keys of the images, by camera, in the policy's order."""
        available = {
            key.removeprefix("observation.").removeprefix("images."): key
            for key, feature in sorted(self.image_features.items())
            if feature.shape[0] == 3
        }
        if not available:
            raise ValueError("these policies need at least one camera, and the features contain none")
        missing = [name for name in self.cameras if name not in available]
        if missing:
            raise ValueError(f"there is no camera {', '.join(missing)}; there are {', '.join(available)}")
        return {name: available[name] for name in self.cameras or available}

    def depth_keys(self) -> dict[str, str]:
        """LeRobot's keys of the depth, by camera; none for a policy that does not see depth."""
        recipe = self.build_recipe()
        if recipe.model.depth == "none" and recipe.policy.frame != "world":
            return {}
        cameras = self.camera_keys()
        keys = {name: f"{IMAGES}{name}{DEPTH}" for name in cameras}
        missing = [key for key in keys.values() if key not in self.image_features]
        if missing:
            raise ValueError(
                f"depth={recipe.model.depth} in the {recipe.policy.frame} frame needs {', '.join(missing)}; there are "
                f"{', '.join(sorted(self.image_features))}: record depth, choose other cameras, or set depth=none"
            )
        return keys

    def spec(self) -> PolicySpec:
        """The cameras, dimensions and tasks that the policy is built for."""
        assert self.robot_state_feature is not None
        assert self.action_feature is not None
        state, action = self.robot_state_feature.shape[0], self.action_feature.shape[0]
        size = self.build_recipe().data.image_size
        return PolicySpec(tuple(self.camera_keys()), state, action, size, self.fps or 10.0, tuple(self.tasks) or ("",))

    def calibrate(self, features: Mapping[str, Any]) -> None:
        """Store the calibration of the cameras from a data set's features, for a policy in the world frame."""
        recipe = self.build_recipe()
        if recipe.policy.frame != "world":
            return
        for name, key in self.camera_keys().items():
            info = features[key].get("info") or {}
            if "intrinsics" not in info or not ("pose" in info or pose_key(name) in features):
                raise ValueError(
                    f"policy.frame=world needs calibrated cameras: give intrinsics and pose in the info of {key} in "
                    f"meta/info.json, or the column {pose_key(name)}"
                )
            fitted = fit_intrinsics(info["intrinsics"], features[key]["shape"][:2], recipe.data.image_size)
            self.calibration[name] = {"intrinsics": fitted.tolist()} | (
                {"pose": info["pose"]} if "pose" in info else {}
            )

    def validate_features(self) -> None:
        if self.robot_state_feature is None or self.action_feature is None:
            raise ValueError("these policies need observation.state and action among the features")
        self.depth_keys()

    def drop_unused_features(self) -> None:
        """Keep only the features that the policy uses, so that processors ignore the rest."""
        used = {*self.camera_keys().values(), *self.depth_keys().values()}
        self.input_features = {
            key: feature
            for key, feature in (self.input_features or {}).items()
            if key in used or (feature.type is FeatureType.STATE and key == "observation.state")
        }

    def get_optimizer_preset(self) -> AdamWConfig:
        o = self.build_recipe().optim
        betas = (o.beta1, o.beta2)
        return AdamWConfig(lr=o.lr, betas=betas, eps=o.eps, weight_decay=o.weight_decay, grad_clip_norm=o.clip)

    def get_scheduler_preset(self) -> CosineDecayWithWarmupSchedulerConfig:
        recipe: Any = self.build_recipe()
        return CosineDecayWithWarmupSchedulerConfig(
            num_warmup_steps=recipe.optim.warmup_steps,
            num_decay_steps=recipe.loop.steps or 100_000,
            peak_lr=recipe.optim.lr,
            decay_lr=recipe.optim.lr / 1000,
        )

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> list[int]:
        return list(range(self.build_recipe().policy.chunk))

    @property
    def reward_delta_indices(self) -> None:
        return None
