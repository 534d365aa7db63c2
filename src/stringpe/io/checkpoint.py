"""Checkpoints: safetensors and JSON, nothing that could run code when it is read.

checkpoints/000500/
  pretrained_model/config.json, model.safetensors      the recipe and the weights to use (the average, if one is kept)
                   and what else the task needs to use them, for example tokenizer.json
  training_state/optimizer.safetensors, optimizer.json, rng.safetensors, progress.json[, weights.safetensors]
"""

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..recipes.overrides import from_dict
from ..recipes.schema import Recipe
from .files import new_folder, read_json, write_json, write_text

State = dict[str, Tensor]

TOKENIZER = "tokenizer.json"
"""Beside the weights of a model that reads texts."""


@dataclass(frozen=True)
class Checkpoint:
    """All of a run after `step` steps. model: the weights to use; weights: those in training, where an average is kept
    beside them, else None. optimizer: {"state": {name: {key: tensor}}, "param_groups": […]}. rng: one row a process.
    files: texts of the task that go with the model, by file name; written, and read by who needs them."""

    step: int
    recipe: Recipe
    model: State
    weights: State | None
    optimizer: dict[str, Any]
    rng: State
    progress: dict[str, Any]
    files: dict[str, str] = field(default_factory=dict)


def write(run: Path, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write to run/checkpoints/<step>, atomically, then remove all but the newest `keep`."""
    from safetensors.torch import save_file

    path = run / "checkpoints" / f"{checkpoint.step:06d}"
    if path.exists():
        return path
    with new_folder(path) as draft:
        pretrained, training = draft / "pretrained_model", draft / "training_state"
        pretrained.mkdir()
        training.mkdir()
        write_json(pretrained / "config.json", checkpoint.recipe.to_dict())
        save_file(_apart(checkpoint.model), pretrained / "model.safetensors")
        for name, text in checkpoint.files.items():
            write_text(pretrained / name, text)
        if checkpoint.weights is not None:
            save_file(_apart(checkpoint.weights), training / "weights.safetensors")
        tensors, plain = _split_optimizer(checkpoint.optimizer)
        save_file(_apart(tensors), training / "optimizer.safetensors")
        write_json(training / "optimizer.json", plain)
        save_file(_apart(checkpoint.rng), training / "rng.safetensors")
        write_json(training / "progress.json", {"step": checkpoint.step, **checkpoint.progress})
    for old in found(run)[: -max(keep, 1)]:
        shutil.rmtree(old)
    return path


def read(path: Path) -> Checkpoint:
    """The checkpoint in that folder."""
    from safetensors.torch import load_file

    recipe, model = read_model(path)
    training = path / "training_state"
    raw = training / "weights.safetensors"
    progress = read_json(training / "progress.json")
    plain = read_json(training / "optimizer.json")
    return Checkpoint(
        step=progress["step"],
        recipe=recipe,
        model=model,
        weights=load_file(raw) if raw.exists() else None,
        optimizer=_join_optimizer(load_file(training / "optimizer.safetensors"), plain),
        rng=load_file(training / "rng.safetensors"),
        progress=progress,
    )


def read_model(path: Path) -> tuple[Recipe, State]:
    """Recipe and weights of a checkpoint; `path` is its folder, a run's (the newest is taken) or pretrained_model."""
    from safetensors.torch import load_file

    folder = model_folder(path)
    return from_dict(read_json(folder / "config.json")), load_file(folder / "model.safetensors")


def model_folder(path: Path) -> Path:
    """The folder pretrained_model of a checkpoint; `path` as in `read_model`."""
    folder = path if (path / "model.safetensors").exists() else path / "pretrained_model"
    if not folder.exists() and found(path):
        folder = found(path)[-1] / "pretrained_model"
    if not (folder / "model.safetensors").exists():
        raise ValueError(f"there is no checkpoint in {path}: pass a run's folder or one of its checkpoints/<step>")
    return folder


def digest_weights(weights: State) -> str:
    """Sixteen hexadecimal digits that change with any name, dtype, shape or value: what a result is tied to."""
    mark = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(weights.items()):
        plain = tensor.detach().cpu().contiguous()
        mark.update(repr((name, str(plain.dtype), tuple(plain.shape))).encode())
        mark.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return mark.hexdigest()


def found(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    return sorted((p for p in (run / "checkpoints").glob("[0-9]*") if p.name.isdigit()), key=lambda p: int(p.name))


def _apart(tensors: State) -> State:
    """Copies that share no memory: safetensors stores every name on its own (shared encodings have several)."""
    return {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}


def _split_optimizer(state: dict[str, Any]) -> tuple[State, Any]:
    tensors = {f"{name}/{key}": t for name, entry in state["state"].items() for key, t in entry.items()}
    return tensors, state["param_groups"]


def _join_optimizer(tensors: State, groups: Any) -> dict[str, Any]:
    state: dict[str, State] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        state.setdefault(name, {})[key] = tensor
    return {"state": state, "param_groups": groups}
