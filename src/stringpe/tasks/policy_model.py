"""From a recipe to a policy, new or from a checkpoint, and where its image encoder starts."""

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..io.checkpoint import read_model
from ..io.imports import explain_torchvision
from ..io.registry import look_up
from ..recipes.schema import Recipe
from ..robots.policies.base import Net, RobotPolicy, Spec
from ..robots.policies.diffusion_policy import DiffusionPolicy
from ..robots.policies.energy_policy import EnergyPolicy
from ..robots.policies.observer import ImageEncoder
from .backbone import backbone, start_new
from .build import fill_in, load_run, refuse_other_shapes, start_vit

SIGLIP = "siglip:"
"""`policy.encoder` that begins with it names a folder of transformers."""

POLICIES: dict[str, Callable[..., RobotPolicy]] = {"diffusion": DiffusionPolicy, "energy": EnergyPolicy}
"""The kinds of policies. The options of each, its keyword parameters, are keys of the recipe: policy.repeats, …"""


def option_keys(kind: str) -> tuple[str, ...]:
    """The keys of a recipe that only a policy of this kind reads."""
    parameters = inspect.signature(look_up("policy.kind", kind, POLICIES)).parameters.values()
    return tuple(f"policy.{p.name}" for p in parameters if p.kind is p.KEYWORD_ONLY)


def new_policy(recipe: Recipe, spec: Spec, *, pretrained: bool = True) -> RobotPolicy:
    """The policy of a recipe. pretrained=False leaves the encoder at random: its weights come from a checkpoint."""
    encoder = image_encoder(recipe, pretrained=pretrained)
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
        encoding_options=recipe.model.encoding_options,
    )
    options = {key.removeprefix("policy."): getattr(p, key.removeprefix("policy.")) for key in option_keys(p.kind)}
    return POLICIES[p.kind](encoder, spec, net, **options)


def load_policy(path: str | Path, device: torch.device | str = "cpu") -> RobotPolicy:
    """The policy of a run's folder, or of one of its checkpoints/<step>, ready to act."""
    policy = load_run(path, "policy").model
    assert isinstance(policy, RobotPolicy)
    return policy.to(device)


def image_encoder(recipe: Recipe, *, pretrained: bool = True) -> ImageEncoder:
    """The recipe's image encoder, with a warning where nothing but chance has formed it."""
    where, freeze = fill_in(recipe.policy.encoder, recipe, "policy.encoder"), recipe.policy.freeze
    if where.startswith(SIGLIP):
        return _siglip(Path(where.removeprefix(SIGLIP)), recipe, freeze, pretrained)
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


def _siglip(folder: Path, recipe: Recipe, freeze: bool, pretrained: bool) -> ImageEncoder:
    """SigLIP's image tower of transformers, with the recipe's encoding attached in every layer."""
    try:
        with explain_torchvision():
            from transformers import SiglipVisionConfig, SiglipVisionModel
    except ModuleNotFoundError as missing:
        raise ValueError(f"SigLIP needs transformers: pip install 'stringpe[language]' ({missing})") from None
    if recipe.model.depth != "none":
        raise ValueError(f"an attached SigLIP sees RGB only: set model.depth=none, got {recipe.model.depth!r}")
    if not (folder / "config.json").exists():
        raise ValueError(f"there is no SigLIP in {folder}: pass siglip:FOLDER with config.json and model.safetensors")
    config = SiglipVisionConfig.from_pretrained(folder)
    if config.image_size != recipe.data.image_size:
        raise ValueError(f"this SigLIP takes {config.image_size} px: set data.image_size={config.image_size}")
    config.vision_use_head = False
    model: nn.Module = (
        SiglipVisionModel.from_pretrained(folder, config=config) if pretrained else SiglipVisionModel(config)
    )
    if recipe.model.encoding not in ("absolute", "none"):  # its own learned table stays; rotary encodings come on top
        import stringpe

        options: dict[str, Any] = dict(recipe.model.encoding_options)
        model = stringpe.attach(model, recipe.model.encoding, units=recipe.model.units, **options)
    return ImageEncoder(model, dim=config.hidden_size, patch_size=int(config.patch_size), freeze=freeze)  # type: ignore[arg-type]
