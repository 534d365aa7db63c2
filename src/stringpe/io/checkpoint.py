"""Checkpoints: safetensors and JSON, nothing that could run code when it is read.

checkpoints/000500/
  pretrained_model/config.json, model.safetensors      the recipe and the weights to use (the average, if one is kept)
                   and what else the task needs to use them, for example tokenizer.json
  training_state/optimizer.safetensors, optimizer.json, rng.safetensors, progress.json[, weights.safetensors]
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..recipes.overrides import from_dict
from ..recipes.rules import check_values
from ..recipes.schema import Recipe
from .files import (
    find_not_finite,
    new_folder,
    read_record,
    read_tensors,
    remove_all_stale_drafts,
    remove_folder,
    write_json,
    write_text,
)

State = dict[str, Tensor]

TOKENIZER = "tokenizer.json"
"""Beside the weights of a model that reads texts."""

_ADVICE = "restore it, or use another checkpoint"


@dataclass(frozen=True)
class Checkpoint:
    """All of a run after `step` steps. model: the weights to use; weights: those in training, where an average is kept
    beside them, else None. optimizer: {"state": {name: {key: tensor}}, "param_groups": […]}. rng: one row per process.
    files: texts of the task that go with the model, by file name; written here, and read by those who need them."""

    step: int
    recipe: Recipe
    model: State
    weights: State | None
    optimizer: dict[str, Any]
    rng: State
    progress: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)


def write(run: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write to run/checkpoints/<step>, atomically, then remove all but the newest `keep`. Weights that are not finite
    are refused, so that a good checkpoint is never removed for a bad one."""
    from safetensors.torch import save_file

    path = run / "checkpoints" / f"{checkpoint.step:06d}"
    if path.exists():
        return path
    for state in (checkpoint.model, checkpoint.weights or {}):
        _refuse_not_finite(state, f"the weights after step {checkpoint.step}")
    with new_folder(path) as draft:
        pretrained, training = draft / "pretrained_model", draft / "training_state"
        pretrained.mkdir()
        training.mkdir()
        write_json(pretrained / "config.json", checkpoint.recipe.to_dict())
        save_file(_copy(checkpoint.model), pretrained / "model.safetensors")
        for name, text in checkpoint.files.items():
            write_text(pretrained / name, text)
        if checkpoint.weights is not None:
            save_file(_copy(checkpoint.weights), training / "weights.safetensors")
        tensors, plain = _split_optimizer(checkpoint.optimizer)
        save_file(_copy(tensors), training / "optimizer.safetensors")
        write_json(training / "optimizer.json", plain)
        save_file(_copy(checkpoint.rng), training / "rng.safetensors")
        write_json(training / "progress.json", {"step": checkpoint.step, **checkpoint.progress})
    prune(run, keep)
    return path


