"""Tars, zips and folders, whole and damaged."""

import contextlib
import gzip
import http.server
import io
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from captioned_files import picture, shard
from stringpe.data.images import PictureFiles
from stringpe.data.tars import (
    ShardReader,
    StaleIndex,
    count_samples,
    find_entries,
    index_path,
    read_index,
    read_members,
    read_samples,
    scan,
    split_name,
    stream_samples,
    write_index,
)
from stringpe.io.pictures import BadSample
from stringpe.io.problems import Problems


def write_tar(path, files, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, content in files.items() if isinstance(files, dict) else files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def test_names_are_split_at_the_first_dot_of_their_last_part():
    assert split_name("008.png") == ("008", "png")
    assert split_name("./000.png") == ("000", "png")
    assert split_name("set.b/008.png") == ("set.b/008", "png")
    assert split_name("a/b.c/008.rgb.png") == ("a/b.c/008", "rgb.png")
    assert split_name("img.001.png") == ("img", "001.png")
    assert split_name("a/.hidden") == ("a/", "")
    assert split_name("README") == ("README", "")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "gzipped.tar"])
def test_dots_in_folders_and_leading_dots_lose_no_sample(tmp_path, name):
    files = {}
    for i, folder in enumerate(("", "./", "set.a/", "set.b/", "x/y.z/")):
        files |= {f"{folder}{i:03d}.png": bytes([i]), f"{folder}{i:03d}.cls": b"1"}
    path = write_tar(tmp_path / name, files, "w" if name == "a.tar" else "w:gz")
    problems = Problems("samples")
    found = read_samples(path, problems)
    assert list(found) == ["000", "001", "set.a/002", "set.b/003", "x/y.z/004"]
    assert [found[key]["png"].read() for key in found] == [bytes([i]) for i in range(5)]
    assert not len(problems)
    with path.open("rb") as file:
        assert [key for key, _ in stream_samples(file)] == list(found)


def test_a_file_that_is_there_twice_is_named(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("0.png", b"a"), ("0.png", b"b"), ("./0.png", b"c")])
    problems = Problems("samples")
    assert read_samples(path, problems)["0"]["png"].read() == b"a"
    assert "a.tar/0.png: it occurs twice" in problems.reasons[0]
    assert len(problems) == 2


def test_a_file_that_claims_too_much_is_left_out(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "a.tar", {"0.png": bytes(100), "1.png": b"b"})
    monkeypatch.setattr("stringpe.data.tars.MAX_BYTES", 50)
    problems = Problems("samples")
    assert list(read_samples(path, problems)) == ["1"]
    assert problems.reasons == ["a.tar/0.png: 100 bytes are more than 50"]


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 1), st.booleans())
def test_a_tar_that_is_cut_anywhere_gives_what_is_whole_and_one_problem(share, compressed):
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        files = {f"{i}.{kind}": bytes([i]) * 700 for i in range(6) for kind in ("png", "cls")}
        content = write_tar(Path(folder) / "whole.tar", files).read_bytes()
        used = 12 * (512 + 1024)  # after which only the end's empty blocks follow
        content = gzip.compress(content) if compressed else content[: used + 512]
        path = Path(folder) / "cut.tar"
        path.write_bytes(content[: int(share * (len(content) - 9))])
        problems = Problems("files", "cut.tar")
        found = dict(read_members(path, problems, texts=True))
        assert all(member.read() == files[name] for name, member in found.items())
        assert list(found) == list(files)[: len(found)]
        if compressed and len(found) == len(files):
            return  # only the check sum is missing
        assert len(problems) == 1
        assert f"only the {len(found)} files before the damage are used" in problems.reasons[0]


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_damage_of_any_kind_never_escapes(seed, changes):
    import random
    import tempfile
    from pathlib import Path

    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = write_tar(Path(folder) / "a.tar", {f"{i}.png": bytes([i]) * 300 for i in range(4)})
        content = bytearray(path.read_bytes())
        for _ in range(changes):
            content[dice.randrange(4 * 1024)] = dice.randrange(256)
        path.write_bytes(content)
        read_samples(path, Problems("samples"))


def test_pictures_from_folders_tars_and_zips(tmp_path):
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017" / "a.png").write_bytes(picture(10))
    (tmp_path / "bad.png").write_bytes(picture(10)[:30])
    for name, mode in (("p.tar", "w"), ("p.tar.gz", "w:gz")):
        write_tar(tmp_path / name, {"./train2017/a.png": picture(10), "bad.png": picture(10)[:30]}, mode)
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as file:
        file.write(tmp_path / "train2017" / "a.png", "train2017/a.png")
        file.write(tmp_path / "bad.png", "bad.png")
    for where in (tmp_path, tmp_path / "p.tar", tmp_path / "p.tar.gz", tmp_path / "p.zip"):
        files = PictureFiles(str(where))
        assert files.decode("train2017/a.png").getpixel((0, 0)) == (10, 245, 7)
        with pytest.raises(BadSample, match=r"c.png: file not found"):
            files.decode("train2017/c.png")
        with pytest.raises(BadSample, match=r"bad.png: "):
            files.decode("bad.png")
    assert PictureFiles(str(tmp_path / "p.zip")).decode("val/a.png").size == (20, 16)
    assert PictureFiles(str(tmp_path / "train2017")).decode("train2017/a.png").size == (20, 16)


