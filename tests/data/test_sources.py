"""Which source serves which task."""

import re
from pathlib import Path

import pytest

from captioned_files import shard
from stringpe import tasks
from stringpe.data.sources import SERVES, SOURCES, check_source, keys_read
from stringpe.recipes.overrides import keys
from stringpe.recipes.schema import Data, Loss, Recipe


def test_every_task_has_its_sources_and_every_source_a_task():
    assert set(tasks.names()) >= set(SERVES)
    assert {name for some in SERVES.values() for name in some} == set(SOURCES)


@pytest.mark.parametrize("task", SERVES)
def test_a_wrong_source_is_refused_with_those_that_serve(task):
    kind = "siglip" if task == "retrieval" else "softmax"
    for source in [*(name for name in SOURCES if name not in SERVES[task]), "web"]:
        words = f"data.source={source} does not serve the task {task}: "
        with pytest.raises(ValueError, match=re.escape(words)) as told:
            check_source(task, Data(source=source))
        assert all(f"{name} ({SOURCES[name]})" in str(told.value) for name in SERVES[task])
        with pytest.raises(ValueError, match=re.escape(words)):  # the same words from the task itself
            tasks.create(Recipe(task=task, data=Data(source=source), loss=Loss(kind=kind)))


@pytest.mark.parametrize(("task", "source"), [(t, s) for t, some in SERVES.items() for s in some])
def test_the_keys_that_a_source_reads_are_keys_of_a_recipe(task, source, tmp_path):
    made = source in ("synthetic", "scenes", "one_object", "points")
    places = {} if made else {"train": str(tmp_path), "val": str(tmp_path)}
    if source in ("shards", "stream"):
        places = dict.fromkeys(places, str(shard(tmp_path / "s.tar", {})))
    found = keys_read(task, Data(source=source, **places))
    assert set(found) <= set(keys())
    assert len(set(found)) == len(found)
    assert ("data.train" in found) != made


def test_a_near_miss_is_suggested():
    with pytest.raises(ValueError, match=r"did you mean 'folder'\? It takes"):
        check_source("classification", Data(source="Folders"))


def test_a_place_that_does_not_fit_the_source_is_said_in_words(tmp_path):
    with pytest.raises(ValueError, match=r"data.train=photos is not read, because data.source=synthetic makes its own"):
        check_source("classification", Data(train="photos"))
    with pytest.raises(ValueError, match=r"is a folder, not a tar: set data.source=folder"):
        check_source("classification", Data(source="shards", train=str(tmp_path), val=str(tmp_path)))
    with pytest.raises(ValueError, match=r"data.train=.*x\.tar is not a folder: .*data.source=shards"):
        check_source("retrieval", Data(source="folder", train=str(tmp_path / "x.tar"), val=str(tmp_path)))
    with pytest.raises(ValueError, match=r"data.source=folder needs data.val=…, a folder of images; it is empty"):
        check_source("retrieval", Data(source="folder", train=str(tmp_path)))
    check_source("policy", Data(source="demos", train=str(tmp_path)))  # validates on held-out episodes


def test_files_without_a_source_that_reads_them_are_refused_before_anything_else(tmp_path):
    """As people type it: data.train=folder, and no data.source."""
    from stringpe.recipes import load
    from stringpe.recipes.schema import Recipe
    from stringpe.tasks import check

    (tmp_path / "photos").mkdir()
    photos = f"{tmp_path}/photos"
    said = (
        rf"data.train={photos} is not read, because data.source=synthetic makes its own data: set data.source=folder to"
    )
    with pytest.raises(ValueError, match=said):
        check(Recipe(data=Data(train=photos)))
    with pytest.raises(
        ValueError, match=r"data.val=x.tar is not read, .*data.source=shards or folder or huggingface or st"
    ):
        check(Recipe(data=Data(val="x.tar")))
    with pytest.raises(ValueError, match=r"data.source=points makes its own data: leave it out, .*relations has none"):
        check(load("relations", ["data.train=x.tar"]))


def test_the_table_in_the_docs_is_this_one():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([a-z0-9, ]+) \|$", page, flags=re.MULTILINE)
    listed = {(task, source) for source, tasks in rows for task in tasks.split(", ")}
    assert listed == {(task, source) for task, serves in SERVES.items() for source in serves}
