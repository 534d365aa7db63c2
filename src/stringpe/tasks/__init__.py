"""Tasks: data, model, loss and evaluation of a recipe. A new task is one class here and a recipe that names it."""

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


_STARTED = ("retrieval", "detection2d", "detection3d")


def names() -> list[str]:
    """The names that a recipe's `task` can have."""
    return list(_TASKS)


def create(recipe: Recipe) -> Task:
    """The task of a recipe."""
    module, name = look_up("task", recipe.task, _TASKS)
    if recipe.model.start and recipe.task not in _STARTED:
        other = " A policy's encoder starts from policy.encoder." if recipe.task == "policy" else ""
        raise ValueError(f"model.start is for {', '.join(_STARTED)}; the task {recipe.task} starts at random.{other}")
    if recipe.loop.seeds < 1:
        raise ValueError(f"loop.seeds must be at least 1, got {recipe.loop.seeds}")
    task: Task = getattr(import_module(f".{module}", __name__), name)(recipe)
    if recipe.loop.seeds > 1 and not task.stacks_seeds:
        raise ValueError(f"loop.seeds={recipe.loop.seeds}: the task {recipe.task} trains one seed per run")
    return task
