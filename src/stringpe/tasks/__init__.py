"""Tasks: the data, model, loss and evaluation of a recipe. A new task is one file here and a recipe that names it."""

from collections.abc import Iterable
from importlib import import_module

from ..data.sources import SERVES, check_source
from ..io.registry import look_up
from ..recipes.schema import Recipe
from .base import Task

_TASKS: dict[str, tuple[str, str] | type[Task]] = {
    "classification": ("classification", "Classification"),
    "objects": ("objects", "Objects"),
    "retrieval": ("retrieval", "Retrieval"),
    "detection2d": ("detection2d", "Detection2D"),
    "detection3d": ("detection3d", "Detection3D"),
    "policy": ("policy", "PolicyTask"),
    "relations": ("relations", "Relations"),
    "shapes": ("shapes", "Shapes"),
}


def names() -> list[str]:
    """The names that a recipe's `task` can have."""
    return list(_TASKS)


def task_class(name: str) -> type[Task]:
    """The class of a task by its name in recipes."""
    entry = look_up("task", name, _TASKS)
    if not isinstance(entry, tuple):
        return entry
    module, attribute = entry
    task: type[Task] = getattr(import_module(f".{module}", __name__), attribute)
    return task


def register(name: str, task: type[Task]) -> None:
    """Let recipes name a task of your own: `Recipe(task=name)`."""
    if name in _TASKS:
        raise ValueError(f"there is a task named {name!r} already: choose another name")
    _TASKS[name] = task


def create(recipe: Recipe, given: Iterable[str] | None = None) -> Task:
    """The task of a recipe, with its data. given: keys of the recipe, each of which the task must read; by default
    those that differ from their defaults. For the recipe of a run, pass those that were changed since."""
    task = task_class(recipe.task)
    task.check(recipe, given)
    check_data(recipe)
    return task(recipe)


def check(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be run as it says, before any data is read or made."""
    task_class(recipe.task).check(recipe)


def check_data(recipe: Recipe) -> None:
    """Refuse a recipe whose data is not where it says, as far as can be seen without reading the data."""
    if recipe.task in SERVES:
        check_source(recipe.task, recipe.data)
