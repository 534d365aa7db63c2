"""Shapes of JSON files: what fits, and the words for what does not."""

import json

import pytest

from stringpe.io.json_shape import find_mismatch, read_record

SHAPE = {"step": int, "window": [float], "name": (str, None), "rows": {str: {"on": bool}}, "rest": object}
GOOD = {"step": 3, "window": [1, 0.5], "name": None, "rows": {"a": {"on": True}}, "rest": [], "more": 1}


def test_what_fits():
    assert find_mismatch(GOOD, SHAPE) == ""
    assert find_mismatch(GOOD | {"name": "x", "window": [], "rows": {}}, SHAPE) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": True}, "step is 'True', not a whole number"),
        ({"step": 1.5}, "step is '1.5', not a whole number"),
        ({"window": 3}, "window is '3', not a list"),
        ({"window": [0.1, "x"]}, "window[1] is 'x', not a finite number"),
        ({"window": [float("nan")]}, "window[0] is 'nan', not a finite number"),
        ({"window": [10**400]}, "not a finite number"),
        ({"name": 3}, "name is '3', not a text"),
        ({"rows": {"a": {}}}, "rows.a has no 'on'"),
        ({"rows": {"a": {"on": 1}}}, "rows.a.on is '1', not true or false"),
        ({"rows": []}, "rows is '[]', not an object"),
    ],
)
def test_what_does_not_is_named(change, words):
    assert words in find_mismatch(GOOD | change, SHAPE)


def test_a_missing_key_and_another_kind_of_value():
    assert find_mismatch({}, SHAPE) == "it has no 'step'"
    assert find_mismatch([1], SHAPE) == "it is '[1]', not an object"


def test_a_file_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(GOOD))
    assert read_record(path, SHAPE) == GOOD
    path.write_text(json.dumps(GOOD | {"step": "x"}))
    with pytest.raises(ValueError, match=r"x\.json is damaged \(step is 'x', not a whole number\): restore it"):
        read_record(path, SHAPE)
