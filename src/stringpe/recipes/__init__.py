"""Recipes: each file here is one experiment, a `RECIPE` with a docstring that states command, time and number.

recipes.load("tiny_imagenet100", ["data.train=train.tar.gz", "data.val=val.tar.gz", "model.encoding=cayley"])
"""

from collections.abc import Iterable
from importlib import import_module
from pkgutil import iter_modules

from ..io.registry import unknown
from .design import Design
from .overrides import override
from .schema import Recipe

_MACHINERY = ("design", "overrides", "rules", "schema")


def names() -> list[str]:
    """The names of all recipes."""
    return sorted(module.name for module in iter_modules(__path__) if module.name not in _MACHINERY)


def load(name: str, changes: Iterable[str] = ()) -> Recipe:
    """A recipe by name, with `dotted.key=value` overrides."""
    if name not in names():
        raise unknown("recipe", name, names())
    recipe: Recipe = import_module(f".{name}", __name__).RECIPE
    return override(recipe, changes)


def load_design(name: str) -> Design:
    """The design of a comparison of this recipe: its own `DESIGN`, or the default one."""
    if name not in names():
        raise unknown("recipe", name, names())
    design: Design = getattr(import_module(f".{name}", __name__), "DESIGN", Design())
    return design


def describe(name: str) -> str:
    """The docstring of a recipe."""
    return import_module(f".{name}", __name__).__doc__ or ""
