"""Models by recipe and by folder, for every task: build a new one, load the trained one of a run.

A task class says how its model is built from a recipe and `Parts` (`Task.build`), out of what is here:

    backbone(recipe.model, …)    the vision transformer that a recipe describes, new
    load_run("runs/cayley")      the trained model of a run, without its data: to predict, to act, to export
    open_run("runs/cayley")      the run's task with its data, and the trained model: to evaluate
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from torch import Tensor, nn

from ..io import checkpoint as checkpoints
from ..io.files import read_json
from ..models.contrastive import Contrastive
from ..models.frozen import lift_frozen
from ..models.initialise import Initialisation, initialise_by_name
from ..models.owl_checkpoints import load_owl, load_owl_tokenizer
from ..models.text import TextTower
from ..models.tokenizer import Tokenizer
from ..models.vit import ViT
from ..recipes.overrides import override
from ..recipes.schema import Data, Model, Recipe
from ..robots.policies.vision_tower import TOWER
from . import create, task_class
from .base import OWL, Parts, Task
from .warm_start import is_owl, load_weights


def backbone(
    model: Model, *, image_size: int, num_classes: int = 0, head_bias: float = 0.0, frame: str = "camera"
) -> ViT:
    """A ViT, or a ViTD where the recipe has depth.

    "none" has no coordinates to lift depth into and gets it as a channel instead, so that it sees the same data.
    """
    return ViT(
        dim=model.dim,
        layers=model.layers,
        num_heads=model.heads,
        patch_size=model.patch_size,
        stem=model.stem,
        encoding=model.encoding,
        encoding_options=model.options,
        share_layers=model.share_layers,
        depth="channel" if model.encoding == "none" and "lift" in model.depth else model.depth,
        frame=frame,
        pool=model.pool,
        registers=model.registers,
        units=model.units,
        mlp_ratio=model.mlp_ratio,
        dropout=model.dropout,
        drop_path=model.drop_path,
        attention=model.attention,
        qk_norm=model.qk_norm or None,
        image_size=image_size,
        num_classes=num_classes,
        head_bias=head_bias,
    )


FROZEN = ("backbone", "backbone+basis")
"""What `model.freeze` can be for a ViT that comes from `model.start`: all of it stays; the new basis stays as well."""


def frozen_backbone(model: Model, *, image_size: int) -> ViT:
    """A ViT on RGB with a learned table of positions, which stays as it is, and the recipe's encoding in every layer,
    which learns."""
    if model.freeze not in FROZEN:
        raise ValueError(f"model.freeze of this task is {' or '.join(FROZEN)}, got {model.freeze!r}")
    if model.depth not in ("none", "lift"):
        raise ValueError(f"a frozen ViT gets depth as a coordinate: model.depth is none or lift, got {model.depth!r}")
    plain = replace(model, encoding="absolute", encoding_options={}, share_layers=False, depth="none")
    return lift_frozen(
        backbone(plain, image_size=image_size),
        model.encoding,
        model.options,
        random_basis=model.freeze == "backbone+basis",
        rank=model.lora,
        depth=model.depth == "lift",
    )


def start_new(model: nn.Module, recipe: Recipe, *, skip: Collection[nn.Module] = ()) -> None:
    """Start a new model of a recipe: every parameter from (recipe.seed, its name), so that rows of a comparison that
    share a seed agree in all parameters that they have in common. Call it before weights of another run are loaded, and
    name in `skip` the modules that have been.
    """
    how = Initialisation(recipe.model.init, recipe.model.patch_gain)
    initialise_by_name(model, recipe.seed, how, skip=skip)


Detector = TypeVar("Detector", bound=nn.Module)


class LoadedRun(NamedTuple):
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


def load_run(path: str | Path, task: str = "") -> LoadedRun:
    """The model of a run's folder, one of its checkpoints, or an OWL-ViT or OWLv2 folder of transformers.

    task: the task that the run must be of; any by default."""
    folder = Path(path)
    if is_owl(folder):
        owl = load_owl(folder)
        recipe = Recipe(name=folder.name, task="detection2d", data=Data(image_size=owl.image_size))
        found = LoadedRun(owl.eval(), recipe, Parts(load_owl_tokenizer(folder), read_json(folder / "config.json")))
    else:
        recipe, weights = checkpoints.read_model(folder)
        refuse_foreign_code(recipe, folder)
        parts = read_parts(checkpoints.model_folder(folder), weights)
        model = _build(recipe, parts, checkpoints.model_folder(folder) / "config.json")
        load_weights(model, weights, str(path))
        found = LoadedRun(model.eval(), recipe, parts)
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
    load_weights(model, weights, str(path))
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
