"""Imports between packages go one way: from the command line down to the core, never up."""

import ast
from pathlib import Path

import stringpe

ROOT = Path(stringpe.__file__).parent
LAYERS = (
    ("io", "recipes"),
    ("core", "kernels"),
    ("data", "models", "geometry", "metrics", "hosts", "viewer"),
    ("scenes", "robots"),
    ("tasks",),
    ("training",),
    ("bench", "cli"),
)
"""Packages of one layer may import each other and those above them in this list. "core": the modules of stringpe
itself, such as encoding and attention."""

API = ("__init__.py", "timm.py", "pretrained.py", "hub.py", "export.py", "constants.py", "__main__.py")
"""Modules of stringpe itself that put the layers together for users, and stand above all of them."""

ALLOWED = {
    ("data", "scenes"): "the rendered world is one of the data sources",
    ("data", "robots"): "demonstrations of robots are one of the data sources",
}


def package(path):
    """The package of a file or of a module's dotted name below stringpe."""
    return path[0] if len(path) > 1 or (ROOT / path[0]).is_dir() else "core"


def imports():
    """(package, package that it imports, file) for every import, those inside functions included."""
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).parts
        if len(parts) == 1 and parts[0] in API:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                above = parts[: len(parts) - node.level]
                base = [*above, *(node.module.split(".") if node.module else [])]
                targets = [base] if base else [[alias.name] for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stringpe"):
                targets = [node.module.split(".")[1:]]
            else:
                continue
            for target in targets:
                if target and not target[0].startswith("__"):
                    yield package(parts), package(target), str(file.relative_to(ROOT))


def test_imports_go_one_way():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    upward = {
        (user, used): file
        for user, used, file in imports()
        if used in level and level[used] > level[user] and (user, used) not in ALLOWED
    }
    assert upward == {}


def test_every_package_has_a_layer():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages | {"core"} == {name for names in LAYERS for name in names}


def test_exceptions_are_needed():
    found = {(user, used) for user, used, _ in imports()}
    assert set(ALLOWED) <= found
