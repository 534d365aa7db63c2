"""Changes to a recipe from the command line, `model.encoding=cayley optim.lr=3e-4`, and recipes from JSON."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from ..io.registry import find_near
from .rules import check_values
from .schema import OptionValue, Recipe

_WORDS: dict[str, bool] = {"true": True, "false": False}
_RETIRED = (
    "data.results",
    "loop.tensorboard",
)  # keys of recipes written by earlier versions, which are dropped when one is read


def override(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """The recipe with every `dotted.key=value` of `changes` applied, in order."""
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise ValueError(f"an override is key=value, for example optim.lr=3e-4; got {change!r}")
        recipe = _replace(recipe, key.split("."), text, key)
    check_values(recipe)
    return recipe


def from_dict(values: Mapping[str, Any]) -> Recipe:
    """The recipe that `Recipe.to_dict` wrote."""
    return _build(Recipe, values, "")


def keys(of: Any = Recipe, prefix: str = "") -> list[str]:
    """Every dotted key of a recipe."""
    hints = typing.get_type_hints(of)
    found = []
    for f in dataclasses.fields(of):
        kind: Any = hints[f.name]
        found += keys(kind, f"{prefix}{f.name}.") if dataclasses.is_dataclass(kind) else [prefix + f.name]
    return found


def differences(a: Recipe, b: Recipe) -> list[str]:
    """Where two recipes differ, as "key: a, b"."""
    left, right = flatten(a.to_dict()), flatten(b.to_dict())
    missing = "nothing"
    return [
        f"{key}: {left.get(key, missing)!r}, {right.get(key, missing)!r}"
        for key in sorted(left.keys() | right.keys())
        if left.get(key, missing) != right.get(key, missing)
    ]


def parse_literal(text: str) -> OptionValue:
    """The value that a text without a declared type stands for: true, false, a number, else the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _replace(node: Any, path: list[str], text: str, key: str) -> Any:
    hints = typing.get_type_hints(type(node))
    name, rest = path[0], path[1:]
    if name not in hints:
        raise ValueError(_explain_unknown(key))
    value, kind = getattr(node, name), hints[name]
    new: Any
    if dataclasses.is_dataclass(kind):
        if not rest:
            raise ValueError(f"{key} is a group: set one of {', '.join(keys(kind, key + '.'))}")
        new = _replace(value, rest, text, key)
    elif typing.get_origin(kind) is Mapping:
        if len(rest) not in (1, 2):
            raise ValueError(f"{key} holds options by name: set one as {'.'.join(path[:1])}.option=value")
        new = {**value, ".".join(rest): parse_literal(text)}  # circulant.block_size is for circulant alone
    elif rest:
        raise ValueError(_explain_unknown(key))
    else:
        new = _parse(text, kind, key)
    return dataclasses.replace(node, **{name: new})


def _parse(text: str, kind: type, key: str) -> OptionValue:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _WORDS:
            raise ValueError(f"{key} is true or false, got {text!r}")
        return _WORDS[text.lower()]
    try:
        return int(text) if kind is int else float(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        raise ValueError(f"{key} is {wanted}, got {text!r}") from None


def _build(kind: Any, values: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(kind)
    arguments = {}
    for name, value in values.items():
        if prefix + name in _RETIRED:
            continue
        if name not in hints:
            raise ValueError(_explain_unknown(prefix + name))
        wanted = hints[name]
        if dataclasses.is_dataclass(wanted):
            value = _build(wanted, value, f"{prefix}{name}.")
        elif wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = _as_float(prefix + name, value)
        elif isinstance(wanted, type) and type(value) is not wanted:
            raise ValueError(f"{prefix}{name} is of type {wanted.__name__}, got {value!r}")
        arguments[name] = value
    return kind(**arguments)


def _as_float(key: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{key} must be a finite number, got one of {len(str(value))} digits") from None


def _explain_unknown(key: str) -> str:
    known = keys()
    near = find_near(key, known)
    if not near:  # a right name in a wrong group, or with none
        near = next((k for k in known if k.rpartition(".")[2] == key.rpartition(".")[2]), "")
    groups = ", ".join(sorted({k.split(".")[0] for k in known}))
    hint = f"did you mean {near}?" if near else f"the groups are {groups}"
    return f"there is no setting {key!r}: {hint}"


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted key."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return found
