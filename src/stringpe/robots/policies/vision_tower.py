"""Image encoders of transformers for policies: a SigLIP, or the SigLIP inside a PaliGemma, from a local folder.

The paper's ALOHA policies see through SigLIP B/16 at 256 px, its KUKA policies through the image encoder of a
PaliGemma. Of a PaliGemma only the weights of the vision tower are read; its language model stays on the disk.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...io.files import open_tensors, read_record
from ...io.imports import LANGUAGE, import_optional

TOWER = "tower.json"
"""In a checkpoint of a policy with such an encoder: the encoder's configuration."""

_WHOLE_MODELS = ("siglip", "paligemma")  # types of models whose configuration holds a vision_config
_TOWER_ALONE = "siglip_vision_model"  # the type of a model that is nothing but the tower
_PARTS = ("embeddings.", "encoder.", "post_layernorm.")  # how the names of the tower's weights begin
_PREFIXES = ("vision_tower.", "vision_model.")  # what stands before these names in files of larger models


def read_tower_config(folder: Path) -> dict[str, Any]:
    """The configuration of the SigLIP in a folder: of a SigLIP, a PaliGemma, or a checkpoint of a policy with one."""
    if (folder / TOWER).is_file():
        saved: dict[str, Any] = read_record(folder / TOWER, dict)
        return saved
    if not (folder / "config.json").is_file():
        raise ValueError(f"there is no config.json in {folder}: pass the folder of a SigLIP or a PaliGemma model")
    config = read_record(folder / "config.json", dict)
    kind = str(config.get("model_type"))
    if kind in _WHOLE_MODELS:
        config = read_record(folder / "config.json", {"vision_config": dict})["vision_config"]
    elif kind != _TOWER_ALONE:
        raise ValueError(f"{folder} holds a model of type {kind!r}: policies see through SigLIP or PaliGemma")
    return {**config, "model_type": _TOWER_ALONE, "vision_use_head": False}  # tokens are wanted, not a pooled vector


def build_tower(config: Mapping[str, Any]) -> nn.Module:
    """The tower of a configuration, with random weights."""
    config_class, model_class = (
        import_optional("transformers", "a SigLIP or a PaliGemma", LANGUAGE, f"SiglipVision{part}")
        for part in ("Config", "Model")
    )
    tower: nn.Module = model_class(config_class.from_dict(dict(config)))
    return tower


@torch.no_grad()
def load_tower(folder: Path, config: Mapping[str, Any]) -> nn.Module:
    """The tower of a folder with its weights, in float32."""
    tower = build_tower(config)
    wanted = {_name_in_tower(name): tensor for name, tensor in tower.state_dict().items()}
    for name, tensor in _read_weights(folder):
        target = wanted.pop(name, None)
        if target is None:
            continue  # the pooling head
        if target.shape != tensor.shape:
            raise ValueError(f"{folder} has {name} of {tuple(tensor.shape)}, but its config.json {tuple(target.shape)}")
        target.copy_(tensor)
    missing = [name for name in wanted if not name.endswith("position_ids")]
    if missing:
        raise ValueError(
            f"the .safetensors files of {folder} lack {missing[0]} and {len(missing) - 1} other weights of the vision "
            f"tower: get the whole model"
        )
    return tower


def _read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Name within the tower and value of the tower's weights, whatever else the files hold."""
    for path in sorted(folder.glob("*.safetensors")):
        with open_tensors(path, "download it again") as file:
            for key in file.keys():  # noqa: SIM118, it is not a dictionary
                name = _name_in_tower(key)
                if name.startswith(_PARTS) and "text_model." not in key and "language_model." not in key:
                    yield name, file.get_tensor(key)


def _name_in_tower(key: str) -> str:
    """A weight's name within the tower."""
    for prefix in _PREFIXES:
        key = key.rpartition(prefix)[2]
    return key
