"""What a JSON file must look like, as plain data, and the first place where one does not.

    shape = {"step": int, "window": [float], "name": (str, None)}
    find_mismatch({"step": 3, "window": [0.1, "x"]}, shape)       # "window[1] is 'x', not a finite number"

A type stands for itself: `int` and `float` exclude true and false, `float` takes whole numbers and excludes NaN and
infinity. [shape] is a list of such values; {"key": shape} an object that has these keys at least; {str: shape} an
object with any keys; a tuple of shapes is one of them; None is null; `object` is anything.
"""

import math
from pathlib import Path
from typing import Any

from .files import read_json

_NAMES = {
    str: "a text",
    int: "a whole number",
    float: "a finite number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def find_mismatch(value: Any, shape: Any, where: str = "") -> str:
    """What does not fit, in words; empty if everything does."""
    if isinstance(shape, tuple):
        wrong = [find_mismatch(value, each, where) for each in shape]
        return wrong[0] if all(wrong) else ""
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _describe(value, "a list", where)
        parts = (find_mismatch(each, shape[0], f"{where}[{i}]") for i, each in enumerate(value))
        return next(filter(None, parts), "")
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return _describe(value, "an object", where)
        pairs = [(key, shape[str]) for key in value] if str in shape else list(shape.items())
        missing = [key for key, _ in pairs if key not in value]
        if missing:
            return f"{where or 'it'} has no {missing[0]!r}"
        parts = (find_mismatch(value[key], each, f"{where}.{key}" if where else str(key)) for key, each in pairs)
        return next(filter(None, parts), "")
    if shape is None or shape is object:
        return "" if shape is object or value is None else _describe(value, "null", where)
    return "" if _is_of(value, shape) else _describe(value, _NAMES[shape], where)


def read_record(path: Path, shape: Any, advice: str = "restore it or remove it") -> Any:
    """The value of a JSON file that must have a shape; ValueError that names the file and what does not fit."""
    value = read_json(path)
    wrong = find_mismatch(value, shape)
    if wrong:
        raise ValueError(f"{path} is damaged ({wrong}): {advice}")
    return value


def _is_of(value: Any, kind: type) -> bool:
    if kind is float:
        return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)
    return type(value) is kind


def _describe(value: Any, wanted: str, where: str) -> str:
    return f"{where or 'it'} is {str(value)[:40]!r}, not {wanted}"
