"""From a recipe to a policy, new or from a checkpoint, and where its image encoder starts."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..hosts.attach import attach
from ..io.checkpoint import model_folder, read_model
from ..io.registry import look_up
from ..recipes.schema import Recipe
from ..robots.policies.base import Net, RobotPolicy, Spec, read_spec
from ..robots.policies.diffusion_policy import DiffusionPolicy
from ..robots.policies.energy_policy import EnergyPolicy
from ..robots.policies.observer import ImageEncoder
from ..robots.policies.vision_tower import TOWER, build_tower, load_tower, read_tower_config
from .backbone import backbone, start_new
from .build import fill_in, fit, load_run, refuse_other_shapes, start_folder, start_vit

TOWERS = ("siglip:", "paligemma:")
"""`policy.encoder` that begins with one of these names a folder of transformers."""

_OWN = ("absolute", "none")  # encodings that leave a tower of transformers as it is

POLICIES: dict[str, Callable[..., RobotPolicy]] = {"diffusion": DiffusionPolicy, "energy": EnergyPolicy}
"""The kinds of policies. The options of each, its keyword parameters, are keys of the recipe: policy.repeats, …"""


def option_keys(kind: str) -> tuple[str, ...]:
    """The keys of a recipe that only a policy of this kind reads."""
    parameters = inspect.signature(look_up("policy.kind", kind, POLICIES)).parameters.values()
    return tuple(f"policy.{p.name}" for p in parameters if p.kind is p.KEYWORD_ONLY)


def new_policy(
    recipe: Recipe, spec: Spec, *, pretrained: bool = True, tower: Mapping[str, Any] | None = None
) -> RobotPolicy:
    """The policy of a recipe. pretrained=False leaves the encoder at random: its weights come from a checkpoint. tower:
    the encoder's configuration, where it is one of transformers; by default what its folder says."""
    encoder = image_encoder(recipe, pretrained=pretrained, tower=tower)
    policy = _build(recipe, spec, encoder)
    start_new(policy, recipe, skip=[encoder])
    return policy


def _build(recipe: Recipe, spec: Spec, encoder: ImageEncoder) -> RobotPolicy:
    p = recipe.policy
    net = Net(
        dim=p.dim,
        num_heads=p.heads,
        encoder_layers=p.encoder_layers,
        decoder_layers=p.decoder_layers,
        chunk=p.chunk,
        execute=p.execute,
        blind=p.blind,
        frame=p.frame,
        encoding=recipe.model.encoding,
        encoding_options=recipe.model.options,
    )
    options = {key.removeprefix("policy."): getattr(p, key.removeprefix("policy.")) for key in option_keys(p.kind)}
    return POLICIES[p.kind](encoder, spec, net, **options)


def load_policy(path: str | Path, device: torch.device | str = "cpu") -> RobotPolicy:
    """The policy of a run's folder, or of one of its checkpoints/<step>, ready to act."""
    policy = load_run(path, "policy").model
    assert isinstance(policy, RobotPolicy)
    return policy.to(device)


@torch.no_grad()
def start_policy(policy: RobotPolicy, recipe: Recipe, folder: Path) -> None:
    """Let a policy go on from a run of another, all of it, to be tuned on other demonstrations.

    Normalisation stays as the weights know it, except that the range of actions grows where the new demonstrations
    leave the old ones: with data that was trained on before, the first step sees exactly the policy of the run."""
    old, weights = read_model(folder)
    where = f"model.start={folder}"
    if old.task != "policy":
        raise ValueError(
            f"{where} is a run of {old.task}: a policy starts from a policy, or set policy.encoder instead"
        )
    before, now = read_spec(weights), policy.spec
    for name in ("cameras", "state_dim", "action_dim", "image_size"):
        if getattr(before, name) != getattr(now, name):
            raise ValueError(
                f"{where} was trained with {name}={getattr(before, name)}, these demonstrations have "
                f"{getattr(now, name)}: they must be of the same robot and cameras"
            )
    if tower_config(recipe) is None:
        refuse_other_shapes(old, recipe, where)
    low, high = policy.action_low.clone(), policy.action_high.clone()
    fit(policy, weights | {"about": policy.about}, where)
    policy.action_low.copy_(torch.minimum(policy.action_low, low))
    policy.action_high.copy_(torch.maximum(policy.action_high, high))


def is_tower(encoder: str) -> bool:
    """Whether a `policy.encoder` names a model of transformers."""
    return encoder.startswith(TOWERS)


def tower_config(recipe: Recipe) -> dict[str, Any] | None:
    """The configuration of the recipe's image encoder, where it is one of transformers: its own, or that of the policy
    that the recipe's starts from."""
    where, start = fill_in(recipe.policy.encoder, recipe, "policy.encoder"), start_folder(recipe)
    if is_tower(where):
        return read_tower_config(Path(where.partition(":")[2]))
    held = start is not None and (model_folder(start) / TOWER).exists()
    return read_tower_config(model_folder(start)) if held and start is not None else None


def image_encoder(recipe: Recipe, *, pretrained: bool = True, tower: Mapping[str, Any] | None = None) -> ImageEncoder:
    """The recipe's image encoder, with a warning where nothing but chance has formed it."""
    where, freeze = fill_in(recipe.policy.encoder, recipe, "policy.encoder"), recipe.policy.freeze
    tower = tower_config(recipe) if tower is None else tower
    if tower is not None:
        _check_tower(tower, recipe)
        model = load_tower(Path(where.partition(":")[2]), tower) if pretrained else build_tower(tower)
        model = _attach(model, recipe)
        return ImageEncoder(model, dim=tower["hidden_size"], patch_size=tower["patch_size"], freeze=freeze)
    takes_points = "lift" in recipe.model.depth and recipe.model.encoding not in ("none", "absolute")
    world = recipe.policy.frame == "world" and takes_points
    vit = backbone(recipe.model, image_size=recipe.data.image_size, frame="world" if world else "camera")
    start_new(vit, recipe)
    if pretrained and where:
        old, weights = read_model(Path(where))
        refuse_other_shapes(old, recipe, f"policy.encoder={where}")
        start_vit(vit, weights, f"policy.encoder={where}")
    elif pretrained:
        warnings.warn(
            "the policy's image encoder starts at random, which needs many more demonstrations than a trained one: "
            "pass policy.encoder=CHECKPOINT, for example of stringpe train scenes_objects",
            UserWarning,
            stacklevel=2,
        )
    return ImageEncoder(vit, freeze=freeze)


def _check_tower(config: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse an image size or a use of depth that the tower cannot have."""
    if config["image_size"] != recipe.data.image_size:
        side = config["image_size"]
        raise ValueError(f"this image encoder takes {side} px: set data.image_size={side}")
    depth, encoding = recipe.model.depth, recipe.model.encoding
    if depth not in ("none", "lift") or (depth == "lift" and encoding in _OWN):
        raise ValueError(
            f"an encoder of transformers takes depth as the third coordinate of an attached encoding, or none: set "
            f"model.depth=lift with model.encoding=circulant, for example, or model.depth=none; got {depth!r} with "
            f"{encoding!r}"
        )


def _attach(model: nn.Module, recipe: Recipe) -> nn.Module:
    """The tower with the recipe's encoding in every layer; its own learned table stays."""
    if recipe.model.encoding in _OWN:
        return model
    options: dict[str, Any] = dict(recipe.model.options)
    coord_dim = 3 if recipe.model.depth == "lift" else 2
    return attach(model, recipe.model.encoding, coord_dim=coord_dim, units=recipe.model.units, **options)
