"""From a recipe to a policy, new or from a checkpoint, and where its image encoder starts."""

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..io.checkpoint import read_model
from ..models.stem import prefixes
from ..models.vit import ViT
from ..recipes.schema import Recipe
from ..robots.policies.base import Net, RobotPolicy, Spec, read_spec
from ..robots.policies.diffusion_policy import DiffusionPolicy
from ..robots.policies.energy_policy import EnergyPolicy
from ..robots.policies.observer import ImageEncoder
from .backbone import backbone
from .start import filled, resampled

_SIGLIP = "siglip:"
_NEW = ("lift.", "fuse.", "kind", "prefix")  # what an encoder may lack: depth and registers bring it
_TABLE = "absolute.weight"


def new_policy(recipe: Recipe, spec: Spec, *, pretrained: bool = True) -> RobotPolicy:
    """The policy of a recipe. pretrained=False leaves the encoder at random: its weights come from a checkpoint."""
    p = recipe.policy
    encoder = image_encoder(recipe, pretrained=pretrained)
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
    recipe, weights = read_model(Path(path))
    policy = new_policy(recipe, read_spec(weights), pretrained=False)
    policy.load_state_dict(weights)
    return policy.to(device).eval()


def image_encoder(recipe: Recipe, *, pretrained: bool = True) -> ImageEncoder:
    """The recipe's image encoder, with a warning where nothing but chance has formed it."""
    where, freeze = filled(recipe.policy.encoder, recipe, "policy.encoder"), recipe.policy.freeze
    if where.startswith(_SIGLIP):
        return _siglip(Path(where.removeprefix(_SIGLIP)), recipe, freeze, pretrained)
    vit = backbone(recipe.model, image_size=recipe.data.image_size)
    if pretrained and where:
        old, weights = read_model(Path(where))
        if old.model.encoding != recipe.model.encoding:
            raise ValueError(
                f"policy.encoder={where} was trained with model.encoding={old.model.encoding}, this recipe has "
                f"{recipe.model.encoding}: set model.encoding as that run had it"
            )
        start_from(vit, weights, where)
    elif pretrained:
        warnings.warn(
            "the policy's image encoder starts at random, which needs many more demonstrations than a trained one: "
            "pass policy.encoder=CHECKPOINT, for example of stringpe train scenes_objects",
            UserWarning,
            stacklevel=2,
        )
    return ImageEncoder(vit, freeze=freeze)


def start_from(vit: ViT, weights: dict[str, Tensor], where: str) -> None:
    """Load the vision transformer found in a checkpoint's weights.

    A 2D one may become 3D: the frequencies of the plane are kept, those of depth are as new, and the depth layer's
    scale starts at 0, so that the first step sees what the 2D model saw. Registers that it lacks are new. A learned
    table of absolute embeddings, one of a square image, is read at this encoder's patches."""
    own = vit.state_dict()
    prefix = _prefix(own, weights, where)
    lifted = False
    for name, tensor in own.items():
        if prefix + name not in weights:
            continue
        found = weights[prefix + name]
        if found.shape == tensor.shape:
            tensor.copy_(found)
        elif _is_frequencies(name) and found.ndim == tensor.ndim >= 3 and found.shape[1] + 1 == tensor.shape[1]:
            tensor[:, : found.shape[1]] = found
            lifted = True
        elif name == _TABLE and found.shape[1] == tensor.shape[1]:
            side = math.isqrt(len(found))
            tensor.copy_(resampled(found, (side, side), vit.table_size))
        elif not name.startswith(_NEW):
            raise ValueError(
                f"{where} has {name} of {tuple(found.shape)}, this encoder needs {tuple(tensor.shape)}: "
                f"set model.* as that run had it"
            )
    if vit.lift is not None and (lifted or f"{prefix}lift.scale" not in weights):
        nn.init.zeros_(vit.lift.scale)


def _prefix(own: dict[str, Tensor], weights: dict[str, Tensor], where: str) -> str:
    """What stands before a vision transformer's names in a checkpoint that holds one, perhaps inside a larger model."""
    needed = [name for name in own if not name.startswith((*_NEW, "head.", "map_pool."))]
    for prefix in prefixes(weights):
        if all(prefix + name in weights for name in needed):
            return prefix
    raise ValueError(
        f"{where} holds no vision transformer like this one ({len(needed)} tensors, encodings included): "
        f"set model.* as that run had it"
    )


def _is_frequencies(name: str) -> bool:
    return name.endswith("encoding.frequencies.weight")


def _siglip(folder: Path, recipe: Recipe, freeze: bool, pretrained: bool) -> ImageEncoder:
    """SigLIP's image tower of transformers, with the recipe's encoding attached in every layer."""
    try:
        from transformers import SiglipVisionConfig, SiglipVisionModel
    except ImportError as missing:
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
