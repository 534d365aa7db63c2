"""Trained models from the folder of a run, for every task.

    load_run("runs/cayley")      the trained model, without its data: to predict, to act, to export
    open_run("runs/cayley")      the run's task with its data, and the trained model: to evaluate

A folder may also be one of the run's checkpoints.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from ..io import checkpoint as checkpoints
from ..io.files import read_json
from ..models.owl_checkpoints import load_owl
from ..models.transformers_folder import load_tokenizer
from ..models.vit import ViT
from ..recipes.overrides import override
from ..recipes.schema import Data, Recipe
from . import create, task_class
from .base import Parts, Task
from .warm_start import is_owl, load_weights


class LoadedRun(NamedTuple):
    """A trained model, ready to be used, with its recipe and parts."""

    model: nn.Module
    recipe: Recipe
    parts: Parts


def load_run(path: str | Path, task: str = "") -> LoadedRun:
    """The trained model of a run, or of an OWL-ViT or OWLv2 folder of transformers. task: the task that the run must be
    of; any by default."""
    run = _load_owl(Path(path)) if is_owl(Path(path)) else _load_run(Path(path))
    if task and run.recipe.task != task:
        raise ValueError(f"{path} holds a run of the task {run.recipe.task!r}: a run of {task!r} is needed here")
    return run


def open_run(path: str | Path, changes: Sequence[str] = ()) -> tuple[Task, nn.Module]:
    """The task of a run, with its data, and its trained model. changes: overrides of its recipe, for example data on
    another machine: ["data.val=…"]."""
    recipe, weights = checkpoints.read_model(Path(path))
    refuse_foreign_code(recipe, Path(path), changes)
    folder = checkpoints.model_folder(Path(path))
    reopening = _find_task(recipe, folder).changes_to_reopen(recipe, folder)
    changed_keys = [change.partition("=")[0] for change in changes]
    task = create(override(recipe, [*reopening, *changes]), given=changed_keys)
    model = task.build(task.recipe, task.parts)
    load_weights(model, weights, str(path))
    return task, model


def load_vit(path: str | Path) -> tuple[ViT, int]:
    """The only vision transformer in the model of a run, and the image size that it was trained with."""
    model, recipe, _ = load_run(path)
    vits = [module for module in model.modules() if isinstance(module, ViT)]
    if len(vits) != 1:
        number = "no vision transformer of ours" if not vits else f"{len(vits)} vision transformers"
        raise ValueError(
            f"{path}, a run of {recipe.task}, has {number}, but exactly one can be exported: pass a run of "
            f"classification, retrieval, detection or objects"
        )
    return vits[0], recipe.data.image_size


def refuse_foreign_code(recipe: Recipe, folder: Path, changes: Sequence[str] = ()) -> None:
    """Refuse a run whose encoding is a function of somebody's module, unless the user names it too: a run is data, and
    must not choose what is imported."""
    for group, encoding in (("model", recipe.model.encoding), ("text", recipe.text.encoding)):
        if ":" in encoding and f"{group}.encoding={encoding}" not in changes:
            raise ValueError(
                f"the encoding of {folder} is code, {encoding!r}, which a run may not choose: if you trust it, "
                f"add {group}.encoding={encoding}"
            )


def _load_run(path: Path) -> LoadedRun:
    recipe, weights = checkpoints.read_model(path)
    refuse_foreign_code(recipe, path)
    folder = checkpoints.model_folder(path)
    task = _find_task(recipe, folder)
    parts = task.read_parts(folder, weights)
    try:
        model = task.build(recipe, parts)
    except (ValueError, TypeError, AttributeError, AssertionError, OverflowError) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"{folder / 'config.json'} describes a model that cannot be built ({reason}): restore it"
        ) from None
    load_weights(model, weights, str(path))
    return LoadedRun(model.eval(), recipe, parts)


def _find_task(recipe: Recipe, folder: Path) -> type[Task]:
    """The class of the task that the recipe in a model's folder names."""
    try:
        return task_class(recipe.task)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'} names a task that is not there: {error}") from None


def _load_owl(folder: Path) -> LoadedRun:
    model = load_owl(folder).eval()
    recipe = Recipe(name=folder.name, task="detection2d", data=Data(image_size=model.image_size))
    return LoadedRun(model, recipe, Parts(load_tokenizer(folder), read_json(folder / "config.json")))
