"""What CONTRIBUTING says about adding things is run, and what it adds trains, is checked and can be taken away."""

import re
from pathlib import Path

import pytest
import torch

from stringpe import hosts, tasks
from stringpe.tasks import check
from stringpe.training import evaluate, train

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"


@pytest.fixture
def page(monkeypatch):
    """The names that the blocks of the page define."""
    monkeypatch.setattr(hosts, "HOSTS", hosts.HOSTS)
    monkeypatch.setattr(tasks, "_TASKS", dict(tasks._TASKS))
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_a_task_of_one_file_trains_resumes_and_evaluates(page, tmp_path):
    from dataclasses import replace

    recipe = page["recipe"]
    outcome = train(recipe, tmp_path, quiet=True)
    assert evaluate(tmp_path)["top1"] == outcome["metrics"]["top1"]
    assert len(evaluate(tmp_path)["interval"]) == 2
    with pytest.raises(ValueError, match=r"data.queries=3 would change nothing: the task brighter"):
        check(replace(recipe, data=replace(recipe.data, queries=3)))
    with pytest.raises(ValueError, match="there is a task named 'brighter' already"):
        tasks.register("brighter", page["Brighter"])


def test_nothing_is_left_behind():
    assert "brighter" not in tasks.names()
    assert len(hosts.HOSTS) == 3
