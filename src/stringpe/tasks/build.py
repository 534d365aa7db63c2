"""Models by recipe and by folder, for every task: build one, let it start from a run, load a run.

A task class says how its model is built from a recipe and `Parts` (`Task.build`). Everything else is here:

    start(model, recipe)         begin with the weights of `model.start`, another run or a checkpoint of transformers
    load_run("runs/cayley")      the trained model of a run, without its data: to predict, to act, to export
    open_run("runs/cayley")      the run's task with its data, and the trained model: to evaluate
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from .. import recipes
from ..baselines import LearnedAbsolute
from ..coords import grid
from ..data.cache import digest
from ..io import checkpoint as checkpoints
from ..io.files import cache_folder, read_json
from ..models.contrastive import Contrastive
from ..models.depth import DepthLift
from ..models.owl import ClassHead
from ..models.owl_checkpoints import KINDS, load_owl, load_owl_tokenizer
from ..models.stem import prefixes
from ..models.text import TextTower
from ..models.tokenizer import Tokenizer
from ..models.vit import ViT
from ..recipes.overrides import override
from ..recipes.schema import Data, Recipe
from ..robots.policies.vision_tower import TOWER
from . import create, task_class
from .backbone import backbone, start_new
from .base import OWL, Parts, Task

_SHAPES = {
    "model": ("dim", "layers", "heads", "patch_size", "stem", "encoding", "options", "share_layers"),
    "text": ("dim", "layers", "heads", "context", "encoding", "options", "pool", "width"),
}
_MAY_BE_NEW = ("lift.", "fuse.", "kind", "prefix")  # what a ViT may lack to start from: depth and registers bring it
_ALSO_NEW = ("head.", "map_pool.")
_TABLE = "absolute.weight"

Detector = TypeVar("Detector", bound=nn.Module)


class Loaded(NamedTuple):
    """A trained model, ready to be used, with its recipe and parts."""

    model: nn.Module
    recipe: Recipe
    parts: Parts


def build_text_tower(recipe: Recipe, *, vocab: int, padding: int, layers: int | None = None) -> TextTower:
    """The text tower that a recipe describes, with random weights; `layers` in place of the recipe's."""
    text = recipe.text
    return TextTower(
        vocab=vocab,
        dim=text.dim,
        layers=text.layers if layers is None else layers,
        num_heads=text.heads,
        context=text.context,
        encoding=text.encoding,
        encoding_options=text.options,
        pool=text.pool,
        width=text.width,
        padding=padding,
        mlp_ratio=text.mlp_ratio,
        dropout=text.dropout,
        drop_path=text.drop_path,
    )


def build_towers(recipe: Recipe, tokenizer: Tokenizer, bias: float = 0.0) -> Contrastive:
    """The image tower and the text tower that a recipe describes, with random weights. bias: start of the pair bias."""
    tower = build_text_tower(recipe, vocab=len(tokenizer), padding=tokenizer.padding)
    image = backbone(recipe.model, image_size=recipe.data.image_size)
    return Contrastive(image, tower, bias=bias)


def build_detector(kind: Callable[..., Detector], recipe: Recipe, parts: Parts) -> Detector:
    """The detector that a recipe describes, at the start of its training: heads of this kind on two new towers."""
    assert parts.tokenizer is not None
    towers = build_towers(recipe, parts.tokenizer)
    model = kind(towers.image, towers.text, factor=recipe.loss.factor)
    start_new(model, recipe)
    return model


def load_run(path: str | Path, task: str = "") -> Loaded:
    """The model of a run's folder, one of its checkpoints, or an OWL-ViT or OWLv2 folder of transformers.

    task: the task that the run must be of; any by default."""
    folder = Path(path)
    if is_owl(folder):
        owl = load_owl(folder)
        recipe = Recipe(name=folder.name, task="detection2d", data=Data(image_size=owl.image_size))
        found = Loaded(owl.eval(), recipe, Parts(load_owl_tokenizer(folder), read_json(folder / "config.json")))
    else:
        recipe, weights = checkpoints.read_model(folder)
        refuse_foreign_code(recipe, folder)
        parts = read_parts(checkpoints.model_folder(folder), weights)
        model = _build(recipe, parts, checkpoints.model_folder(folder) / "config.json")
        fit(model, weights, str(path))
        found = Loaded(model.eval(), recipe, parts)
    if task and found.recipe.task != task:
        raise ValueError(f"{path} holds a run of the task {found.recipe.task!r}: a run of {task!r} is needed here")
    return found


