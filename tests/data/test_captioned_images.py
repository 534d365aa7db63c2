"""Sets of images with captions: every layout that is read, and what is wrong with some of them."""

import gzip
import json

import pytest

from captioned_files import depth, picture, shard, words
from stringpe.data.captioned_batches import read_captioned
from stringpe.data.captioned_images import FolderCaptions, ShardCaptions


def test_shards_hold_captions_as_json_or_text(tmp_path):
    path = shard(
        tmp_path / "s.tar",
        {
            "0": {"png": picture(), "json": words("a dog", " ", "a cat ")},
            "1": {"jpg": picture(kind="JPEG"), "txt": b"one line\n\nanother\n"},
            "2": {"rgb.png": picture(), "json": b'{"caption": "just one"}', "instance.png": picture()},
        },
    )
    found = ShardCaptions(str(path))
    assert [found.captions(i) for i in range(len(found))] == [["a dog", "a cat"], ["one line", "another"], ["just one"]]
    assert found.picture(2).size == (20, 16)
    assert found.name(1) == "s.tar/1"


@pytest.mark.parametrize("how", ["json", "rows", "coco", "csv", "beside"])
def test_folders_hold_captions_in_a_list_or_beside_each_image(tmp_path, how):
    for name in ("b.png", "a.png"):
        (tmp_path / name).write_bytes(picture())
    (tmp_path / "a.depth.png").write_bytes(depth())
    table = {"a.png": ["one", "two"], "b.png": ["three"]}
    if how == "json":
        (tmp_path / "captions.json").write_text(json.dumps(table))
    elif how == "rows":
        rows = [{"file": name, "captions": texts} for name, texts in table.items()]
        (tmp_path / "captions.json").write_text(json.dumps(rows))
    elif how == "coco":
        images = [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}]
        notes = [{"image_id": i, "caption": c} for i, c in ((1, "one"), (2, "three"), (1, "two"))]
        (tmp_path / "captions.json").write_text(json.dumps({"images": images, "annotations": notes}))
    elif how == "csv":
        (tmp_path / "captions.csv").write_text("image,caption\na.png,one\na.png,two\nb.png,three\n")
    else:
        (tmp_path / "a.txt").write_text("one\ntwo\n")
        (tmp_path / "b.txt").write_text("three")
    found = FolderCaptions(str(tmp_path))
    assert [found.captions(i) for i in range(2)] == [["one", "two"], ["three"]]
    assert found.depth(0).shape == (16, 20)
    assert float(found.depth(0)[5, 5]) == pytest.approx(1.5)


def test_one_bad_sample_is_counted_and_named_and_ends_nothing(tmp_path):
    good = {"png": picture(), "json": words("a dog"), "depth.png": depth()}
    path = shard(
        tmp_path / "s.tar",
        {
            "fine": good,
            "cut": good | {"png": picture()[:40]},
            "mute": good | {"json": words("", " ")},
            "odd": good | {"json": b'{"captions": [3]}'},
            "broken": good | {"json": b"{"},
            "flat": {"png": picture(), "json": words("a dog")},
            "eight": good | {"depth.png": depth(mode="L")},
            "metres": good | {"depth.png": depth(3)},
            "other": good | {"depth.png": depth(size=(16, 20))},
            "larger": good | {"depth.png": depth(size=(40, 32))},
        },
    )
    with pytest.warns(
        RuntimeWarning, match=r"8 of 10 samples of .*s.tar cannot be used and are left out: s.tar/cut: .*; and 3 more"
    ):
        found = read_captioned(ShardCaptions(str(path)), 8, 0, depth=True)
    assert len(found) == 2
    assert found.image.shape == (2, 3, 8, 8)
    assert found.depth.shape == (2, 8, 8)
    told = dict(problem.split(": ", 1) for problem in found.problems)
    assert "no caption, or only empty ones" in told["s.tar/mute"]
    assert "captions must be a list of texts" in told["s.tar/odd"]
    assert "json cannot be read" in told["s.tar/broken"]
    assert "has no depth.png" in told["s.tar/flat"]
    assert "mode L, not 16-bit" in told["s.tar/eight"]
    assert "median depth would be 0.003 m: is a step 0.001 m (data.depth_step)?" in told["s.tar/metres"]
    assert "its depth is 16 × 20, which is not the image's 20 × 16 at another scale" in told["s.tar/other"]
    with pytest.warns(RuntimeWarning, match="4 of 10"):  # without depth, depth cannot be wrong
        assert len(read_captioned(ShardCaptions(str(path)), 8, 0, depth=False)) == 6