def test_files_that_are_not_archives(tmp_path, monkeypatch):
    (tmp_path / "no.zip").write_text("x")
    with pytest.raises(ValueError, match=r"no\.zip is not a zip file that can be read"):
        PictureFiles(str(tmp_path / "no.zip"))
    with pytest.raises(ValueError, match=r"data.train=… and data.val=…"):
        PictureFiles("")
    (tmp_path / "no.tar").write_text("x")
    with pytest.warns(RuntimeWarning, match=r"no\.tar is damaged"):
        PictureFiles(str(tmp_path / "no.tar"))
    with zipfile.ZipFile(tmp_path / "p.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("a.png", bytes(10_000))
    monkeypatch.setattr("stringpe.data.images.MAX_BYTES", 5000)
    with pytest.raises(BadSample, match="it claims more than 5000 bytes"):
        PictureFiles(str(tmp_path / "p.zip")).read("a.png")


SAMPLES = {f"set.b/{i:03d}": {"jpg": bytes([i]) * (100 * i), "rgb.png": b"x" * i, "cls": b"1"} for i in range(1, 9)}


@pytest.fixture
def tar(tmp_path):
    return shard(tmp_path / "train-0.tar", SAMPLES)


def read_through(path):
    with open(path, "rb") as file:
        return list(stream_samples(file))


def test_samples_by_offset_are_those_of_reading_through(tar):
    entries = scan(tar)
    with ShardReader(str(tar)) as parts:
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
    with ShardReader(str(tar)) as parts, pytest.raises(StaleIndex, match=r"train-0.idx does not describe .*data index"):
        parts.read_sample(entries[3])
    place.write_text("v1.2 3\njpg 512 100 a.jpg\n")
    with pytest.raises(StaleIndex, match="says that it names 3 samples, and names 1"):
        find_entries(str(tar))
    for text, match in (("", "begins with ''"), ("v9 1\n", "begins with 'v9 1'"), ("v1.2 1\njpg 5\n", "a line that")):
        with pytest.raises(StaleIndex, match=match):
            read_index(text, "i")


def test_an_index_that_names_other_files_of_the_same_size_is_refused(tmp_path):
    tar = shard(tmp_path / "train-0.tar", {f"{i}": {"txt": b"one", "cls": b"%d" % i} for i in range(4)})
    text = write_index(tar).read_text()
    for swapped in (text.replace("1.cls", "7.cls"), text.replace("0.cls", "x").replace("1.cls", "0.cls")):
        with pytest.raises(StaleIndex), ShardReader(str(tar)) as parts:
            [parts.read_sample(entry) for entry in read_index(swapped, "i")]
    with pytest.raises(StaleIndex, match=r"a line that is not that of an index, 'txt 512 3 0.txt clz"):
        read_index(text.replace("0.txt cls", "0.txt clz"), "i")


@pytest.mark.parametrize("name", ["x" * 150, "ä" * 30, "bär?", "a" * 99, "b" * 100, "folder/" * 20 + "x"])
def test_an_index_may_name_files_that_a_header_cannot(tmp_path, name):
    tar = shard(tmp_path / "train-0.tar", {name: {"txt": b"one", "cls": b"1"}})
    write_index(tar)
    (entry,) = find_entries(str(tar))
    with ShardReader(str(tar)) as parts:
        assert parts.read_sample(entry) == {"txt": b"one", "cls": b"1"}


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
    with ShardReader(address) as parts:
        found = {i: parts.read_sample(entries[i]) for i in (5, 6, 2)}
    expected = dict(enumerate(files for _, files in read_through(tar)))
    assert found == {i: expected[i] for i in found}


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "zip"])
def test_archives_are_never_unpacked_to_disk(tmp_path, kind):
    """Names that lead out of the folder, to the root, and through a link: nothing is written anywhere."""
    names = ["../out.png", "/tmp/stringpe-out.png", "a/../../out.png", "link/out.png"]
    inside = tmp_path / "inside"
    inside.mkdir()
    path = inside / f"p.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as packed:
            for name in names:
                packed.writestr(name, picture(9))
    else:
        with tarfile.open(path, "w:gz" if kind.endswith("gz") else "w") as packed:
            link = tarfile.TarInfo("link")
            link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
            packed.addfile(link)
            for name in names:
                entry = tarfile.TarInfo(name)
                entry.size = len(picture(9))
                packed.addfile(entry, io.BytesIO(picture(9)))
    files = PictureFiles(str(path))
    for name in names:
        with contextlib.suppress(BadSample):
            assert files.decode(name).size == (20, 16)
    if kind != "zip":
        read_samples(path, Problems("samples", str(path)))
    assert {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")} == {"inside", f"inside/p.{kind}"}
    assert not Path("/tmp/stringpe-out.png").exists()