def _build(recipe: Recipe, parts: Parts, config: Path) -> nn.Module:
    """The model of a recipe that was read from a run; ValueError that names its file if there is no such model."""
    try:
        return task_class(recipe.task).build(recipe, parts)
    except (ValueError, TypeError, AttributeError, AssertionError, OverflowError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"{config} describes a model that cannot be built ({reason}): restore it") from None


def open_run(path: str | Path, changes: Sequence[str] = ()) -> tuple[Task, nn.Module]:
    """The task of a run, with its data, and its trained model. changes: overrides of its recipe, for example data on
    another machine: ["data.val=…"]."""
    recipe, weights = checkpoints.read_model(Path(path))
    refuse_foreign_code(recipe, Path(path), changes)
    folder = checkpoints.model_folder(Path(path))
    tokenizer = folder / checkpoints.TOKENIZER
    own = [f"text.tokenizer={tokenizer}"] if tokenizer.exists() else []  # the one it was trained with
    own += [f"model.start={folder}"] if recipe.model.start else []  # what it started from may be gone
    own += [f"policy.encoder=siglip:{folder}"] if (folder / TOWER).exists() else []
    task = create(override(recipe, [*own, *changes]), given=[change.partition("=")[0] for change in changes])
    model = task.build(task.recipe, task.parts)
    fit(model, weights, str(path))
    return task, model


def load_vit(path: str | Path) -> tuple[ViT, int]:
    """The one vision transformer in the model of a run, and the image size that it was trained at."""
    model, recipe, _ = load_run(path)
    found = [module for module in model.modules() if isinstance(module, ViT)]
    if len(found) != 1:
        what = "no vision transformer of ours" if not found else f"{len(found)} vision transformers"
        raise ValueError(
            f"{path}, a run of {recipe.task}, has {what}, and one is what can be exported: pass a run of "
            f"classification, retrieval, detection or objects"
        )
    return found[0], recipe.data.image_size


