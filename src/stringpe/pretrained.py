"""Attached models in folders: config.json, which says how to build the model and what was done to it, and
model.safetensors.

    save_pretrained(model, "folder")
    model = from_pretrained("folder")                    # or from_pretrained("folder", model=a_fresh_host)

Nothing in a folder can run code when it is read: `stringpe.host_config` allows what a config may name, and the weights
are safetensors. For the Hugging Face hub see `stringpe.hub`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .host_config import DTYPES, build_host, check_config, clean_config
from .hosts import attached_layers, find_towers
from .hosts.attach import attach, carry_rope, fold, lift
from .hosts.description import Grid, Rope, mixed_theta
from .io.files import find_not_finite, read_json, read_tensors, write_json, write_tensors

Model = TypeVar("Model", bound=nn.Module)
LARGEST_CONFIG = 1 << 24  # bytes


def save_pretrained(model: nn.Module, folder: str | Path, *, build: Mapping[str, Any] | None = None) -> Path:
    """Write an attached (lifted, folded) model to a folder.

    build: the arguments that built the host, for `from_pretrained` to build it again: sizes and switches, no weights.
        Models of transformers carry theirs. For timm, those of `timm.create_model`, {"model_name": …, …}; without, the
        name and the number of classes are noted. For open_clip, those of `open_clip.create_model`. A host of any other
        library can be passed to `from_pretrained`.
    """
    if not hasattr(model, "stringpe_calls"):
        raise ValueError(f"this {type(model).__name__} has nothing attached: use stringpe.attach first")
    check_weights(model)
    config = {
        "stringpe": 1,
        "host": _describe_host(model, build),
        "dtype": _dtype(model),
        "calls": model.stringpe_calls,
    }
    try:
        check_config(config)
    except ValueError as error:
        raise ValueError(f"this model cannot be saved with how it was built, since {error}") from None
    folder = Path(folder)
    state = {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}
    write_tensors(folder / "model.safetensors", state, {"format": "pt"})
    write_json(folder / "config.json", config)
    return folder


def from_pretrained(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The model that `save_pretrained` wrote, in eval mode.

    model: a host like the one that was saved, as its library builds it, with any weights; by default it is built from
        config.json.
    """
    folder = Path(folder)
    config = read_config(folder)
    if model is None:
        if config["host"] is None:
            raise ValueError(f"{folder} does not say how its host is built: pass model=, or save it with build=")
        try:
            model = build_host(config["host"])
        except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
            raise ValueError(
                f"{folder / 'config.json'} describes a host that {config['host']['library']} does not build "
                f"({error}): pass model=, a host built as the saved one was"
            ) from None
    model = model.to(DTYPES[config["dtype"]])
    try:
        for call, options in config["calls"]:
            _CALLS[call](model, **options)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{folder / 'config.json'} has options that the encoding does not take ({error})") from None
    try:
        model.load_state_dict(_read_weights(folder / "model.safetensors"))
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"the weights in {folder} are of another model than the one built ({reason}): pass model=, a host built as "
            f"the saved one was, or save it with build="
        ) from None
    try:
        check_weights(model)
    except ValueError as error:
        raise ValueError(f"{folder / 'model.safetensors'}: {error}") from None
    return model.eval()


def read_config(folder: Path) -> dict[str, Any]:
    """The config.json of a folder, once nothing in it goes beyond what a config may say."""
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"there is no config.json in {folder}: pass a folder that stringpe.save_pretrained wrote")
    if path.stat().st_size > LARGEST_CONFIG:
        raise ValueError(f"{path} is larger than {LARGEST_CONFIG >> 20} MiB, which no config is")
    config = read_json(path)
    try:
        check_config(config)
    except ValueError as error:
        raise ValueError(f"{path} cannot be used: {error}") from None
    checked: dict[str, Any] = config
    return checked


def check_weights(model: nn.Module) -> None:
    """Refuse weights that are not finite numbers."""
    if bad := find_not_finite(dict(model.named_parameters())):
        raise ValueError(f"the weights are not finite numbers: {bad[0]} has NaN or infinity. Train or load it again")


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise ValueError(f"there is no {path.name} in {path.parent}: save the model again")
    return read_tensors(path, "save or download it again")


def load_rope_mixed(model: Model, weights: Mapping[str, Tensor]) -> Model:
    """Load a RoPE-Mixed checkpoint into a timm VisionTransformer without RoPE and attach its encoding, in place.

    weights: a state dict of timm's RoPE-ViT (with `rope.freqs`) or of rope-vit (with `freqs`); both are interleaved.
    """
    names = {"rope.freqs", "freqs"} & set(weights)
    if len(names) != 1:
        given = " and ".join(sorted(names)) or "neither"
        raise ValueError(f"a RoPE-Mixed checkpoint has rope.freqs (timm) or freqs (rope-vit), this one has {given}")
    rest = {
        name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma"): value
        for name, value in weights.items()
        if name not in (*names, "freqs_t_x", "freqs_t_y")
    }
    model.load_state_dict(rest)
    return _carry_mixed(model, weights[names.pop()])


def _carry_mixed(model: Model, freqs: Tensor | None = None) -> Model:
    """Attach RoPE-Mixed weights to a host without RoPE; without any, what they would be loaded into."""
    (tower,) = find_towers(model)
    layers: list[Any] = [layer for layer, _ in tower.layers.values()]
    heads, planes = layers[0].num_heads, layers[0].head_dim // 2
    if freqs is None:
        freqs = torch.zeros(2, len(layers), heads, planes)
    carry_rope(model, Rope(mixed_theta(freqs, heads), True, Grid()), "rope_mixed")
    model.stringpe_calls = [("load_rope_mixed", {})]  # type: ignore[assignment]
    return model


_CALLS: dict[str, Any] = {"attach": attach, "lift": lift, "fold": fold, "load_rope_mixed": _carry_mixed}


def _dtype(model: nn.Module) -> str:
    _, layer = next(iter(attached_layers(model)))
    return str(next(p for n, p in layer.named_parameters() if not n.startswith("encoding")).dtype).split(".")[1]


def _describe_host(model: nn.Module, build: Mapping[str, Any] | None) -> dict[str, Any] | None:
    library = type(model).__module__.split(".")[0]
    if library == "transformers":
        known: Any = model
        return {
            "library": library,
            "class": type(model).__name__,
            "config_class": type(known.config).__name__,
            "config": clean_config(known.config.to_dict()),
        }
    if library in ("timm", "open_clip") and build is not None:
        return {"library": library, "arguments": dict(build)}
    if library == "timm":
        cfg: Any = model
        return {
            "library": library,
            "arguments": {"model_name": cfg.pretrained_cfg["architecture"], "num_classes": cfg.num_classes},
        }
    return None
