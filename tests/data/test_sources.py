"""Which source serves which task, and what a pattern names."""

import os
import re
import threading
import time
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest

from captioned_files import shard
from stringpe import tasks
from stringpe.data import sources
from stringpe.data.sources import (
    PIPES,
    SERVES,
    SOURCES,
    check_source,
    check_stream,
    expand,
    keys_read,
    name_shards,
    open_shard,
)
from stringpe.data.tars import stream_samples
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


def test_patterns_name_shards(tmp_path):
    for i in range(3):
        shard(tmp_path / f"s-{i:03d}.tar", {})
    every = [tmp_path / f"s-{i:03d}.tar" for i in range(3)]
    assert expand(str(tmp_path / "s-{000..002}.tar")) == every
    assert expand(str(tmp_path / "s-*.tar")) == every
    assert expand(f"{tmp_path}/s-000.tar, {tmp_path}/s-002.tar") == [every[0], every[2]]
    assert name_shards("a-{1..2}/b-{08..10}.tar")[::5] == ["a-1/b-08.tar", "a-2/b-10.tar"]
    with pytest.raises(ValueError, match=r"no such shards: .*s-003\.tar: check data.train"):
        expand(str(tmp_path / "s-{000..003}.tar"))
    for nothing in ("", ",", str(tmp_path / "no-*.tar"), str(tmp_path)):
        with pytest.raises(ValueError, match="no such shards"):
            expand(nothing)
    with pytest.raises(ValueError, match="counts down"):
        expand("s-{9..2}.tar")
    with pytest.raises(ValueError, match=r"only data.train of data.source=stream may be an address"):
        expand("https://example.org/a.tar")


def test_a_recipe_cannot_run_a_shell_unless_the_user_allows_it(tmp_path, monkeypatch):
    path = shard(tmp_path / "s.tar", {"0": {"cls": b"1"}})
    mark = tmp_path / "ran"
    command = f"pipe:touch {mark}; cat {path}"
    monkeypatch.delenv(PIPES, raising=False)
    for attempt in (check_stream, lambda name: open_shard(name).__enter__()):
        with pytest.raises(ValueError, match=rf"would run a shell command.*{PIPES}=1"):
            attempt(command)
    assert not mark.exists()
    monkeypatch.setenv(PIPES, "1")
    assert check_stream(command) == [command]
    with open_shard(command) as file:
        assert list(stream_samples(file)) == [("0", {"cls": b"1"})]
    assert mark.exists()
    with pytest.raises(OSError, match="ended with 3"), open_shard("pipe:exit 3") as file:
        file.read()


def test_shards_come_over_a_network(tmp_path):
    shard(tmp_path / "s.tar", {"0": {"cls": b"1"}})
    quiet = type("Quiet", (SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with HTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/s.tar"
        assert check_stream(address) == [address]
        with open_shard(address) as file:
            assert list(stream_samples(file)) == [("0", {"cls": b"1"})]
        server.shutdown()


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


@pytest.mark.parametrize("command", ["sleep 100", "echo some; sleep 100", "sleep 100 | cat"])
def test_a_command_that_falls_silent_is_ended(monkeypatch, command):
    monkeypatch.setenv(PIPES, "1")
    monkeypatch.setattr(sources, "_TIMEOUT", 0.3)
    began = time.monotonic()
    with pytest.raises(OSError, match=r"printed nothing for 0\.3 s"), open_shard(f"pipe:{command}") as file:
        file.read()
    assert time.monotonic() - began < 20


def test_a_command_that_does_not_end_is_ended(monkeypatch, tmp_path):
    monkeypatch.setenv(PIPES, "1")
    monkeypatch.setattr(sources, "_TIMEOUT", 0.3)
    command = f"echo $$ > {tmp_path / 'number'}; echo some; exec >&-; sleep 100"
    with pytest.raises(OSError, match=r"did not end within 0\.3 s"), open_shard(f"pipe:{command}") as file:
        assert file.read() == b"some\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)
