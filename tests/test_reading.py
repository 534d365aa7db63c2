"""docs/reading.md names the files that its examples go through, and no others."""

import re
import sys
from pathlib import Path

import pytest
import torch

import stringpe

ROOT = Path(stringpe.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "reading.md"
WALKS = {
    "From an image to logits": ("checks.py", "kernels/"),
    "From an encoding to a rotation": ("checks.py", "kernels/"),
    "From a command to a table": (
        "training/log.py",
        "training/costs.py",
        "training/state.py",
        "training/capture.py",
        "tasks/warm_start.py",
    ),
}
"""By section, what the page says is entered and needs no reading."""
LAYERS = {"From a command to a table": ("cli/", "recipes/", "tasks/", "training/")}
"""Of a walk through many layers, those that the page lists; below them lie data, io and the layers of other walks."""


def files_entered(function):
    """The files of the package in which a function is called."""
    found = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            found.add(str(path.relative_to(ROOT)))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def section(title):
    """The example of a section, its last line apart, and the files in its table."""
    text = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    *setup, last = re.search(r"```python\n(.*?)\n```", text, re.DOTALL)[1].splitlines()
    return "\n".join(setup), last, set(re.findall(r"^\| \[`([\w/.]+)`\]", text, re.MULTILINE))


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.slow) if title in LAYERS else title for title in WALKS]
)
def test_the_files_of_a_walk(title):
    setup, last, named = section(title)
    names = {"torch": torch, "stringpe": stringpe}
    exec(setup, names)
    call = compile(last, str(PAGE), "exec")
    exec(call, names)  # what is formed at the first call is not part of the walk
    entered = files_entered(lambda: exec(call, names))
    listed = {file for file in entered if file.startswith(LAYERS.get(title, ""))}
    assert {file for file in listed if not file.startswith(WALKS[title])} == named
    for file in WALKS[title]:
        assert f"`{file}`" in PAGE.read_text()
        assert any(each.startswith(file) for each in entered), f"{file} is not entered"


def test_every_package_is_named():
    listed = set(re.findall(r"`(\w+)`", PAGE.read_text().split("## Everything else")[1]))
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= listed
