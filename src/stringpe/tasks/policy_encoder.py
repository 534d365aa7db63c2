"""The image encoder of a policy: new, from a run of ours, or a vision tower of transformers with an encoding
attached."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ..hosts.attach import attach
from ..io.checkpoint import model_folder, read_model
from ..recipes.schema import Recipe
from ..robots.policies.observer import ImageEncoder
from ..robots.policies.vision_tower import TOWER, build_tower, load_tower, read_tower_config
from .build import backbone, set_initial_weights
from .warm_start import fill_in, refuse_other_shapes, start_folder, start_vit

TOWERS = ("siglip:", "paligemma:")
"""A `policy.encoder` that begins with one of these names a folder with a model of transformers."""

_NOT_ATTACHED = ("absolute", "none")  # encodings that leave a tower of transformers as it is


def is_tower(encoder: str) -> bool:
    """Whether a `policy.encoder` names a model of transformers."""
    return encoder.startswith(TOWERS)


def find_tower_config(recipe: Recipe) -> dict[str, Any] | None:
    """The configuration of the recipe's image encoder if it is a tower of transformers, else None. It is read from the
    encoder's folder, or from the run that the policy starts from."""
    encoder, start = fill_in(recipe.policy.encoder, recipe, "policy.encoder"), start_folder(recipe)
    if is_tower(encoder):
        return read_tower_config(Path(encoder.partition(":")[2]))
    if start is None or not (model_folder(start) / TOWER).exists():
        return None
    return read_tower_config(model_folder(start))


def build_image_encoder(
    recipe: Recipe, *, pretrained: bool = True, tower: Mapping[str, Any] | None = None
) -> ImageEncoder:
    """The recipe's image encoder; warns if it starts from random weights. pretrained=False leaves it at random, for
    weights that come from a checkpoint. tower: the configuration of a tower of transformers; by default that of its
    folder."""
    encoder, freeze = fill_in(recipe.policy.encoder, recipe, "policy.encoder"), recipe.policy.freeze
    tower = find_tower_config(recipe) if tower is None else tower
    if tower is not None:
        _check_tower(tower, recipe)
        model = load_tower(Path(encoder.partition(":")[2]), tower) if pretrained else build_tower(tower)
        model = _attach(model, recipe)
        return ImageEncoder(model, dim=tower["hidden_size"], patch_size=tower["patch_size"], freeze=freeze)
    takes_points = "lift" in recipe.model.depth and recipe.model.encoding not in ("none", "absolute")
    world = recipe.policy.frame == "world" and takes_points
    vit = backbone(recipe.model, image_size=recipe.data.image_size, frame="world" if world else "camera")
    set_initial_weights(vit, recipe)
    if pretrained and encoder:
        old, weights = read_model(Path(encoder))
        refuse_other_shapes(old, recipe, f"policy.encoder={encoder}")
        start_vit(vit, weights, f"policy.encoder={encoder}")
    elif pretrained:
        warnings.warn(
            "the policy's image encoder starts at random, which needs many more demonstrations than a trained one: "
            "pass policy.encoder=CHECKPOINT, for example of stringpe train scenes_objects",
            UserWarning,
            stacklevel=2,
        )
    return ImageEncoder(vit, freeze=freeze)


def _check_tower(config: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse an image size or a use of depth that the tower does not support."""
    if config["image_size"] != recipe.data.image_size:
        side = config["image_size"]
        raise ValueError(f"this image encoder takes {side} px: set data.image_size={side}")
    depth, encoding = recipe.model.depth, recipe.model.encoding
    if depth not in ("none", "lift") or (depth == "lift" and encoding in _NOT_ATTACHED):
        raise ValueError(
            f"an encoder of transformers takes depth as the third coordinate of an attached encoding, or none: set "
            f"model.depth=lift with model.encoding=circulant, for example, or model.depth=none; got {depth!r} with "
            f"{encoding!r}"
        )


def _attach(model: nn.Module, recipe: Recipe) -> nn.Module:
    """The tower with the recipe's encoding attached to every layer; its own learned position table stays."""
    if recipe.model.encoding in _NOT_ATTACHED:
        return model
    options: dict[str, Any] = dict(recipe.model.options)
    coord_dim = 3 if recipe.model.depth == "lift" else 2
    return attach(model, recipe.model.encoding, coord_dim=coord_dim, units=recipe.model.units, **options)
