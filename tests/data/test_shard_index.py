"""Samples of tars by their offsets: in files with and without an index, and over HTTP."""

import http.server
import threading
from pathlib import Path

import pytest

from captioned_files import shard
from stringpe.data.archives import stream_samples
from stringpe.data.shard_index import (
    Parts,
    StaleIndex,
    count_samples,
    find_entries,
    index_path,
    read_index,
    scan,
    write_index,
)

SAMPLES = {f"set.b/{i:03d}": {"jpg": bytes([i]) * (100 * i), "rgb.png": b"x" * i, "cls": b"1"} for i in range(1, 9)}


@pytest.fixture
def tar(tmp_path):
    return shard(tmp_path / "train-0.tar", SAMPLES)


def read_through(path):
    with open(path, "rb") as file:
        return list(stream_samples(file))


def test_samples_by_offset_are_those_of_reading_through(tar):
    entries = scan(tar)
    with Parts(str(tar)) as parts:
        backwards = [(entry.key, parts.read_sample(entry)) for entry in reversed(entries)]
    assert backwards[::-1] == read_through(tar)


def test_the_index_is_that_of_dali_and_says_what_the_headers_say(tar):
    place = write_index(tar)
    assert place == Path(index_path(str(tar)))
    head, first, *_ = place.read_text().splitlines()
    assert head == "v1.2 8"
    assert first == "jpg 512 100 set.b/001.jpg rgb.png 1536 1 set.b/001.rgb.png cls 2560 1 set.b/001.cls"
    assert read_index(place.read_text(), "i") == scan(tar) == find_entries(str(tar))
    assert count_samples(str(tar)) == 8


def test_an_index_that_is_not_that_of_its_tar_is_refused(tar, tmp_path):
    place = write_index(tar)
    other = {key: files | {"jpg": files["jpg"] + b"more" * 200} for key, files in SAMPLES.items()}
    shard(tar, other)
    entries = find_entries(str(tar))
    with Parts(str(tar)) as parts, pytest.raises(StaleIndex, match=r"train-0.idx does not describe .*data index"):
        parts.read_sample(entries[3])
    place.write_text("v1.2 3\njpg 512 100 a.jpg\n")
    with pytest.raises(StaleIndex, match="says that it names 3 samples, and names 1"):
        find_entries(str(tar))
    for text, match in (("", "begins with ''"), ("v9 1\n", "begins with 'v9 1'"), ("v1.2 1\njpg 5\n", "a line that")):
        with pytest.raises(StaleIndex, match=match):
            read_index(text, "i")


def test_what_has_no_offsets_has_no_index(tar, tmp_path):
    import tarfile

    packed = tmp_path / "b.tar"
    with tarfile.open(packed, "w:gz") as file:
        file.add(tar, "a.jpg")
    assert find_entries(str(packed)) is None
    assert count_samples("pipe:cat x.tar") is None
    with pytest.raises(ValueError, match=r"b.tar is compressed, so nothing in it can be read by its offset"):
        write_index(packed)
    spaced = shard(tmp_path / "c.tar", {"a photo": {"jpg": b"1"}})
    with pytest.raises(ValueError, match=r"a space in its name, 'a photo.jpg'"):
        write_index(spaced)


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Files, and parts of them; counts the bytes that it sends."""

    sent = 0
    whole = False  # do as servers that know no ranges do

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        content, wanted = path.read_bytes(), self.headers.get("Range")
        partial = bool(wanted) and not self.whole
        body = content[int(wanted.removeprefix("bytes=").rstrip("-")) :] if partial else content
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            for first in range(0, len(body), 256):
                self.wfile.write(body[first : first + 256])
                type(self).sent += 256
        except OSError:  # the reader has what it wants
            pass

    def log_message(self, *_): ...


@pytest.fixture
def served(tar):
    handler = type("Handler", (Ranges,), {"sent": 0})
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *args: handler(*args, directory=str(tar.parent))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/train-0.tar", handler
        server.shutdown()


@pytest.mark.parametrize("whole", [False, True])
def test_an_address_is_read_by_ranges_if_it_has_an_index(tar, served, whole):
    address, handler = served
    handler.whole = whole
    assert find_entries(address) is None
    assert count_samples(address) is None
    write_index(tar)
    assert count_samples(address) == 8
    entries = find_entries(address)
    with Parts(address) as parts:
        found = {i: parts.read_sample(entries[i]) for i in (5, 6, 2)}
    expected = dict(enumerate(files for _, files in read_through(tar)))
    assert found == {i: expected[i] for i in found}
