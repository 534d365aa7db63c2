"""The vision transformer that a recipe describes, and how a recipe's model starts."""

from collections.abc import Collection
from dataclasses import replace

from torch import nn

from ..models.frozen import lift_frozen
from ..models.initialise import Initialisation, initialise_by_name
from ..models.vit import ViT
from ..recipes.schema import Model, Recipe


def backbone(
    model: Model, *, image_size: int, num_classes: int = 0, head_bias: float = 0.0, frame: str = "camera"
) -> ViT:
    """A ViT, or a ViTD where the recipe has depth.

    "none" has no coordinates to lift depth into and gets it as a channel instead, so that it sees the same data.
    """
    return ViT(
        dim=model.dim,
        layers=model.layers,
        num_heads=model.heads,
        patch_size=model.patch_size,
        stem=model.stem,
        encoding=model.encoding,
        encoding_options=model.options,
        share_layers=model.share_layers,
        depth="channel" if model.encoding == "none" and "lift" in model.depth else model.depth,
        frame=frame,
        pool=model.pool,
        registers=model.registers,
        units=model.units,
        mlp_ratio=model.mlp_ratio,
        dropout=model.dropout,
        drop_path=model.drop_path,
        attention=model.attention,
        qk_norm=model.qk_norm or None,
        image_size=image_size,
        num_classes=num_classes,
        head_bias=head_bias,
    )


FROZEN = ("backbone", "backbone+basis")
"""What `model.freeze` can be for a ViT that comes from `model.start`: all of it stays; the new basis stays as well."""


def frozen_backbone(model: Model, *, image_size: int) -> ViT:
    """A ViT on RGB with a learned table of positions, which stays as it is, and the recipe's encoding in every layer,
    which learns."""
    if model.freeze not in FROZEN:
        raise ValueError(f"model.freeze of this task is {' or '.join(FROZEN)}, got {model.freeze!r}")
    if model.depth not in ("none", "lift"):
        raise ValueError(f"a frozen ViT gets depth as a coordinate: model.depth is none or lift, got {model.depth!r}")
    plain = replace(model, encoding="absolute", encoding_options={}, share_layers=False, depth="none")
    return lift_frozen(
        backbone(plain, image_size=image_size),
        model.encoding,
        model.options,
        random_basis=model.freeze == "backbone+basis",
        rank=model.lora,
        depth=model.depth == "lift",
    )


def start_new(model: nn.Module, recipe: Recipe, *, skip: Collection[nn.Module] = ()) -> None:
    """Start a new model of a recipe: every parameter from (recipe.seed, its name), so that rows of a comparison that
    share a seed agree in all parameters that they have in common. Call it before weights of another run are loaded, and
    name in `skip` the modules that have been.
    """
    how = Initialisation(recipe.model.init, recipe.model.patch_gain)
    initialise_by_name(model, recipe.seed, how, skip=skip)
