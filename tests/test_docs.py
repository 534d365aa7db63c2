"""What the README and the docs show is true: blocks run, commands parse, names exist, links lead somewhere."""

import copy
import importlib.util
import inspect
import os
import pkgutil
import re
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stringpe import catalogue, recipes
from stringpe.cli import main as cli
from stringpe.cli.parse import read_words
from stringpe.data import sources
from stringpe.recipes.schema import Recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md")]
LINKED = [*PAGES, *OTHERS, *sorted((ROOT / "results").rglob("*.md"))]


def name_of(page):
    return str(page.relative_to(ROOT))


def run_blocks(page):
    """The blocks of a page that run in the tests, in order: ("python", code) and ("bash", code)."""
    return re.findall(r"^```(python|bash)\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _mark_slow(page):
    """Export takes seconds."""
    return pytest.param(page, marks=pytest.mark.slow) if page.stem == "deploy" else page


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # torch's exporter, on itself
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("page", [_mark_slow(page) for page in PAGES if run_blocks(page)], ids=name_of)
def test_blocks_run(page, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(catalogue, "_ENTRIES", dict(catalogue._ENTRIES))  # what a page registers ends with it
    monkeypatch.setattr(sources, "SOURCES", dict(sources.SOURCES))
    monkeypatch.setattr(sources, "SERVES", copy.deepcopy(sources.SERVES))
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for kind, block in run_blocks(page):
        if kind == "python":
            exec(compile(block, str(page), "exec"), names)
            continue
        for line in block.splitlines():
            program, *words = shlex.split(line, comments=True)
            assert program == "stringpe", f"only stringpe's commands can be run here, not {line}"
            cli.main(words)


def commands(page):
    """Every command of ours on a page, as a list of words: in blocks that are fenced or indented, with continued lines
    joined, and without those in which … stands for what the reader adds."""
    text = page.read_text().replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```(?:bash|text)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    indented = "\n".join(re.findall(r"^ {4}.*$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE))
    pattern = r"^\s*(?:[A-Z_]+=\S+ )?(?:(?:python|accelerate launch [^\n]*?) -m )?stringpe ([a-z][^\n]*)$"
    found = re.findall(pattern, f"{blocks}\n{indented}", flags=re.MULTILINE)
    return [shlex.split(line.partition(";")[0], comments=True) for line in found if "…" not in line]


@pytest.mark.parametrize("page", [page for page in [*PAGES, *OTHERS] if commands(page)], ids=name_of)
def test_commands_parse(page):
    """Every command exists with its options, and every recipe with the keys that are changed."""
    for words in commands(page):
        length = next(n for n in (2, 1) if " ".join(words[:n]) in cli.COMMANDS)
        name = " ".join(words[:length])
        try:
            (first, *_), options = read_words(cli.COMMANDS[name], words[length:], name)
        except SystemExit:
            pytest.fail(f"stringpe {' '.join(words)}")
        except ValueError:  # it takes no words before its options
            continue
        if name in ("train", "compare"):
            changes = [change for change in options["changes"] if not re.search(r"[{$]", change.partition("=")[2])]
            recipes.load(first, changes)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_in_the_text_exist(page):
    """`stringpe.cayley(…)` and `stringpe.models.vit` in backticks are public names or modules."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for name in set(re.findall(r"`(stringpe(?:\.[A-Za-z_]\w*)+)", text)):
        assert pkgutil.resolve_name(name) is not None, name


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", head.lower()).strip()) for head in heads}


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert file.is_relative_to(ROOT), f"{target} is outside of the repository"
        if anchor:
            assert anchor in anchors(file), target


def load_script(path):
    """A Python file outside of the package, as a module."""
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location(path.stem, path))
    spec.loader.exec_module(module)
    return module


def test_every_link_of_the_site_leads_to_a_page_or_to_the_repository(tmp_path):
    """The site is built strictly: a relative link to a file that `make docs` does not gather would end the build."""
    gathered = re.findall(r"^\tcp -?r? ?(.*) build/pages$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for name in " ".join(gathered).removeprefix("-r ").split():
        (tmp_path / name).symlink_to(ROOT / name)
    hook = load_script(ROOT / "docs/site_links.py")
    replaced = 0
    for page in LINKED:
        where = SimpleNamespace(file=SimpleNamespace(src_uri=name_of(page)))
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        shown = hook.on_page_markdown(text, page=where, config=SimpleNamespace(docs_dir=str(tmp_path)), files=None)
        replaced += shown.count(f"({hook.REPOSITORY}/blob/main/")
        for target in re.findall(r"\]\(([^)\s:#]+)(?:#[^)\s]*)?\)", shown):
            inside = os.path.relpath(page.parent / target, ROOT)
            assert (tmp_path / inside).is_file(), f"{name_of(page)} links to {target}"
    assert replaced > 0
    code = "y = layers[0](pyproject) + [a](b.py)"
    assert hook.on_page_markdown(code, page=where, config=SimpleNamespace(docs_dir=str(tmp_path)), files=None) == code


def test_the_generated_reference_is_current():
    path = ROOT / "docs/reference/generate.py"
    maker = load_script(path)
    for name, text in maker.pages().items():
        assert (path.parent / name).read_text() == text, "run: python docs/reference/generate.py"


def test_every_key_of_a_recipe_is_described():
    """In the docstring of its group, as "key: what it is.", from which the table of keys is made."""
    split = load_script(ROOT / "docs/reference/generate.py").split_keys
    groups = [type(part.default) for part in fields(Recipe) if is_dataclass(part.default)]
    for group in groups:
        names = [part.name for part in fields(group)]
        assert set(split(inspect.getdoc(group), names)[1]) == set(names), group.__name__


def test_every_page_is_in_the_navigation():
    """Pages that nobody finds are not read; entries without a page break the site."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"[\w/-]+\.(?:md|ipynb)", nav)
    assert len(listed) == len(set(listed))
    missing = [name for name in listed if not (ROOT / name).exists()]
    assert missing == []
    assert {name_of(page) for page in PAGES} <= set(listed)


def test_readme_names_every_encoding():
    import stringpe

    text = PAGES[0].read_text()
    assert all(f"`{name}`" in text for name in stringpe.names())
