"""The package as a whole: what it exports, and what importing it costs."""

import ast
import importlib
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import stringpe

PACKAGES = ["stringpe", *(p.name for p in pkgutil.walk_packages(stringpe.__path__, "stringpe.") if p.ispkg)]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_export_hides_a_submodule(package):
    """`import stringpe.dense` must give the module, whatever else has its name."""
    module = importlib.import_module(package)
    submodules = {m.name for m in pkgutil.iter_modules(module.__path__)}
    for name in submodules:
        importlib.import_module(f"{package}.{name}")
    assert {name for name in submodules if getattr(module, name).__class__.__name__ != "module"} == set()


def test_every_public_name_exists():
    assert not [name for name in stringpe.__all__ if not hasattr(stringpe, name)]
    assert set(stringpe.__all__) < set(dir(stringpe))
    assert stringpe.rotate.rotate.__module__ == "stringpe.rotate"  # modules are found as well
    with pytest.raises(AttributeError, match="module 'stringpe' has no attribute 'caylay'"):
        stringpe.caylay  # noqa: B018


def test_type_checkers_and_python_see_the_same_names():
    tree = ast.parse(Path(stringpe.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.asname: node.module for node in block.body for alias in node.names}
    assert typed == {**stringpe._HOME_OF, "coords": None, "testing": None}


def _python(code):
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


def test_all_public_names_need_torch_alone_and_load_quickly():
    """Seconds of this process on a CPU, which a busy machine does not lengthen as it does those of the clock."""
    code = """
import sys, time, torch
before = set(sys.modules)
start = time.process_time()
from stringpe import *
print(time.process_time() - start)
print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names)))
"""
    for _ in range(5):  # the best of several: caches may be cold
        seconds, modules = _python(code)
        assert modules == "['stringpe']"
        if float(seconds) < 0.3:
            return
    raise AssertionError(f"importing every public name takes {seconds} s beyond torch, and should take under 0.3")


@pytest.mark.parametrize("words", [["--help"], ["data", "--help"], ["compare", "--help"], ["train", "--help"]])
def test_help_does_not_load_torch(words):
    code = f"""
import sys
from stringpe.cli.main import main
try:
    main({words})
except SystemExit as end:
    assert not end.code
print(sorted({{m.split('.')[0] for m in sys.modules}} & {{'torch', 'numpy', 'accelerate', 'rich', 'PIL'}}))
"""
    *text, modules = _python(code)
    assert len(text) > 5
    assert modules == "[]"