def test_sets_that_cannot_be_used_are_refused(tmp_path):
    bad = shard(tmp_path / "bad.tar", {"0": {"png": b"no", "json": words("a")}})
    with pytest.raises(ValueError, match=r"nothing can be read \(1 of 1 samples of .*bad.tar/0: not a picture"):
        read_captioned(ShardCaptions(str(bad)), 8, 0, depth=False)
    with pytest.raises(ValueError, match=r"nothing can be read \(there are no samples in .*empty\.tar\)"):
        read_captioned(ShardCaptions(str(shard(tmp_path / "empty.tar", {}))), 8, 0, depth=False)
    with pytest.raises(ValueError, match="has no images"):
        FolderCaptions(str(tmp_path))
    (tmp_path / "a.png").write_bytes(picture())
    (tmp_path / "captions.csv").write_text("name;text\n")
    with pytest.raises(ValueError, match="columns file and caption"):
        FolderCaptions(str(tmp_path))


LISTS = [
    ("captions.json", "{", "is not valid JSON"),
    ("captions.json", "3", "must hold an object of captions by file name"),
    ("captions.json", '["a"]', "must hold an object of captions by file name"),
    ("captions.json", '[{"captions": ["x"]}]', "must hold an object of captions by file name"),
    ("captions.json", '{"annotations": [{"image_id": 1}], "images": [{"id": 1}]}', "must hold an object of captions"),
    ("captions.json", '{"a.png": 3}', "entry 1 is .*, not a file name with a caption"),
    ("captions.json", '{"a.png": ["x", null]}', "entry 1 is .*, not a file name with a caption"),
    ("captions.csv", "file,caption\na.png,one\nb.png\n", "entry 2 is .*, not a file name with a caption"),
]


@pytest.mark.parametrize(("name", "content", "words"), LISTS)
def test_a_damaged_list_of_captions_is_refused_with_its_name(tmp_path, name, content, words):
    (tmp_path / "a.png").write_bytes(picture())
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=f"{name}.*{words}|{name} .*{words}"):
        FolderCaptions(str(tmp_path))


def test_a_name_with_a_second_dot_is_counted_and_explained(tmp_path):
    good = {"png": picture(), "json": words("a dog")}
    path = shard(tmp_path / "s.tar", {"a": good, "img.001": good, "set.b/b": good})
    found = ShardCaptions(str(path))
    with pytest.warns(RuntimeWarning, match=r"1 of 3 samples .* s.tar/img: it has no picture, only 001.json, 001.png"):
        assert len(read_captioned(found, 8, 0, depth=False)) == 2


@pytest.mark.parametrize("name", ["cut.tar", "cut.tar.gz", "none.tar"])
def test_of_a_damaged_shard_the_samples_before_the_damage_are_used(tmp_path, name):
    long = words("a " * 3000)  # so that the cut falls into a file
    whole = shard(tmp_path / "whole.tar", {str(i): {"png": picture(), "json": long} for i in range(40)})
    content = whole.read_bytes()
    content = gzip.compress(content) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(b"nothing" * 99 if name == "none.tar" else content[: int(len(content) * 0.6)])
    found = ShardCaptions(f"{whole},{tmp_path / name}")
    assert 40 <= len(found) < 80
    assert found.captions(39)[0].startswith("a a")
    with pytest.warns(RuntimeWarning, match=rf"{name} is damaged \(.*\): only the \d+ files before the damage"):
        kept = read_captioned(found, 8, 0, depth=False)
    assert len(kept) >= 40
    assert any("is damaged" in problem for problem in kept.problems)
