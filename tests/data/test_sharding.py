"""Folders as shards: shuffled, whole, resumable, shared by processes, and what a stream makes of them."""

import json
import os

import pytest

from captioned_files import picture
from stringpe.cli.main import main
from stringpe.data.captioned_images import ShardCaptions
from stringpe.data.labelled_images import FolderSet, ShardSet
from stringpe.data.order import Launch
from stringpe.data.sharding import ShardCounts, write_shards


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(("cat", "dog", "emu")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            (tmp_path / "photos" / name / f"{i}.png").write_bytes(picture(80 * number + 5 * i))
    return tmp_path / "photos"


def test_every_image_is_there_once_with_its_class_in_a_shuffled_order(folder, tmp_path):
    assert write_shards(folder, tmp_path / "out", shard_size=5) == ShardCounts(3, 12, 0)
    plain, sharded = FolderSet(str(folder)), ShardSet(f"{tmp_path}/out/*.tar")
    both = [sorted((s.label(i), s.decode(i).getpixel((0, 0))) for i in range(len(s))) for s in (plain, sharded)]
    assert both[0] == both[1]
    labels = [sharded.label(i) for i in range(12)]
    assert labels != sorted(labels)
    assert json.loads((tmp_path / "out" / "dataset.json").read_text())["classes"] == ["cat", "dog", "emu"]
    write_shards(folder, tmp_path / "other", shard_size=5, seed=1)
    assert (tmp_path / "other" / "000000.tar").read_bytes() != (tmp_path / "out" / "000000.tar").read_bytes()


def test_processes_share_the_shards_and_finished_ones_stay(folder, tmp_path):
    out = tmp_path / "out"
    assert write_shards(folder, out, shard_size=5, launch=Launch(1, 2)) == ShardCounts(1, 5, 2)
    before = (out / "000001.tar").stat().st_mtime_ns
    (out / "000000.tar").write_bytes(b"of a process that ended before it wrote the index")
    assert write_shards(folder, out, shard_size=5) == ShardCounts(3, 12, 0)
    assert (out / "000001.tar").stat().st_mtime_ns == before
    assert len(ShardSet(f"{out}/*.tar")) == 12
    with pytest.raises(ValueError, match=r"holds another set of shards \(shard_size=5 there, 6 asked for\)"):
        write_shards(folder, out, shard_size=6)
    with pytest.raises(ValueError, match="is not a folder of images"):
        write_shards(tmp_path / "nothing", out)


def test_a_pipe_among_the_images_is_left_out_and_nobody_waits_for_it(folder, tmp_path):
    os.mkfifo(folder / "cat" / "9.png")
    with pytest.warns(RuntimeWarning, match=r"1 of 13 images .* cannot be used .*9\.png is not an ordinary file"):
        assert write_shards(folder, tmp_path / "out").samples == 12


def test_captions_come_along(folder, tmp_path):
    (folder / "captions.json").write_text(json.dumps({"cat/0.png": "a cat", "dog/1.png": ["a dog", "a hound"]}))
    write_shards(folder, tmp_path / "out", captions=True)
    found = ShardCaptions(f"{tmp_path}/out/*.tar")
    told = [json.loads(found.files(i).get("json", b'{"captions": []}'))["captions"] for i in range(12)]
    assert sorted(map(tuple, filter(None, told))) == [("a cat",), ("a dog", "a hound")]


def test_the_commands_say_how_many_there_are(folder, tmp_path, capsys):
    main(["data", "shards", str(folder), str(tmp_path / "out"), "--shard-size", "7"])
    assert f"12 images in 2 shards under {tmp_path / 'out'}: data.train_size=12" in capsys.readouterr().out
    for index in (tmp_path / "out").glob("*.idx"):
        index.unlink()
    main(["data", "index", f"{tmp_path}/out/*.tar"])
    assert "12 samples in 2 shards, each with its .idx: data.train_size=12" in capsys.readouterr().out
    assert len(list((tmp_path / "out").glob("*.idx"))) == 2
