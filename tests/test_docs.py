"""Every Python block of the README and the docs runs, in order, page by page."""

import re
from pathlib import Path

import pytest
import torch

from stringpe import catalogue

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_run(page, capsys, monkeypatch):
    monkeypatch.setattr(catalogue, "_ENTRIES", dict(catalogue._ENTRIES))  # what a page registers ends with it
    torch.manual_seed(0)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


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
