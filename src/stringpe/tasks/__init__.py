"""Tasks: data, model, loss and evaluation of a recipe. A new task is one file here and a recipe that names it."""

from collections.abc import Iterable
from importlib import import_module

from ..io.registry import look_up
from ..recipes.schema import Recipe
from .base import Task

_TASKS = {
    "classification": ("classification", "Classification"),
    "objects": ("objects", "Objects"),
    "retrieval": ("retrieval", "Retrieval"),
    "detection2d": ("detection2d", "Detection2D"),
    "detection3d": ("detection3d", "Detection3D"),
    "policy": ("policy", "PolicyTask"),
    "relations": ("relations", "Relations"),
}


def names() -> list[str]:
    """The names that a recipe's `task` can have."""
    return list(_TASKS)


def task_class(name: str) -> type[Task]:
    """The class of a task by its name in recipes."""
    module, found = look_up("task", name, _TASKS)
    task: type[Task] = getattr(import_module(f".{module}", __name__), found)
    return task


def create(recipe: Recipe, given: Iterable[str] | None = None) -> Task:
    """The task of a recipe, with its data. given: of a recipe that was read from a run, the keys that were changed
    since; only these must be keys that the task reads. All must be by default."""
    found = task_class(recipe.task)
    found.check(recipe, given)
    return found(recipe)


def check(recipe: Recipe) -> None:
    """Refuse a recipe that cannot be run as it says, in one line, before any data is read or made."""
    task_class(recipe.task).check(recipe)
