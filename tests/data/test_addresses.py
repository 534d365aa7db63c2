"""What a pattern of shards names, and how files, addresses and commands are opened."""

import os
import threading
import time
from functools import partial
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest

from captioned_files import shard
from stringpe.data import addresses
from stringpe.data.addresses import PIPES, find_shards, find_stream_shards, name_shards, open_shard
from stringpe.data.tars import stream_samples


def test_patterns_name_shards(tmp_path):
    for i in range(3):
        shard(tmp_path / f"s-{i:03d}.tar", {})
    every = [tmp_path / f"s-{i:03d}.tar" for i in range(3)]
    assert find_shards(str(tmp_path / "s-{000..002}.tar")) == every
    assert find_shards(str(tmp_path / "s-*.tar")) == every
    assert find_shards(f"{tmp_path}/s-000.tar, {tmp_path}/s-002.tar") == [every[0], every[2]]
    assert name_shards("a-{1..2}/b-{08..10}.tar")[::5] == ["a-1/b-08.tar", "a-2/b-10.tar"]
    with pytest.raises(ValueError, match=r"shards not found: .*s-003\.tar\. Check data.train"):
        find_shards(str(tmp_path / "s-{000..003}.tar"))
    for nothing in ("", ",", str(tmp_path / "no-*.tar"), str(tmp_path)):
        with pytest.raises(ValueError, match="shards not found"):
            find_shards(nothing)
    with pytest.raises(ValueError, match="counts down"):
        find_shards("s-{9..2}.tar")
    with pytest.raises(ValueError, match=r"only data.train of data.source=stream may be an address"):
        find_shards("https://example.org/a.tar")


def test_a_recipe_cannot_run_a_shell_unless_the_user_allows_it(tmp_path, monkeypatch):
    path = shard(tmp_path / "s.tar", {"0": {"cls": b"1"}})
    mark = tmp_path / "ran"
    command = f"pipe:touch {mark}; cat {path}"
    monkeypatch.delenv(PIPES, raising=False)
    for attempt in (find_stream_shards, lambda name: open_shard(name).__enter__()):
        with pytest.raises(ValueError, match=rf"would run a shell command.*{PIPES}=1"):
            attempt(command)
    assert not mark.exists()
    monkeypatch.setenv(PIPES, "1")
    assert find_stream_shards(command) == [command]
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
        assert find_stream_shards(address) == [address]
        with open_shard(address) as file:
            assert list(stream_samples(file)) == [("0", {"cls": b"1"})]
        server.shutdown()


@pytest.mark.parametrize("command", ["sleep 100", "echo some; sleep 100", "sleep 100 | cat"])
def test_a_command_that_falls_silent_is_ended(monkeypatch, command):
    monkeypatch.setenv(PIPES, "1")
    monkeypatch.setattr(addresses, "TIMEOUT", 0.3)
    began = time.monotonic()
    with pytest.raises(OSError, match=r"printed nothing for 0\.3 s"), open_shard(f"pipe:{command}") as file:
        file.read()
    assert time.monotonic() - began < 20


def test_a_command_that_does_not_end_is_ended(monkeypatch, tmp_path):
    monkeypatch.setenv(PIPES, "1")
    monkeypatch.setattr(addresses, "TIMEOUT", 0.3)
    command = f"echo $$ > {tmp_path / 'number'}; echo some; exec >&-; sleep 100"
    with pytest.raises(OSError, match=r"did not end within 0\.3 s"), open_shard(f"pipe:{command}") as file:
        assert file.read() == b"some\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), 0)
