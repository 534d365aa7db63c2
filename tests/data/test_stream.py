"""A stream that goes on where it stopped reads what is left, and nothing of what came before."""

import gzip
from itertools import chain
from pathlib import Path

import pytest
import torch

from captioned_files import shard
from stringpe.data import stream as streams
from stringpe.data.order import Place
from stringpe.data.stream import Stream
from stringpe.data.tars import ShardReader, write_index
from stringpe.io.pictures import BadSample
from stringpe.io.problems import Problems
from stringpe.recipes.schema import Data, Loop, Recipe

SHARDS, EACH, SIZE, BATCH = 6, 10, 3000, 4
EPOCH = SHARDS * EACH // BATCH


@pytest.fixture
def tars(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "BUFFER", 7)
    for number in range(SHARDS):
        first = number * EACH
        samples = {f"{first + i:03d}": {"bin": bytes([first + i]) * SIZE} for i in range(EACH)}
        shard(tmp_path / f"s-{number}.tar", samples)
    return tmp_path


def parse(key, files):
    if files["bin"][:1] == b"\xff":
        raise BadSample(f"{key}: bad")
    assert len(set(files["bin"])) == 1
    return {"number": torch.tensor(files["bin"][0])}


def stack(rows):
    return {"number": torch.stack([row["number"] for row in rows])}


def numbers(folder, start, count, place=None, workers=0):
    data = Data(source="stream", train=f"{folder}/s-*.tar*", train_size=SHARDS * EACH, workers=workers)
    stream = Stream(Recipe(data=data, loop=Loop(batch_size=BATCH), seed=3), parse, stack, Problems("samples"))
    batches = stream.batches(start, place or Place(), lambda columns, step: columns)
    return [next(batches)["number"].tolist() for _ in range(count)]


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own(tars):
    first, second = numbers(tars, 0, EPOCH), numbers(tars, EPOCH, EPOCH)
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(SHARDS * EACH))
    assert first != second


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("start", [1, 5, EPOCH - 1, EPOCH, 2 * EPOCH + 8])
def test_going_on_gives_the_same_batches(tars, start, index):
    for path in tars.glob("*.tar") if index else ():
        write_index(path)
    assert numbers(tars, start, 12) == numbers(tars, 0, start + 12)[start:]


@pytest.mark.parametrize("rank", [0, 1])
def test_going_on_in_two_processes_with_a_worker_each(tars, rank):
    place = Place(rank, 2)
    assert numbers(tars, 9, 8, place, workers=1) == numbers(tars, 0, 17, place, workers=1)[9:]
    with pytest.raises(ValueError, match="6 shards cannot be shared by 8 workers"):
        numbers(tars, 0, 1, place, workers=4)


def test_only_what_is_left_is_read(tars, monkeypatch):
    """Bytes of samples that are read on going on at step k: those of the steps that are asked for, and the buffer."""
    for path in tars.glob("*.tar"):
        write_index(path)
    read = []
    plain = ShardReader.read

    def counted(self, offset, size):
        content = plain(self, offset, size)
        read.append(len(content))
        return content

    monkeypatch.setattr(ShardReader, "read", counted)
    through = []
    opened = streams.open_shard
    monkeypatch.setattr(streams, "open_shard", lambda name: through.append(name) or opened(name))
    expected = numbers(tars, 0, EPOCH)
    assert not read
    assert len(through) == SHARDS
    for step in (EPOCH - 1, EPOCH - 4):
        read.clear()
        through.clear()
        assert numbers(tars, step, 1) == [expected[step]]
        left = (EPOCH - step) * BATCH
        assert sum(read) <= (max(left, streams.BUFFER) + BATCH) * (512 + SIZE)
        assert len(through) <= 1
    read.clear()
    numbers(tars, 10 * EPOCH, 1)  # ten epochs are passed over by their counts alone
    assert not read


def test_what_has_no_offsets_is_read_through(tars):
    expected = numbers(tars, 0, 12)
    for path in sorted(tars.glob("*.tar")):
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert numbers(tars, 7, 5) == expected[7:]


def test_an_index_of_another_tar_ends_the_run_in_words(tars):
    for path in tars.glob("*.tar"):
        write_index(path)
        shard(path, {"a": {"bin": b"1" * 9000}, "b": {"bin": b"2" * 9000}})
    with pytest.raises(ValueError, match=r"does not describe .*: make it again with stringpe data index"):
        numbers(tars, 3, 1)


def test_a_tar_that_was_cut_since_then_loses_what_is_missing(tars):
    for path in tars.glob("*.tar"):
        write_index(path)
    cut = tars / "s-2.tar"
    cut.write_bytes(cut.read_bytes()[: 5 * (512 + 3072) + 700])
    with pytest.warns(RuntimeWarning, match=r"s-2.tar"):
        found = list(chain(*numbers(tars, 2, EPOCH)))
    assert 29 not in found
