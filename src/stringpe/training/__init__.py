"""The one loop, and what surrounds it: runs in folders, logs, costs, evaluations, comparisons and their reports.

    from stringpe import recipes, training
    result = training.train(recipes.load("scenes", ["model.encoding=cayley"]), "runs/cayley")
    training.compare(recipes.load("scenes"), ["absolute", "rope", "cayley"], seeds=3, out="runs/compare")

Names are looked up when they are used, so that reading a recipe needs no Accelerate.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Recipe": "stringpe.recipes.schema",
    "Task": "stringpe.tasks.base",
    "compare": "stringpe.training.comparison",
    "evaluate": "stringpe.training.evaluation",
    "train": "stringpe.training.launch",
}

__all__ = ["Recipe", "Task", "compare", "evaluate", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