def prune(run: Path, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`, and what killed writers left."""
    remove_all_stale_drafts(run / "checkpoints")
    for old in list_checkpoints(run)[: -max(keep, 1)]:
        remove_folder(old)


def read(path: Path) -> Checkpoint:
    """The checkpoint in that folder; ValueError that names the file where it is damaged."""
    recipe, model = read_model(path)
    training = path / "training_state"
    raw = training / "weights.safetensors"
    progress = _record(training / "progress.json", {"step": int, "window": [float], "log_bytes": int})
    if len(progress["window"]) != 2 or min(progress["step"], progress["log_bytes"]) < 0:
        raise _damaged(training / "progress.json", "it does not say how far the run is")
    groups = _record(training / "optimizer.json", [{"params": [str], "lr": float}])
    weights = _read_state(raw) if raw.exists() else None
    _refuse_not_finite(weights or {}, str(raw))
    return Checkpoint(
        step=progress["step"],
        recipe=recipe,
        model=model,
        weights=weights,
        optimizer=_join_optimizer(_read_state(training / "optimizer.safetensors"), groups),
        rng=_read_state(training / "rng.safetensors"),
        progress=progress,
    )


def read_model(path: Path) -> tuple[Recipe, State]:
    """Recipe and weights of a checkpoint; `path` is its folder, a run's (the newest is taken) or pretrained_model.

    Damaged files, and weights that are not finite, are refused with a ValueError that names the file."""
    folder = model_folder(path)
    config = folder / "config.json"
    values = _record(config, dict)
    try:
        recipe = from_dict(values)
        check_values(recipe)
    except (AttributeError, TypeError, ValueError) as error:
        raise _damaged(config, f"it holds no recipe: {error}") from None
    weights = _read_state(folder / "model.safetensors")
    _refuse_not_finite(weights, str(folder / "model.safetensors"))
    return recipe, weights


def _read_state(path: Path) -> State:
    """The tensors of a file of a checkpoint; ValueError with its name if it is missing or damaged."""
    tensors = read_tensors(_require(path), _ADVICE)
    if not tensors:
        raise _damaged(path, "it holds no tensors")
    unreal = [name for name, tensor in tensors.items() if tensor.is_complex()]
    if unreal:
        raise _damaged(path, f"{unreal[0]} holds complex numbers")
    return tensors


def _refuse_not_finite(state: Mapping[str, Tensor], what: str) -> None:
    """Refuse tensors with NaN or infinity."""
    if bad := find_not_finite(state):
        more = f" and {len(bad) - 1} more tensors" if len(bad) > 1 else ""
        raise ValueError(
            f"{what}: {bad[0]}{more} hold NaN or infinity, and results made with them mean nothing: go back to "
            f"an earlier checkpoint, or train again with a lower optim.lr"
        )


def digest_weights(source: Path | Mapping[str, Tensor]) -> str:
    """A digest of weights, 32 hexadecimal digits: equal for equal names, types, shapes and values, whatever file or
    folder they are in. source: a state dict, or a folder as in `read_model`."""
    state = _read_state(model_folder(source) / "model.safetensors") if isinstance(source, Path) else source
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name}/{tensor.dtype}/{tuple(tensor.shape)};".encode())
        if tensor.numel():
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_folder(path: Path) -> Path:
    """The folder pretrained_model of a checkpoint; `path` as in `read_model`."""
    folder = path if (path / "model.safetensors").exists() else path / "pretrained_model"
    if not folder.exists() and list_checkpoints(path):
        folder = list_checkpoints(path)[-1] / "pretrained_model"
    if folder.is_dir():
        _require(folder / "model.safetensors")
    else:
        raise ValueError(f"there is no checkpoint in {path}: pass a run's folder or one of its checkpoints/<step>")
    return folder


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((p for p in (run / "checkpoints").glob("[0-9]*") if p.name.isdigit()), key=lambda p: int(p.name))


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be used, so that it is no longer listed and its step can be written again."""
    aside, number = path.with_name(f"{path.name}.damaged"), 1
    while aside.exists():
        aside, number = path.with_name(f"{path.name}.damaged{number}"), number + 1
    return path.rename(aside)


def _require(path: Path) -> Path:
    if not path.is_file():
        raise ValueError(f"the checkpoint's file {path} is missing: {_ADVICE}")
    return path


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged ({why}): {_ADVICE}")


def _record(path: Path, shape: Any) -> Any:
    """The value of a JSON file of a checkpoint, which must have that shape."""
    return read_record(_require(path), shape, _ADVICE)


def _copy(tensors: State) -> State:
    """Copies that share no memory: safetensors stores every name on its own (shared encodings have several)."""
    return {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}


def _split_optimizer(state: dict[str, Any]) -> tuple[State, Any]:
    tensors = {f"{name}/{key}": t for name, entry in state["state"].items() for key, t in entry.items()}
    groups = [{k: _plain(v) for k, v in group.items()} for group in state["param_groups"]]
    return tensors, groups


def _plain(value: Any) -> Any:
    """A learning rate that lives on the device, as a captured step needs it, becomes a number."""
    return value.item() if isinstance(value, Tensor) else value


def _join_optimizer(tensors: State, groups: Any) -> dict[str, Any]:
    state: dict[str, State] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        state.setdefault(name, {})[key] = tensor
    return {"state": state, "param_groups": groups}
