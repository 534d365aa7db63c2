"""Tasks: data, model, loss and evaluation of a recipe. A new task is one class here and a recipe that names it."""

import difflib
from importlib import import_module

from ..recipes.schema import Recipe
from .base import Task

_TASKS = {
    "classification": ("classification", "Classification"),
    "objects": ("objects", "Objects"),
    "retrieval": ("retrieval", "Retrieval"),
    "detection2d": ("detection2d", "Detection2D"),
    "detection3d": ("detection3d", "Detection3D"),
    "policy": ("policy", "PolicyTask"),
}


_STARTED = ("retrieval", "detection2d", "detection3d")


def names() -> list[str]:
    """The names that a recipe's `task` can have."""
    return list(_TASKS)


def create(recipe: Recipe) -> Task:
    """The task of a recipe."""
    if recipe.task not in _TASKS:
        near = difflib.get_close_matches(recipe.task, _TASKS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"there is no task named {recipe.task!r}: {hint}The names are {', '.join(_TASKS)}")
    if recipe.model.start and recipe.task not in _STARTED:
        other = " A policy's encoder starts from policy.encoder." if recipe.task == "policy" else ""
        raise ValueError(f"model.start is for {', '.join(_STARTED)}; the task {recipe.task} starts at random.{other}")
    module, name = _TASKS[recipe.task]
    task: Task = getattr(import_module(f".{module}", __name__), name)(recipe)
    return task
