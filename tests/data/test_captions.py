import gzip
import json

import pytest
import torch

from captioned_files import depth, picture, shard, words
from stringpe.data.captions import FolderCaptions, ShardCaptions, caption_set
from stringpe.data.labelled import CorruptImage
from stringpe.data.pair_loader import mirrored, texts
from stringpe.data.pairs import read_all
from stringpe.io.png import png
from stringpe.models.tokenizer import Tokenizer


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


def test_trap_30_zeros_and_the_largest_number_are_holes_and_steps_are_millimetres(tmp_path):
    path = shard(
        tmp_path / "s.tar",
        {
            "0": {"png": picture(), "json": words("a"), "depth.png": depth(2500)},
            "1": {"png": picture(), "json": b'{"captions": ["a"], "depth_step": 0.0002}', "depth.png": depth(10_000)},
        },
    )
    found = ShardCaptions(str(path))
    far = found.depth(0)
    assert far[0, 0] == far[0, 1] == 0
    assert torch.allclose(far[1:], torch.tensor(2.5))
    assert torch.allclose(found.depth(1)[1:], torch.tensor(2.0))  # a sample may say its own unit
    assert torch.allclose(ShardCaptions(str(path), depth_step=0.002).depth(0)[1:], torch.tensor(5.0))


def test_the_step_in_a_depth_file_wins_over_json_and_option(tmp_path):
    far = png(torch.full((16, 20), 10_000, dtype=torch.int32), depth_step=0.0002)
    wrong = png(torch.full((16, 20), 10_000, dtype=torch.int32), depth_step=-1)
    said = b'{"captions": ["a"], "depth_step": 0.001}'
    path = shard(
        tmp_path / "s.tar",
        {
            "0": {"png": picture(), "json": words("a"), "depth.png": far},
            "1": {"png": picture(), "json": said, "depth.png": far},
            "2": {"png": picture(), "json": said, "depth.png": wrong},
            "3": {"png": picture(), "json": b'{"captions": ["a"], "depth_step": "short"}', "depth.png": depth()},
        },
    )
    found = ShardCaptions(str(path), depth_step=0.01)
    assert torch.allclose(found.depth(0), torch.tensor(2.0))
    assert torch.allclose(found.depth(1), torch.tensor(2.0))
    for i in (2, 3):
        with pytest.raises(CorruptImage, match="its depth_step cannot be used"):
            found.depth(i)


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
    with pytest.warns(RuntimeWarning, match=r"8 of 10 samples cannot be read and are left out: s.tar/cut: .*; …"):
        found = read_all(ShardCaptions(str(path)), 8, 0, depth=True)
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
    assert "its depth is 16 × 20, which is no scaled 20 × 16" in told["s.tar/other"]
    with pytest.warns(RuntimeWarning, match="4 of 10"):  # without depth, depth cannot be wrong
        assert len(read_all(ShardCaptions(str(path)), 8, 0, depth=False)) == 6


def test_sets_that_cannot_be_are_refused(tmp_path):
    bad = shard(tmp_path / "bad.tar", {"0": {"png": b"no", "json": words("a")}})
    with pytest.raises(ValueError, match=r"none of the 1 samples can be read: bad.tar/0"):
        read_all(ShardCaptions(str(bad)), 8, 0, depth=False)
    with pytest.raises(ValueError, match="the set of captioned images is empty"):
        read_all(ShardCaptions(str(shard(tmp_path / "empty.tar", {}))), 8, 0, depth=False)
    with pytest.raises(ValueError, match="has no images"):
        FolderCaptions(str(tmp_path))
    with pytest.raises(ValueError, match=r"needs data.train=… and data.val=…"):
        caption_set("shards", "")
    with pytest.raises(ValueError, match="shards, folder, scenes or stream, got 'synthetic'"):
        caption_set("synthetic", "x")
    (tmp_path / "a.png").write_bytes(picture())
    (tmp_path / "captions.csv").write_text("name;text\n")
    with pytest.raises(ValueError, match="columns file and caption"):
        FolderCaptions(str(tmp_path))


@pytest.mark.parametrize("name", ["cut.tar", "cut.tar.gz", "none.tar"])
def test_of_a_damaged_shard_the_rest_is_used(tmp_path, name):
    long = words("a " * 3000)  # so that the cut falls into a file
    whole = shard(tmp_path / "whole.tar", {str(i): {"png": picture(), "json": long} for i in range(40)})
    content = whole.read_bytes()
    content = gzip.compress(content) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(b"nothing" * 99 if name == "none.tar" else content[: int(len(content) * 0.6)])
    with pytest.warns(RuntimeWarning, match=rf"the shard .*{name} is damaged"):
        found = ShardCaptions(f"{whole},{tmp_path / name}")
    assert 40 <= len(found) < 80
    assert found.captions(39)[0].startswith("a a")


def test_a_mirror_swaps_left_and_right():
    assert mirrored("a mug LEFT of a bright bowl, to the right") == "a mug right of a bright bowl, to the left"


def test_captions_of_an_image_are_drawn_from_its_own():
    captions = [["aa left", "bb"], ["cc"], ["dd", "ee", "ff"]]
    tokenizer = Tokenizer.train([c for row in captions for c in row], vocab=300)
    found = texts(captions, tokenizer, context=20)
    assert found.tokens.shape[1] < 20  # no wider than needed
    index, u = torch.tensor([2, 0, 1, 0]), torch.tensor([0.99, 0.0, 0.5, 1.0])
    plain = found.draw(index, u, torch.zeros(4, dtype=torch.bool))
    assert tokenizer.decode(plain) == ["ff", "aa left", "cc", "bb"]
    assert tokenizer.decode(found.draw(index, u, torch.ones(4, dtype=torch.bool))) == ["ff", "aa right", "cc", "bb"]
    tokens, owner = found.of(torch.tensor([1, 2]), most=3)
    assert owner.tolist() == [1, -1, -1, 2, 2, 2]
    assert tokenizer.decode(tokens)[3:] == ["dd", "ee", "ff"]