def fit(model: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Load weights that must be those of the model; a learned table of absolute embeddings is read at its patches."""
    own = model.state_dict()
    fitted = dict(weights)
    for name, table in weights.items():
        if name.endswith(_TABLE) and name in own and own[name].shape[1:] == table.shape[1:]:
            fitted[name] = resize_table(table, len(own[name]))
    other = sorted(own.keys() ^ fitted.keys())
    shapes = [name for name in own if name in fitted and own[name].shape != fitted[name].shape]
    if shapes:
        name = shapes[0]
        what = f"{name} is {tuple(fitted[name].shape)} there, {tuple(own[name].shape)} by the recipe"
    elif other:
        what = f"only one of them has {other[0]}"
    else:
        model.load_state_dict(fitted)
        return
    raise ValueError(f"the weights of {where} are not those of its recipe ({what}): leave model.* and text.* as it has")


def read_parts(folder: Path, weights: Mapping[str, Tensor]) -> Parts:
    """What a checkpoint (its folder pretrained_model) holds for its model to be built."""
    tokenizer, owl, tower = folder / checkpoints.TOKENIZER, folder / OWL, folder / TOWER
    spec = None
    if "about" in weights:
        from ..robots.policies.base import read_spec

        spec = read_spec(weights)
    return Parts(
        tokenizer=Tokenizer.load(tokenizer) if tokenizer.exists() else None,
        owl=read_json(owl) if owl.exists() else None,
        spec=spec,
        tower=read_json(tower) if tower.exists() else None,
    )


def refuse_foreign_code(recipe: Recipe, folder: Path, changes: Sequence[str] = ()) -> None:
    """Refuse a run whose encoding is a function of somebody's module, unless the user names it too: a run is data, and
    must not choose what is imported."""
    for group, encoding in (("model", recipe.model.encoding), ("text", recipe.text.encoding)):
        if ":" in encoding and f"{group}.encoding={encoding}" not in changes:
            raise ValueError(
                f"the encoding of {folder} is code, {encoding!r}, which a run may not choose: if you trust it, "
                f"add {group}.encoding={encoding}"
            )


# Starting from a run


def start(model: nn.Module, recipe: Recipe) -> None:
    """Let a new model start from `model.start`: all of it from a run of the same task, else the towers, and the
    projection of a class head where the run has one for it. Nothing happens where `model.start` is empty."""
    folder = start_folder(recipe)
    if folder is None:
        return
    if is_owl(folder):
        model.load_state_dict(load_owl(folder).state_dict())
        return
    old, weights = checkpoints.read_model(folder)
    if (checkpoints.model_folder(folder) / OWL).exists():
        fit(model, weights, str(folder))
        return
    texts = {name: tensor for name, tensor in weights.items() if name.startswith("text.")}
    where = f"model.start={folder}"
    refuse_other_shapes(old, recipe, where, ("model", "text") if texts else ("model",))
    own = model.state_dict()
    for name, tensor in texts.items():
        if name in own and own[name].shape != tensor.shape:
            raise ValueError(
                f"{where} has {name} of {tuple(tensor.shape)}, this model needs {tuple(own[name].shape)}: leave "
                f"text.tokenizer empty, to use that run's"
            )
    assert isinstance(model.image, ViT)
    start_vit(model.image, weights, where)
    model.load_state_dict(texts, strict=False)
    if old.task == recipe.task:
        rest = {n: t for n, t in weights.items() if not n.startswith(("image.", "text."))}
        model.load_state_dict(rest, strict=False)
    elif isinstance(head := getattr(model, "class_head", None), ClassHead):
        _start_projection(head, old, weights)


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
    """The recipe that has to be trained before this one, where `model.start` is "recipe:NAME"; its data is kept where
    this recipe's is."""
    kind, _, name = recipe.model.start.partition(":")
    if kind != "recipe":
        return None
    before = recipes.load(name)
    return replace(before, data=replace(before.data, cache=recipe.data.cache))


def fill_in(text: str, recipe: Recipe, key: str) -> str:
    """What the text of a recipe's `key` stands for, with {encoding}, {seed} and {depth} replaced by the recipe's."""
    try:
        return text.format(encoding=recipe.model.encoding, seed=recipe.seed, depth=recipe.model.depth)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"{key} can hold {{encoding}}, {{seed}} and {{depth}}, got {text!r}") from error


def refuse_other_shapes(old: Recipe, new: Recipe, where: str, groups: Iterable[str] = ("model",)) -> None:
    """Refuse a run whose towers are not those of this recipe. Depth may differ: see `start_vit`."""
    differing = []
    for group in groups:
        for name in _SHAPES[group]:
            there, here = (getattr(getattr(recipe, group), name) for recipe in (old, new))
            if there != here:
                shown = "encoding_options" if name == "options" else name
                differing.append(f"{group}.{shown}={there} there, {here} here")
    if differing:
        raise ValueError(f"{where} has other towers than this recipe ({'; '.join(differing)}): set them as that run")


def start_vit(vit: ViT, weights: Mapping[str, Tensor], where: str) -> None:
    """Load the vision transformer found in a checkpoint's weights, perhaps inside a larger model.

    A 2D one may become 3D: the frequencies of the plane are kept, those of depth are as new, and the depth layer's
    scale starts at 0, so that the first step sees what the 2D model saw. Registers and pooling that it lacks are new.
    A learned table of absolute embeddings, one of a square image, is read at this model's patches."""
    own = vit.state_dict()
    prefix = _find_prefix(own, weights, where)
    lifted = False
    for name, tensor in own.items():
        found = weights.get(prefix + name)
        if found is None:
            continue
        if found.shape == tensor.shape:
            tensor.copy_(found)
        elif _is_frequencies(name) and found.ndim == tensor.ndim >= 3 and found.shape[1] + 1 == tensor.shape[1]:
            tensor[:, : found.shape[1]] = found
            lifted = True
        elif name == _TABLE and found.shape[1] == tensor.shape[1]:
            tensor.copy_(resize_table(found, len(tensor), vit.table_size))
        elif not name.startswith((*_MAY_BE_NEW, "head.")):
            raise ValueError(
                f"{where} has {name} of {tuple(found.shape)}, this model needs {tuple(tensor.shape)}: "
                f"set model.* as that run had it"
            )
    if isinstance(vit.lift, DepthLift) and (lifted or f"{prefix}lift.scale" not in weights):
        nn.init.zeros_(vit.lift.scale)


