"""Starting from what was trained before: `model.start` names a run of ours, a recipe to be trained first, or a
checkpoint of transformers. Towers, tokeniser and learned tables of positions are carried over."""

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import recipes
from ..baselines import LearnedAbsolute
from ..coords import grid
from ..data.cache import digest
from ..io import checkpoint as checkpoints
from ..io.files import cache_folder, read_json
from ..models.depth import DepthLift
from ..models.owl import ClassHead
from ..models.owl_checkpoints import OWL_TYPES
from ..models.stem import vit_prefixes
from ..models.tokenizer import Tokenizer
from ..models.transformers_folder import load_tokenizer
from ..models.vit import ViT
from ..recipes.schema import Recipe

OWL_CONFIG = "owl.json"
"""In a checkpoint of a detector that came from transformers: its configuration there."""

_SHAPE_SETTINGS = {
    "model": ("dim", "layers", "heads", "patch_size", "stem", "encoding", "options", "share_layers"),
    "text": ("dim", "layers", "heads", "context", "encoding", "options", "pool", "width"),
}
_MAY_BE_NEW = ("lift.", "fuse.", "kind", "prefix")  # weights of a ViT that depth and registers add
_HEADS = ("head.", "map_pool.")
_TABLE = "absolute.weight"


# What a recipe starts from.


def start_folder(recipe: Recipe) -> Path | None:
    """The folder that the recipe's model starts from, or None for random weights."""
    text = recipe.model.start
    if not text:
        return None
    before = start_recipe(recipe)
    if before is not None:
        settings = replace(before, data=replace(before.data, cache="")).to_dict()  # wherever the cache lies
        return cache_folder(recipe.data.cache) / "starts" / f"{before.name}-{digest(settings)}"
    folder = Path(fill_in(text, recipe, "model.start"))
    if not folder.is_dir():
        raise ValueError(f"model.start={text} stands for {folder}, which is not a folder: train that run first")
    return folder


def start_recipe(recipe: Recipe) -> Recipe | None:
    """The recipe that has to be trained before this one, where `model.start` is "recipe:NAME". Its data is cached where
    this recipe's is."""
    kind, _, name = recipe.model.start.partition(":")
    if kind != "recipe":
        return None
    before = recipes.load(name)
    return replace(before, data=replace(before.data, cache=recipe.data.cache))


def fill_in(text: str, recipe: Recipe, key: str) -> str:
    """The text of a recipe's `key`, with {encoding}, {seed} and {depth} replaced by the recipe's own."""
    parts = {"encoding": recipe.model.encoding, "seed": str(recipe.seed), "depth": recipe.model.depth}
    if {"{", "}"} & {*re.sub("|".join(f"{{{name}}}" for name in parts), "", text)}:
        raise ValueError(f"{key} can hold {{encoding}}, {{seed}} and {{depth}}, got {text!r}")
    return re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], text)


def start_files(recipe: Recipe) -> list[Path]:
    """The files of weights, configurations and tokenisers that training begins with, as far as they exist. A run that
    the recipe trains first is left out, since the recipe itself says what it is."""
    tower = recipe.policy.encoder.partition(":")
    start = "" if recipe.model.start.startswith("recipe:") else recipe.model.start
    encoder = fill_in(tower[2] if tower[1] else tower[0], recipe, "policy.encoder")
    found: list[Path] = []
    for place in map(Path, filter(None, (fill_in(start, recipe, "model.start"), encoder, recipe.text.tokenizer))):
        if place.is_dir():
            with contextlib.suppress(ValueError):  # not a run: a folder of transformers, or one that is refused later
                place = checkpoints.model_folder(place)
            found += sorted(path for kind in ("*.safetensors", "*.json") for path in place.glob(kind))
        elif place.is_file():
            found.append(place)
    return found


# Weights.


