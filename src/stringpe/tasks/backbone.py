"""The vision transformer that a recipe describes, and how a recipe's model starts."""

from collections.abc import Collection

from torch import nn

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
        encoding_options=model.encoding_options,
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


def start_new(model: nn.Module, recipe: Recipe, *, skip: Collection[nn.Module] = ()) -> None:
    """Start a new model of a recipe: every parameter from (recipe.seed, its name), so that rows of a comparison that
    share a seed agree in all parameters that they have in common. Call it before weights of another run are loaded, and
    name in `skip` the modules that have been.
    """
    how = Initialisation(recipe.model.init, recipe.model.patch_gain)
    initialise_by_name(model, recipe.seed, how, skip=skip)
