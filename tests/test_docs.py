"""Every Python block of the README and the docs runs, in order, page by page."""

import pkgutil
import re
from pathlib import Path

import pytest
import torch

from stringpe import catalogue, recipes

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_code_blocks_run(page, capsys, monkeypatch):
    monkeypatch.setattr(catalogue, "_ENTRIES", dict(catalogue._ENTRIES))  # what a page registers ends with it
    torch.manual_seed(0)
    blocks = python_blocks(page)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_in_the_text_exist(page):
    """`stringpe.cayley(…)` and `stringpe.models.vit` in backticks are public names or modules."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for name in set(re.findall(r"`(stringpe(?:\.[A-Za-z_]\w*)+)", text)):
        assert pkgutil.resolve_name(name) is not None, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_text_exist(page):
    """Commands name subcommands and recipes that exist; words in capitals and … stand for the reader's own."""
    for command, word in re.findall(r"\bstringpe (train|compare) ([a-z]\w*)", page.read_text()):
        assert word in {*recipes.names(), "properties"}, f"stringpe {command} {word}"


LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md", *sorted((ROOT / "results").rglob("*.md"))]


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_readme_names_every_encoding():
    import stringpe

    text = PAGES[0].read_text()
    assert all(f"`{name}`" in text for name in stringpe.names())