def start_towers(model: nn.Module, recipe: Recipe, folder: Path) -> None:
    """Load into a new model of two towers what a run of ours has for it: everything from a run of the same task, else
    the towers, and from a run of retrieval also the projection of a class head."""
    old, weights = checkpoints.read_model(folder)
    texts = {name: tensor for name, tensor in weights.items() if name.startswith("text.")}
    where = f"model.start={folder}"
    refuse_other_shapes(old, recipe, where, ("model", "text") if texts else ("model",))
    new = model.state_dict()
    for name, tensor in texts.items():
        if name in new and new[name].shape != tensor.shape:
            raise ValueError(
                f"{where} has {name} of {tuple(tensor.shape)}, this model needs {tuple(new[name].shape)}: leave "
                f"text.tokenizer empty, to use that run's"
            )
    missing = [name for name in new if name.startswith("text.") and name not in texts] if texts else []
    if missing:
        raise ValueError(f"{where} has a text tower without {missing[0]}: restore it, or start from another run")
    assert isinstance(model.image, ViT)
    start_vit(model.image, weights, where)
    model.load_state_dict(texts, strict=False)
    if old.task == recipe.task:
        rest = {n: t for n, t in weights.items() if not n.startswith(("image.", "text."))}
        model.load_state_dict(rest, strict=False)
    elif isinstance(head := getattr(model, "class_head", None), ClassHead):
        _start_projection(head, old, weights)


def start_vit(vit: ViT, weights: Mapping[str, Tensor], where: str) -> None:
    """Load the vision transformer found in a checkpoint's weights, perhaps inside a larger model.

    A 2D one may become 3D: the frequencies of the plane are kept, those of depth are new, and the depth layer's scale
    starts at 0, so that the first step sees what the 2D model saw. Registers and pooling that it lacks are new. A
    learned table of absolute embeddings, made for a square image, is resampled at this model's patches."""
    new = vit.state_dict()
    prefix = _find_prefix(new, weights, where)
    lifted = False
    for name, tensor in new.items():
        old = weights.get(prefix + name)
        if old is None:
            continue
        if old.shape == tensor.shape:
            tensor.copy_(old)
        elif _is_frequencies(name) and old.ndim == tensor.ndim >= 3 and old.shape[1] + 1 == tensor.shape[1]:
            tensor[:, : old.shape[1]] = old
            lifted = True
        elif name == _TABLE and old.shape[1] == tensor.shape[1]:
            tensor.copy_(resize_table(old, len(tensor), vit.table_size))
        elif not name.startswith((*_MAY_BE_NEW, "head.")):
            raise ValueError(
                f"{where} has {name} of {tuple(old.shape)}, this model needs {tuple(tensor.shape)}: "
                f"set model.* as that run had it"
            )
    if isinstance(vit.lift, DepthLift) and (lifted or f"{prefix}lift.scale" not in weights):
        nn.init.zeros_(vit.lift.scale)


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights that must be those of the model; learned tables of absolute embeddings are resampled at its patches,
    which a recipe with another image size has more or fewer of."""
    needed = model.state_dict()
    fitted = dict(weights)
    for name, table in weights.items():
        if name.endswith(_TABLE) and name in needed and needed[name].shape[1:] == table.shape[1:]:
            fitted[name] = resize_table(table, len(needed[name]))
    unmatched = sorted(needed.keys() ^ fitted.keys())
    misshapen = [name for name in needed if name in fitted and needed[name].shape != fitted[name].shape]
    if misshapen:
        name = misshapen[0]
        reason = f"{name} is {tuple(fitted[name].shape)} there, {tuple(needed[name].shape)} by the recipe"
    elif unmatched:
        name = unmatched[0]
        reason = (
            f"they lack {name}: another version may have written them" if name in needed else f"they have {name} too"
        )
    else:
        model.load_state_dict(fitted)
        return
    raise ValueError(f"the weights of {where} are not those of its recipe ({reason}): leave model.* and text.* alone")


def refuse_other_shapes(old: Recipe, new: Recipe, where: str, groups: Iterable[str] = ("model",)) -> None:
    """Refuse a run whose towers have other shapes than this recipe's. Depth may differ: see `start_vit`."""
    differing = []
    for group in groups:
        for name in _SHAPE_SETTINGS[group]:
            there, here = (getattr(getattr(recipe, group), name) for recipe in (old, new))
            if there != here:
                key = "encoding_options" if name == "options" else name
                differing.append(f"{group}.{key}={there} there, {here} here")
    if differing:
        raise ValueError(f"{where} has other towers than this recipe ({'; '.join(differing)}): set them as that run")


