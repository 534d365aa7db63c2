"""What CONTRIBUTING says about adding things is run, and what it adds works as what the package has, and can be taken
away again."""

import copy
import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stringpe import catalogue, hosts, robots, tasks
from stringpe.data import labelled_images, sources
from stringpe.data.order import Place
from stringpe.robots.data import demos
from stringpe.tasks import check
from stringpe.training import evaluate, train

PAGE = Path(__file__).parent.parent / "CONTRIBUTING.md"
TABLES = (catalogue._ENTRIES, tasks._TASKS, sources.SOURCES, sources.SERVES, labelled_images._SETS, robots._table())


@contextmanager
def run_page():
    """The names that the blocks of the page define. What they register is taken away at the end."""
    kept = [copy.deepcopy(table) if table is sources.SERVES else dict(table) for table in TABLES]
    known = hosts.HOSTS
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, str(PAGE), "exec"), names)
    yield names
    hosts.HOSTS = known
    for table, before in zip(TABLES, kept, strict=True):
        table.clear()
        table.update(before)


def listed():
    """Every name that the page may add to."""
    return {
        *catalogue.names(),
        *tasks.names(),
        *sources.SOURCES,
        *sources.SERVES["classification"],
        *robots.tasks(),
        *(host.package for host in hosts.HOSTS),
    }


def test_what_the_page_adds_is_known_and_can_be_taken_away():
    before = listed()
    with run_page():
        assert listed() - before > {"swapped", "brighter", "stripes", "AppleInTray"}
    assert listed() == before


@pytest.fixture(scope="module")
def page():
    with run_page() as names:
        yield names


def test_a_task_of_one_file_trains_resumes_and_evaluates(page, tmp_path):
    recipe = page["recipe"]
    outcome = train(recipe, tmp_path, quiet=True)
    assert evaluate(tmp_path)["top1"] == outcome["metrics"]["top1"]
    assert len(evaluate(tmp_path)["interval"]) == 2
    with pytest.raises(ValueError, match=r"data.queries=3 would change nothing: the task brighter"):
        check(replace(recipe, data=replace(recipe.data, queries=3)))
    with pytest.raises(ValueError, match="there is a task named 'brighter' already"):
        tasks.register("brighter", page["Brighter"])


def test_a_data_source_of_one_class_trains_from_memory_and_from_workers(page, tmp_path):
    """With an encoding that the page adds as well; both loaders give the same batches."""
    recipe = page["stripes"]
    held = replace(recipe, data=replace(recipe.data, in_memory=True))
    batches = [next(tasks.create(each).batches(0, Place())) for each in (recipe, held)]
    assert batches[0].keys() == batches[1].keys()
    for name in batches[0]:
        torch.testing.assert_close(batches[0][name], batches[1][name])
    assert train(held, tmp_path, quiet=True)["metrics"]["count"] == 16
    with pytest.raises(ValueError, match=r"data.source=stripes does not serve the task retrieval"):
        sources.check_served("retrieval", "stripes")
    with pytest.raises(ValueError, match=r"data.queries=3 would change nothing"):
        check(replace(recipe, data=replace(recipe.data, queries=3)))
    with pytest.raises(ValueError, match="there is a data source named 'stripes' already"):
        labelled_images.register_images("stripes", page["Stripes"], "stripes")


def test_a_robot_task_of_one_definition_is_demonstrated_and_replayed(page):
    env = page["env"]
    actions = demos.demonstrate(env, seed=3)
    assert actions is not None
    again = demos.replay(env, 3, actions)
    assert again is not None
    assert again["next.reward"][-1] == 1.0
    with pytest.raises(ValueError, match="there is a task named 'AppleInTray' already"):
        robots.register("AppleInTray", page["env"])
