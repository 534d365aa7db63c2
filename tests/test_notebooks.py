"""The notebooks run from top to bottom, and are committed without outputs."""

import json
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.name)
@pytest.mark.slow
def test_a_notebook_runs(path, monkeypatch, tmp_path, capsys):
    """Its code cells, in order, in this process: a notebook here has nothing that only a kernel understands."""
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: plt.close("all"))
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert cells
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    assert "False" not in capsys.readouterr().out  # what a notebook says is the same, is


def test_both_notebooks_are_there():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {"depth", "encodings"}