def resample(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """A learned table (rows · columns, dim) of one grid of patches at those of another, by bilinear interpolation."""
    module = LearnedAbsolute(table.shape[1], old)
    with torch.no_grad():
        module.weight.copy_(table)
        plane = (grid(*new, units="normalised") + 1) / 2 * torch.tensor(old) - 0.5
        return module(plane)


def resize_table(table: Tensor, patches: int, new: tuple[int, int] | None = None) -> Tensor:
    """The table of a square image for one of so many patches: a square, or the grid `new`."""
    if len(table) == patches:
        return table
    old, side = math.isqrt(len(table)), math.isqrt(patches)
    return resample(table, (old, old), new or (side, side))


def _start_projection(head: ClassHead, old: Recipe, weights: Mapping[str, Tensor]) -> None:
    """Let a class head start from what a run of retrieval projects its pooled tokens with: what was learned for the
    mean of the tokens suits each of them."""
    if old.model.pool == "mean" and "projection.weight" in weights:
        names = {"weight": "projection.weight", "bias": "projection.bias"}
        head.project.load_state_dict({name: weights[key] for name, key in names.items()})


def _find_prefix(own: Mapping[str, Tensor], weights: Mapping[str, Tensor], where: str) -> str:
    """What stands before a vision transformer's names in a checkpoint that holds one."""
    needed = [name for name in own if not name.startswith((*_MAY_BE_NEW, *_ALSO_NEW))]
    for prefix in prefixes(weights):
        if all(prefix + name in weights for name in needed):
            return prefix
    raise ValueError(
        f"{where} holds no vision transformer like this one ({len(needed)} tensors, encodings included): "
        f"set model.* as that run had it"
    )


def _is_frequencies(name: str) -> bool:
    return name.endswith(("encoding.frequencies.weight", "encoding.frequencies.coefficients"))


# Texts


def is_owl(folder: Path) -> bool:
    """Whether a folder holds an OWL-ViT or OWLv2 model as transformers writes it."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    return isinstance(config, dict) and config.get("model_type") in KINDS


def start_tokenizer(recipe: Recipe) -> Tokenizer | None:
    """The tokeniser that a recipe's model must use: of its file, or of what it starts from; None where it is free."""
    if recipe.text.tokenizer:
        return Tokenizer.load(recipe.text.tokenizer)
    folder = start_folder(recipe)
    if folder is None:
        return None
    if is_owl(folder):
        return load_owl_tokenizer(folder)
    path = checkpoints.model_folder(folder) / checkpoints.TOKENIZER
    return Tokenizer.load(path) if path.exists() else None


def choose_tokenizer(recipe: Recipe, texts: Sequence[str]) -> Tokenizer:
    """The tokeniser that the recipe's model must use, or a BPE trained on the texts."""
    return start_tokenizer(recipe) or Tokenizer.train(texts, vocab=recipe.text.vocab)


def keep_tokenizer(recipe: Recipe) -> Recipe:
    """The recipe with the tokeniser file of the run that its towers start from, if it names none itself."""
    folder = start_folder(recipe)
    if folder is None or recipe.text.tokenizer:
        return recipe
    path = checkpoints.model_folder(folder) / checkpoints.TOKENIZER
    return replace(recipe, text=replace(recipe.text, tokenizer=str(path))) if path.exists() else recipe


def start_owl(recipe: Recipe) -> Mapping[str, Any] | None:
    """The transformers configuration of the model that the recipe's starts from; None for towers of our own."""
    folder = start_folder(recipe)
    if folder is None:
        return None
    path = folder / "config.json" if is_owl(folder) else checkpoints.model_folder(folder) / OWL
    found: Mapping[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found
