"""New models from a recipe, with random weights: what the tasks build their models from."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeVar

from torch import nn

from ..models.contrastive import Contrastive
from ..models.frozen import lift_frozen
from ..models.initialise import Initialisation, initialise_by_name
from ..models.text import TextTower
from ..models.tokenizer import Tokenizer
from ..models.vit import ViT
from ..recipes.schema import Model, Recipe

FROZEN = ("backbone", "backbone+basis")
"""What `model.freeze` can be for a ViT that comes from `model.start`: all of it stays as it is, in the second case also
the basis of the new encoding."""

Detector = TypeVar("Detector", bound=nn.Module)


def backbone(
    model: Model, *, image_size: int, num_classes: int = 0, head_bias: float = 0.0, frame: str = "camera"
) -> ViT:
    """The vision transformer that a recipe describes: a ViT, or a ViTD where the recipe has depth.

    The encoding "none" has no coordinates to lift depth into, and gets it as a channel, so that it sees the same data.
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


def frozen_backbone(model: Model, *, image_size: int) -> ViT:
    """A ViT on RGB with a learned table of positions, which stays as it is, and in every layer the recipe's encoding,
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


def build_text_tower(recipe: Recipe, *, vocab: int, padding: int) -> TextTower:
    """The text tower that a recipe describes, for a tokeniser of `vocab` tokens."""
    text = recipe.text
    return TextTower(
        vocab=vocab,
        dim=text.dim,
        layers=text.layers,
        num_heads=text.heads,
        context=text.context,
        encoding=text.encoding,
        encoding_options=text.options,
        pool=text.pool,
        width=text.width,
        padding=padding,
        mlp_ratio=text.mlp_ratio,
        dropout=text.dropout,
        drop_path=text.drop_path,
    )


def build_towers(recipe: Recipe, tokenizer: Tokenizer, bias: float = 0.0) -> Contrastive:
    """The image tower and the text tower that a recipe describes. bias: where the bias of pairs starts."""
    tower = build_text_tower(recipe, vocab=len(tokenizer), padding=tokenizer.padding)
    image = backbone(recipe.model, image_size=recipe.data.image_size)
    return Contrastive(image, tower, bias=bias)


def build_detector(kind: Callable[..., Detector], recipe: Recipe, tokenizer: Tokenizer) -> Detector:
    """The detector that a recipe describes: heads of this kind on two new towers."""
    towers = build_towers(recipe, tokenizer)
    model = kind(towers.image, towers.text, factor=recipe.loss.factor)
    set_initial_weights(model, recipe)
    return model


def set_initial_weights(model: nn.Module, recipe: Recipe, *, skip: Collection[nn.Module] = ()) -> None:
    """Draw every parameter of a new model from (recipe.seed, its name), so that rows of a comparison that share a seed
    agree in all parameters that they have in common. Call it before weights of another run are loaded; `skip` names
    modules that already have theirs."""
    how = Initialisation(recipe.model.init, recipe.model.patch_gain)
    initialise_by_name(model, recipe.seed, how, skip=skip)
