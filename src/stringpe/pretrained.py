"""Attached models in folders: config.json, which says how to build the model and what was done to it, and
model.safetensors.

    save_pretrained(model, "folder")
    model = from_pretrained("folder")                    # or from_pretrained("folder", model=a_fresh_host)

Nothing in a folder can run code when it is read: hosts are built by name from their own libraries. For the Hugging Face
hub see `stringpe.hub`.
"""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from .hosts import attached_layers, find_towers
from .hosts.attach import attach, carry_rope, fold, lift
from .hosts.description import Grid, Rope, mixed_theta

Model = TypeVar("Model", bound=nn.Module)


def save_pretrained(model: nn.Module, folder: str | Path, *, build: Mapping[str, Any] | None = None) -> Path:
    """Write an attached (lifted, folded) model to a folder.

    build: the arguments that built the host, for `from_pretrained` to build it again. Models of transformers carry
        theirs. For timm, those of `timm.create_model`, {"model_name": …, …}; without, the name and the number of
        classes are noted. For open_clip, those of `open_clip.create_model`. A host of any other make can be handed to
        `from_pretrained` as it is.
    """
    from safetensors.torch import save_file

    if not hasattr(model, "stringpe_calls"):
        raise ValueError(f"this {type(model).__name__} has nothing attached: use stringpe.attach first")
    config = {"stringpe": 1, "host": _host(model, build), "dtype": _dtype(model), "calls": model.stringpe_calls}
    try:
        text = json.dumps(config, indent=1)
    except TypeError as error:
        raise ValueError(f"the options of this model cannot be written as JSON ({error}): use plain numbers") from None
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: t.detach().cpu().clone().contiguous() for name, t in model.state_dict().items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    return folder


def from_pretrained(folder: str | Path, model: nn.Module | None = None) -> nn.Module:
    """The model that `save_pretrained` wrote, in eval mode.

    model: a host like the one that was saved, as its library builds it, with any weights; by default it is built from
        config.json.
    """
    from safetensors.torch import load_file

    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise ValueError(f"there is no config.json in {folder}: pass a folder that stringpe.save_pretrained wrote")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dtype = getattr(torch, str(config.get("dtype")), None)
    known = all(call in _CALLS for call, _ in config.get("calls", [("", {})]))
    if not known or "host" not in config or not isinstance(dtype, torch.dtype):
        raise ValueError(f"{folder / 'config.json'} is not of an attached model, or of a later version of stringpe")
    model = _built(config["host"], folder) if model is None else model
    model = model.to(dtype)
    for call, options in config["calls"]:
        _CALLS[call](model, **options)
    state = load_file(folder / "model.safetensors")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ValueError(
            f"the weights in {folder} are of another model than the one built ({error}): pass model=, a host built as "
            f"the saved one was, or save it with build="
        ) from None
    return model.eval()


def load_rope_mixed(model: Model, weights: Mapping[str, Tensor]) -> Model:
    """Load a RoPE-Mixed checkpoint into a timm VisionTransformer without RoPE and attach its encoding, in place.

    weights: a state dict of timm's RoPE-ViT (with `rope.freqs`) or of rope-vit (with `freqs`); both are interleaved.
    """
    names = {"rope.freqs", "freqs"} & set(weights)
    if len(names) != 1:
        raise ValueError(f"a RoPE-Mixed checkpoint has rope.freqs (timm) or freqs (rope-vit), this one has {names}")
    rest = {
        name.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma"): value
        for name, value in weights.items()
        if name not in (*names, "freqs_t_x", "freqs_t_y")
    }
    model.load_state_dict(rest)
    return _carry_mixed(model, weights[names.pop()])


def _carry_mixed(model: Model, freqs: Tensor | None = None) -> Model:
    """Attach RoPE-Mixed weights to a host without RoPE; without any, what they would be loaded into."""
    (found,) = find_towers(model)
    layers: list[Any] = [layer for layer, _ in found.layers.values()]
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


def _host(model: nn.Module, build: Mapping[str, Any] | None) -> dict[str, Any] | None:
    library = type(model).__module__.split(".")[0]
    if library == "transformers":
        known: Any = model
        return {
            "library": library,
            "class": type(model).__name__,
            "config_class": type(known.config).__name__,
            "config": known.config.to_dict(),
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


def _built(host: dict[str, Any] | None, folder: Path) -> nn.Module:
    if host is None:
        raise ValueError(f"{folder} does not say how its host is built: pass model=, or save it with build=")
    library = importlib.import_module(host["library"]) if host["library"] in _LIBRARIES else None
    if library is None:
        raise ValueError(f"{folder} names the library {host['library']!r}: known are {', '.join(_LIBRARIES)}")
    if host["library"] != "transformers":
        built: nn.Module = library.create_model(**host["arguments"])
        return built
    config = getattr(library, host["config_class"]).from_dict(host["config"])
    model: nn.Module = getattr(library, host["class"])(config)
    return model


_LIBRARIES = ("timm", "transformers", "open_clip")
