"""The rules that a recipe must meet by itself: values within range, and no key that nothing would read."""

import dataclasses
import fnmatch
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .schema import Recipe


def check_values(recipe: Recipe) -> None:
    """Refuse numbers that are not finite or out of the range that the schema gives their key, and unknown choices."""
    for key, value, entry in _leaves(recipe):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key} must be a finite number, got {value}")
        rule = entry.metadata
        if "choices" in rule and value not in rule["choices"]:
            raise ValueError(f"{key} is one of {', '.join(map(repr, rule['choices']))}, got {value!r}")
        if not _is_within(value, rule):
            raise ValueError(f"{key} must be {_describe(rule)}, got {value}")


def check_keys(recipe: Recipe, reads: Collection[str], who: str, given: Iterable[str] | None = None) -> None:
    """Refuse keys with other values than their defaults that nothing reads.

    reads: keys that are read, as patterns: "optim.lr", "text.*". who: what reads them, for the error. given: only look
    at these keys, for example those that a user has just changed; options by name count as the key that holds them."""
    chosen = None if given is None else {key for name in given for key in (name, name.rpartition(".")[0])}
    for key, value, entry in _leaves(recipe):
        if is_read(key, reads) or (chosen is not None and key not in chosen) or value == _default(entry):
            continue
        group = key.partition(".")[0]
        readable = [k for k, _, _ in _leaves(recipe) if is_read(k, reads)]
        others = [k.removeprefix(f"{group}.") for k in readable if k.startswith(f"{group}.")]
        known = f"of {group} it reads {', '.join(others)}" if others else f"it reads nothing of {group}"
        raise ValueError(f"{key}={value} would change nothing: {who} does not read it; {known}")


def is_read(key: str, reads: Collection[str]) -> bool:
    """Whether a key is among the patterns."""
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in reads)


def _leaves(node: Any, prefix: str = "") -> Iterable[tuple[str, Any, dataclasses.Field[Any]]]:
    """Every dotted key of a recipe, its value and its field."""
    for entry in dataclasses.fields(node):
        value = getattr(node, entry.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{entry.name}.")
        else:
            yield prefix + entry.name, value, entry


def _default(entry: dataclasses.Field[Any]) -> Any:
    if entry.default is not dataclasses.MISSING:
        return entry.default
    assert entry.default_factory is not dataclasses.MISSING
    return entry.default_factory()


def _is_within(value: Any, rule: Mapping[str, Any]) -> bool:
    tests = {
        "least": lambda bound: value >= bound,
        "most": lambda bound: value <= bound,
        "above": lambda bound: value > bound,
        "below": lambda bound: value < bound,
    }
    return all(test(rule[name]) for name, test in tests.items() if name in rule)


def _describe(rule: Mapping[str, Any]) -> str:
    words = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
    return " and ".join(f"{word} {rule[name]:g}" for name, word in words.items() if name in rule)
