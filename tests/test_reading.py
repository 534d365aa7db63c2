"""docs/reading.md names the files that its examples go through, and no others."""

import re
import sys
from pathlib import Path

import pytest
import torch

import stringpe

ROOT = Path(stringpe.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "reading.md"
PASSED_BY = ("checks.py", "kernels/")
"""What the page says is entered and needs no reading."""


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


@pytest.mark.parametrize("title", ["From an image to logits", "From an encoding to a rotation"])
def test_the_files_of_a_walk(title):
    setup, last, named = section(title)
    names = {"torch": torch, "stringpe": stringpe}
    exec(setup, names)
    call = compile(last, str(PAGE), "exec")
    exec(call, names)  # what is formed at the first call is not part of the walk
    entered = files_entered(lambda: exec(call, names))
    assert {file for file in entered if not file.startswith(PASSED_BY)} == named


def test_every_package_is_named():
    listed = set(re.findall(r"`(\w+)`", PAGE.read_text().split("## Everything else")[1]))
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= listed