def resize_table(table: Tensor, patches: int, new: tuple[int, int] | None = None) -> Tensor:
    """A learned table of a square image, resampled at another number of patches: of a square, or of the grid `new`."""
    if len(table) == patches:
        return table
    old, side = math.isqrt(len(table)), math.isqrt(patches)
    return resample(table, (old, old), new or (side, side))


def resample(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A learned table (rows · columns, dim) of one grid of patches at those of another, by bilinear interpolation."""
    module = LearnedAbsolute(table.shape[1], old)
    with torch.no_grad():
        module.weight.copy_(table)
        places = (grid(*new, units="normalised") + 1) / 2 * torch.tensor(old) - 0.5
        return module(places)


def _start_projection(head: ClassHead, old: Recipe, weights: Mapping[str, Tensor]) -> None:
    """Let a class head start from the projection of a run of retrieval: what was learned for the mean of the tokens
    suits each of them."""
    if old.model.pool == "mean" and "projection.weight" in weights:
        names = {"weight": "projection.weight", "bias": "projection.bias"}
        head.project.load_state_dict({name: weights[key] for name, key in names.items()})


def _find_prefix(vit: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: str) -> str:
    """What stands before the names of a vision transformer in a checkpoint that holds one like it."""
    needed = [name for name in vit if not name.startswith((*_MAY_BE_NEW, *_HEADS))]
    for prefix in vit_prefixes(weights):
        if all(prefix + name in weights for name in needed):
            return prefix
    raise ValueError(
        f"{where} holds no vision transformer like this one ({len(needed)} tensors, encodings included): "
        f"set model.* as that run had it"
    )


def _is_frequencies(name: str) -> bool:
    return name.endswith(("encoding.frequencies.weight", "encoding.frequencies.coefficients"))


# Detectors of transformers, and tokenisers.


def is_owl(folder: Path) -> bool:
    """Whether a folder holds an OWL-ViT or OWLv2 model as transformers writes it."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    return isinstance(config, dict) and config.get("model_type") in OWL_TYPES


def read_owl_config(recipe: Recipe) -> Mapping[str, Any] | None:
    """The configuration in transformers of the detector that the recipe's model starts from; None for our own
    towers."""
    folder = start_folder(recipe)
    if folder is None:
        return None
    path = folder / "config.json" if is_owl(folder) else checkpoints.model_folder(folder) / OWL_CONFIG
    config: Mapping[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return config


def choose_tokenizer(recipe: Recipe, texts: Sequence[str]) -> Tokenizer:
    """The tokeniser that the recipe's model must use: of its file, or of what it starts from; else a BPE trained on the
    texts."""
    folder = start_folder(recipe)
    if folder is not None and is_owl(folder) and not recipe.text.tokenizer:
        return load_tokenizer(folder)
    file = name_tokenizer(recipe).text.tokenizer
    return Tokenizer.load(file) if file else Tokenizer.train(texts, vocab=recipe.text.vocab)


def name_tokenizer(recipe: Recipe) -> Recipe:
    """The recipe with `text.tokenizer` naming the tokeniser of the run that its towers start from, unless it names one
    itself."""
    folder = start_folder(recipe)
    if folder is None or recipe.text.tokenizer:
        return recipe
    path = checkpoints.model_folder(folder) / checkpoints.TOKENIZER
    return replace(recipe, text=replace(recipe.text, tokenizer=str(path))) if path.exists() else recipe
