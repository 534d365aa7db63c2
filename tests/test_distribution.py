"""What an index of packages, a source distribution and a continuous integration see of the project."""

import re
import shutil
import subprocess
import sys
import tomllib
from email import message_from_string
from pathlib import Path

import pytest

import stringpe

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    """The metadata of a built wheel, as an index reads it: made by setuptools from what it needs of this repository."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "src/stringpe").mkdir(parents=True)
    shutil.copy(ROOT / "src/stringpe/__init__.py", folder / "src/stringpe/__init__.py")
    make = "import setuptools.build_meta as b; print(b.prepare_metadata_for_build_wheel('.'))"
    run = subprocess.run([sys.executable, "-c", make], cwd=folder, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    (found,) = folder.glob("*.dist-info/METADATA")
    return message_from_string(found.read_text())


def test_the_long_description_has_links_that_work_on_an_index(metadata):
    text = metadata.get_payload()
    links = re.findall(r"(!?)\[[^\]]*\]\(([^)\s]+)\)", text)
    assert len(links) > 20
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = project["urls"]["Repository"]
    own = [(image, target) for image, target in links if target.startswith(repository)]
    assert {image for image, _ in own} == {"", "!"}
    for image, target in own:
        form = "raw" if image else "blob"
        head = f"{repository}/{form}/v{stringpe.__version__}/"
        assert target.startswith(head), target
        assert (ROOT / target.removeprefix(head).partition("#")[0]).exists(), target
    assert not [target for _, target in links if not target.startswith("https://")]


def test_the_version_is_the_same_everywhere(metadata):
    assert metadata["Version"] == stringpe.__version__
    assert f"version: {stringpe.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {stringpe.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_an_index_can_show_where_the_project_lives_and_what_it_runs_on(metadata):
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    assert set(addresses) == {"Repository", "Issues", "Changelog"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    minors = [line.rpartition("3.")[2] for line in metadata.get_all("Classifier") if ":: 3." in line]
    (workflow,) = re.findall(r"python: \[(.*?)\]", (ROOT / ".github/workflows/test.yml").read_text())
    assert workflow == ", ".join(f'"3.{minor}"' for minor in minors)


def test_the_source_distribution_names_what_it_must_hold():
    """Tests, docs, notebooks and the changelog: MANIFEST.in says what is taken besides the package."""
    taken = (ROOT / "MANIFEST.in").read_text()
    for name in ("CHANGELOG.md", "SECURITY.md", "CITATION.cff"):
        assert re.search(rf"^include .*\b{re.escape(name)}", taken, flags=re.MULTILINE), name
    for folder in ("docs", "notebooks", "tests"):
        kinds = re.search(rf"^recursive-include {folder} (.*)$", taken, flags=re.MULTILINE)
        held = {p.suffix for p in (ROOT / folder).rglob("*") if p.is_file() and "__pycache__" not in p.parts}
        assert held <= {kind.lstrip("*") for kind in kinds[1].split()}, folder


def test_workflows_only_call_the_makefile():
    """What runs there is what runs on a contributor's machine: every target exists, and all are reached."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    called = set()
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        for command in re.findall(r"run: (.*)", path.read_text()):
            if not command.startswith("sudo apt-get"):
                program, *words = command.split()
                assert program == "make", command
                called |= set(words)
    assert called <= targets
    assert {"test", "lint", "docs", "package"} <= called
