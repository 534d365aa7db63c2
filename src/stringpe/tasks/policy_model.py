"""From a recipe to a policy, new or from a checkpoint, and where its image encoder starts."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..io.checkpoint import read_model
from ..io.imports import explain_torchvision
from ..recipes.schema import Recipe
from ..robots.policies.base import Net, RobotPolicy, Spec
from ..robots.policies.diffusion_policy import DiffusionPolicy
from ..robots.policies.energy_policy import EnergyPolicy
from ..robots.policies.observer import ImageEncoder
from .backbone import backbone, start_new
from .build import fill_in, load_run, refuse_other_shapes, start_vit

SIGLIP = "siglip:"
"""`policy.encoder` that begins with it names a folder of transformers."""

KINDS = {
    "diffusion": ("policy.train_steps", "policy.sample_steps", "policy.repeats", "policy.prediction"),
    "energy": (
        *("policy.modes", "policy.negatives", "policy.candidates"),
        *("policy.langevin_steps", "policy.langevin_rate"),
    ),
}
"""The kinds of policies, and the keys that only a policy of this kind reads."""


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
    )
    if p.kind == "diffusion":
        return DiffusionPolicy(
            encoder,
            spec,
            net,
            train_steps=p.train_steps,
            sample_steps=p.sample_steps,
            repeats=p.repeats,
            prediction=p.prediction,
        )
    if p.kind == "energy":
        return EnergyPolicy(
            encoder,
            spec,
            net,
            modes=p.modes,
            negatives=p.negatives,
            candidates=p.candidates,
            langevin_steps=p.langevin_steps,
            langevin_rate=p.langevin_rate,
        )
    raise ValueError(f"policy.kind is diffusion or energy, got {p.kind!r}")


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
    vit = backbone(recipe.model, image_size=recipe.data.image_size)
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
