"""Towers that start from another run: `model.start`, a folder in which {encoding}, {seed} and {depth} are filled in."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..baselines import LearnedAbsolute
from ..coords import grid
from ..io import checkpoint as checkpoints
from ..models.owl import ClassHead
from ..models.stem import prefixes
from ..models.vit import ViT
from ..recipes.schema import Recipe

TOWERS = ("image.", "text.")
_SHAPES = {
    "model": ("dim", "layers", "heads", "patch_size", "stem", "encoding", "encoding_options", "share_layers", "depth"),
    "text": ("dim", "layers", "heads", "context", "encoding", "encoding_options", "pool", "width"),
}


def start_folder(recipe: Recipe) -> Path | None:
    """Where the recipe's model starts from, or None for random weights."""
    text = recipe.model.start
    if not text:
        return None
    folder = Path(filled(text, recipe, "model.start"))
    if not folder.is_dir():
        raise ValueError(f"model.start={text} stands for {folder}, which is no folder: train that run first")
    return folder


def filled(text: str, recipe: Recipe, key: str) -> str:
    """What the text of a recipe's `key` stands for, with {encoding}, {seed} and {depth} filled in."""
    try:
        return text.format(encoding=recipe.model.encoding, seed=recipe.seed, depth=recipe.model.depth)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{key} can hold {{encoding}}, {{seed}} and {{depth}}, got {text!r}") from error


def start_tokenizer(folder: Path) -> Path | None:
    """The file with the tokeniser of the run that the towers come from; None where that run had no texts."""
    path = checkpoints.model_folder(folder) / checkpoints.TOKENIZER
    return path if path.exists() else None


def start_model(model: nn.Module, recipe: Recipe, folder: Path) -> None:
    """Let a model start from a run: all of it from one of the same task, else the towers, and the projection of a class
    head where the run has one for it."""
    old, weights = checkpoints.read_model(folder)
    _start_towers(model, recipe, folder, old, weights)
    if old.task == recipe.task:
        rest = {name: tensor for name, tensor in weights.items() if not name.startswith(TOWERS)}
        model.load_state_dict(rest, strict=False)
    elif isinstance(head := getattr(model, "class_head", None), ClassHead):
        _start_projection(head, old, weights)


def _start_towers(model: nn.Module, recipe: Recipe, folder: Path, old: Recipe, weights: dict[str, Tensor]) -> None:
    """Load the towers `model.image` and `model.text` from a run of retrieval or detection, or the image tower alone
    from one without texts, such as classification.

    What a tower of this model does not have (pooling, a classifier) is left behind, and a pooling that a run without
    texts did not have is new. A learned table of absolute embeddings is read at this model's patches."""
    both = any(name.startswith("text.") for name in weights)
    other = _differences(old, recipe, _SHAPES if both else ("model",))
    if other:
        raise ValueError(f"model.start={folder} has other towers than this recipe: {'; '.join(other)}")
    if not both:
        weights = _image_alone(weights, folder)
    wanted = {name: t for name, t in model.state_dict().items() if name.startswith(TOWERS if both else "image.")}
    missing = [name for name in wanted if name not in weights and (both or not name.startswith("image.map_pool."))]
    if missing:
        raise ValueError(f"model.start={folder}, a run of {old.task}, has no {missing[0]}: give one with such a tower")
    found = {name: weights[name] for name in wanted if name in weights}
    table = "image.absolute.weight"
    if table in wanted and wanted[table].shape != found[table].shape:
        sizes = [(r.data.image_size // r.model.patch_size,) * 2 for r in (old, recipe)]
        found[table] = resampled(found[table], sizes[0], sizes[1])
    model.load_state_dict(found, strict=False)


def _start_projection(head: ClassHead, old: Recipe, weights: dict[str, Tensor]) -> None:
    """Let a class head start from what a run of retrieval projects its pooled tokens with: what is made for a mean of
    tokens is made for each of them as well."""
    if old.model.pool == "mean" and "projection.weight" in weights:
        names = {"weight": "projection.weight", "bias": "projection.bias"}
        head.project.load_state_dict({name: weights[key] for name, key in names.items()})


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load all weights of a run into a model of its recipe, perhaps one for images of another size: a learned table of
    absolute embeddings, which spans the image whatever its size, is then read at this model's patches."""
    fitted = dict(weights)
    for name, module in model.named_modules():
        key = f"{name}.absolute.weight".lstrip(".")
        if not isinstance(module, ViT) or not isinstance(module.absolute, LearnedAbsolute) or key not in weights:
            continue
        side = math.isqrt(len(weights[key]))
        if weights[key].shape != module.absolute.weight.shape and side * side == len(weights[key]):
            fitted[key] = resampled(weights[key], (side, side), module.table_size)
    model.load_state_dict(fitted)


def resampled(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A learned table (rows · columns, dim) of one grid at the patches of another, by bilinear interpolation."""
    module = LearnedAbsolute(table.shape[1], old)
    with torch.no_grad():
        module.weight.copy_(table)
        plane = (grid(*new, units="normalised") + 1) / 2 * torch.tensor(old) - 0.5
        return module(plane)


def _image_alone(weights: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """The tensors of the one ViT among the weights, named as those of an image tower."""
    found = prefixes(weights)
    if not found:
        raise ValueError(f"model.start={folder} holds no vision transformer")
    return {f"image.{n.removeprefix(found[0])}": t for n, t in weights.items() if n.startswith(found[0])}


def _differences(old: Recipe, new: Recipe, groups: Iterable[str]) -> list[str]:
    """Settings that shape the towers and are not the same, as "model.dim=256 there, 192 here"."""
    there, here = asdict(old), asdict(new)
    return [
        f"{group}.{name}={_shown(there[group][name])} there, {_shown(here[group][name])} here"
        for group in groups
        for name in _SHAPES[group]
        if there[group][name] != here[group][name]
    ]


def _shown(value: Any) -> str:
    return repr(dict(value)) if isinstance(value, dict) else str(value)
