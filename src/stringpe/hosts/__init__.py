"""Vision transformers of other libraries, as data: where each keeps its patches, its attention and its positions.

Each library has one file here (timm, transformers, open_clip) with a `Host`, which names its towers and attention
classes in the terms of `description`. What is done with them is written once for all libraries: `attach` (attach, lift
and fold), `host_attention` (which takes the place of the host's own) and `token_coords` (where the tokens are).
Classes are recognised by name, so that nothing of timm, transformers or open_clip is imported.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeVar

from torch import nn

from . import open_clip, timm, transformers
from .description import Host, Layer, Tower
from .host_attention import HostAttention

Entry = TypeVar("Entry", Tower, Layer)
HOSTS = (timm.HOST, transformers.HOST, open_clip.HOST)


class VisionTower(NamedTuple):
    """A vision tower in a model: the module and its description, and its attention layers by path, with theirs."""

    module: nn.Module
    description: Tower
    layers: dict[str, tuple[nn.Module, Layer]]


def find_towers(model: nn.Module) -> list[VisionTower]:
    """The vision towers of a model. ValueError, with the classes that the model has, if none of them is known."""
    towers = [
        VisionTower(module, description, _find_layers(module, description, host))
        for module in model.modules()
        for host in HOSTS
        if (description := _look_up_class(module, host.package, host.towers)) and has_path(module, description.patches)
    ]
    if not towers or not all(tower.layers for tower in towers):
        raise ValueError(_describe_unsupported(model))
    return towers


def _find_layers(module: nn.Module, tower: Tower, host: Host) -> dict[str, tuple[nn.Module, Layer]]:
    """The self-attention layers of a tower, by path from the tower."""
    layers = {}
    for name, child in module.get_submodule(tower.blocks).named_modules(prefix=tower.blocks):
        layer = _look_up_class(child, host.package, host.layers)
        if layer is not None:
            if not getattr(child, "batch_first", True):
                raise ValueError(f"{name} takes (tokens, batch, dim): build the model with batch_first=True")
            layers[name] = (child, layer)
        elif _is_attention(child):
            raise ValueError(_describe_unsupported(module))
    return layers


def _look_up_class(module: nn.Module, library: str, table: Mapping[str, Entry]) -> Entry | None:
    """The entry for a module's class, or for one that it derives from. Classes of torch count as every library's."""
    for cls in type(module).__mro__:
        if cls.__module__.split(".")[0] in (library, "torch") and cls.__name__ in table:
            return table[cls.__name__]
    return None


def _is_attention(module: nn.Module) -> bool:
    name = type(module).__name__
    return "Attention" in name and not name.endswith(("Block", "Layer", "Layers"))


def _describe_unsupported(model: nn.Module) -> str:
    present = sorted({f"{type(m).__module__}.{type(m).__name__}" for m in model.modules() if _is_attention(m)})
    classes = ", ".join(present) or "of no class that has Attention in its name"
    known = "; ".join(f"{h.package}: {', '.join(h.towers)} (with {', '.join(h.layers)})" for h in HOSTS)
    return (
        f"attach does not know {type(model).__name__}: its attention is {classes}. Supported are {known}. "
        f"For other models use stringpe.Attention, or stringpe.Projections in an attention class of your own"
    )


def has_path(module: nn.Module, path: str) -> bool:
    """Whether there is something, other than None, at a path of attributes from the module."""
    for name in path.split("."):
        if getattr(module, name, None) is None:
            return False
        module = getattr(module, name)
    return True


def attached_layers(model: nn.Module) -> Iterator[tuple[str, HostAttention]]:
    """The attention layers into which `attach` put an encoding, with their paths."""
    return ((name, m) for name, m in model.named_modules() if isinstance(m, HostAttention))
