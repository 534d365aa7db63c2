"""The shape of the tree: files and functions short enough to read, names that say which file is meant, tests where a
reader looks for them."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import stringpe

SOURCE = Path(stringpe.__file__).parent
TESTS = Path(__file__).parent
ATTACK = TESTS.parent / "attack"
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 60

LONG_FILES: set[str] = set()
"""Files that may be longer. A new one needs a reason that a reader would accept."""

SAME_NAMES = {
    "__init__.py": "Python",
    "aloha.py": "the recipe of a robot, and the robot",
    "base.py": "what the modules of a package share",
    "kuka.py": "the recipe of a robot, and the robot",
    "relations.py": "a recipe, and its task",
    "timm.py": "the library as a host, and our models in its registry",
}
"""File names that occur twice, and why they may."""

ACROSS = {
    "tests": {
        "attack": "make attack",
        "contributing": "CONTRIBUTING.md",
        "distribution": "the packages and the continuous integration",
        "deployment": "compilation, export and processes, over all encodings",
        "docs": "docs/",
        "imports": "the order of packages",
        "malformed": "wrong arguments to every public function",
        "paper": "docs/paper.md",
        "notebooks": "the notebooks of examples",
        "package": "what is exported, and what importing costs",
        "queue": "benchmarks/queue.sh",
        "reading": "docs/reading.md",
        "scale": "docs/scale.md",
        "trained_models": "models/",
        "traps": "docs/traps.md",
        "tree": "this file",
    },
    "cli": {"interrupt": "Ctrl-C in every command", "missing": "every command without a package that it needs"},
    "data": {"damage": "damaged input on every path that reads data"},
    "hosts": {
        "export": "stringpe.export, for hosts",
        "families": "what every family of hosts must keep",
        "mrope": "M-RoPE of language models, attached and with a cache",
        "pretrained": "stringpe.pretrained, for hosts",
        "trust": "SECURITY.md",
    },
    "models": {"world": "models that see several cameras in one frame"},
    "robots": {
        "damage": "damaged robot data",
        "formats": "LeRobot's formats of data sets",
        "policies": "the package robots/policies",
        "reach": "a policy learns, from data to success",
        "world_frame": "coordinates in the world's frame, from the simulation to a policy",
    },
    "tasks": {"reads": "the keys that every task reads"},
    "training": {
        "trackers": "W&B, MLflow and Aim, where they are installed",
        "damage": "damaged runs",
        "gpu": "captured steps, on a GPU",
        "survival": "runs that are killed or spread over processes",
    },
}
"""Tests that are not of one module, and what they are of."""


def python_files(root):
    return sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)


@pytest.mark.parametrize("root", [SOURCE, TESTS, ATTACK], ids=["src", "tests", "attack"])
def test_files_are_short(root):
    lengths = {str(path.relative_to(root)): len(path.read_text().splitlines()) for path in python_files(root)}
    assert {file: lines for file, lines in lengths.items() if lines > MOST_LINES and file not in LONG_FILES} == {}
    assert set(lengths) >= LONG_FILES


@pytest.mark.parametrize("root", [SOURCE, TESTS, ATTACK], ids=["src", "tests", "attack"])
def test_functions_are_short(root):
    long = {}
    for path in python_files(root):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    long[f"{path.relative_to(root)}:{node.name}"] = lines
    assert long == {}


def test_a_file_name_says_which_file_is_meant():
    where = defaultdict(list)
    for path in python_files(SOURCE):
        where[path.name].append(str(path.relative_to(SOURCE)))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SAME_NAMES} == {}
    assert set(SAME_NAMES) <= set(twice)


def test_a_class_name_says_which_class_is_meant():
    where = defaultdict(list)
    for path in python_files(SOURCE):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(SOURCE)))
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_tests_are_named_after_what_they_test():
    """tests/data/test_cache.py is for src/stringpe/data/cache.py, or for a module or package deeper in data/."""
    known = defaultdict(set)
    for path in python_files(SOURCE):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        known[parts[0] if len(parts) > 1 else "tests"].add(parts[-1])
    strays = []
    for path in TESTS.rglob("test_*.py"):
        folder, name = path.relative_to(TESTS).parts[0], path.stem.removeprefix("test_")
        folder = folder if path.parent != TESTS else "tests"
        if name not in known[folder] | {folder} | set(ACROSS.get(folder, {})):
            strays.append(str(path.relative_to(TESTS)))
    assert sorted(strays) == []
    named = {
        TESTS / ("" if folder == "tests" else folder) / f"test_{name}.py"
        for folder in ACROSS
        for name in ACROSS[folder]
    }
    assert {path for path in named if not path.exists()} == set()


def is_slow(node):
    return any("mark.slow" in ast.unparse(one) for one in node.decorator_list)


def fast_tests(path):
    """Names of the tests of a file that are not marked slow."""
    tree = ast.parse(path.read_text())
    marks = [
        node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if any("mark.slow" in ast.unparse(node) for node in marks):
        return []
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not is_slow(node)
    ]


def test_the_fast_tests_have_some_of_every_package():
    packages = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    without = [name for name in packages if not any(map(fast_tests, (TESTS / name).glob("test_*.py")))]
    assert without == []
