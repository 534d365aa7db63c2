"""Batches: the same from memory, workers and small streams, for every task; and what goes wrong on the way."""

import os
import signal
import time
from dataclasses import replace
from itertools import chain, islice

import pytest
import torch

from stringpe import tasks
from stringpe.data import loader
from stringpe.data.loader import Examples, Request, Workers, read_all, shares
from stringpe.data.order import Place
from stringpe.data.sources import SERVES
from stringpe.data.stream import is_large_stream
from stringpe.io.pictures import BadSample
from stringpe.io.problems import Problems
from task_recipes import FAMILIES


def test_validation_shares_cover_everything_once_and_equally_often():
    for size, batch, world in [(10, 4, 1), (10, 4, 3), (3, 8, 2), (12, 3, 2)]:
        parts = [list(shares(size, batch, Place(r, world))) for r in range(world)]
        assert len({len(p) for p in parts}) == 1
        kept = [i for p in parts for index, weight in p for i in index[weight > 0].tolist()]
        assert sorted(kept) == list(range(size))


def read_even(i):
    if i % 2:
        raise BadSample(f"{i}: odd")
    return i


def test_what_can_be_read_is_kept_and_the_rest_is_named():
    problems = Problems("numbers")
    with pytest.warns(RuntimeWarning, match=r"^2 of 5 numbers cannot be used and are left out: 1: odd; 3: odd$"):
        assert read_all(5, read_even, problems) == {0: 0, 2: 2, 4: 4}
    with pytest.raises(ValueError, match=r"nothing can be read \(there are no numbers at all\)"):
        read_all(0, read_even, Problems("numbers"))
    with pytest.raises(ValueError, match=r"nothing can be read \(1 of 1 numbers .*: 1: odd\)"):
        read_all(1, lambda i: read_even(1), Problems("numbers"))
    earlier = Problems("numbers")
    earlier.add("the file is damaged")
    with pytest.warns(RuntimeWarning, match=r"^2 numbers cannot"):  # the file is not one of three numbers
        read_all(3, read_even, earlier)


class Misbehaving(Examples):
    """Examples that stop their reader in one way or another."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 3

    def read(self, i):
        if self.how == "hang":
            time.sleep(2.5)
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("set data.num_classes")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "die"])
def test_a_worker_that_hangs_or_dies_ends_the_run_in_words(how, monkeypatch):
    monkeypatch.setattr(loader, "PATIENCE", 1)
    batches = Workers(Misbehaving(how), 1, Problems("numbers")).batches(
        [Request(torch.tensor([0]), 0)], Place(), nothing
    )
    with pytest.raises(
        ValueError, match=r"the processes that read the data stopped .*: check the storage of data.train"
    ):
        next(batches)


def nothing(columns, step):
    return {}


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_worker_arrives_in_its_own_words(workers):
    found = Workers(Misbehaving("raise"), workers, Problems("numbers"))
    with pytest.raises(ValueError, match=r"^set data.num_classes$"):
        next(found.batches([Request(torch.tensor([0]), 0)], Place(), nothing))


def batches(recipe, start, count, place=None):
    return list(islice(tasks.create(recipe).batches(start, place or Place()), count))


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a stream that is left leaves its file open
@pytest.mark.parametrize("task", FAMILIES)
def test_a_batch_depends_on_seed_and_step_alone(task, tmp_path):
    """From every data source: not on where a run went on, and except in a large stream not on the processes."""
    for recipe in FAMILIES[task](tmp_path):
        whole = batches(recipe, 0, 6)
        (again,) = batches(recipe, 2, 1)
        assert again.keys() == whole[2].keys()
        assert all(torch.equal(again[name], whole[2][name]) for name in again)
        assert len({b"".join(t.numpy().tobytes() for t in batch.values()) for batch in whole}) > 1
        if is_large_stream(recipe.data):
            continue
        parts = [batches(recipe, 2, 1, Place(rank, 2))[0] for rank in range(2)]
        for name, tensor in again.items():
            first, second = (part[name] for part in parts)
            if first.shape[1:] == second.shape[1:] == tensor.shape[1:]:  # else padded to the longest of its own process
                assert torch.equal(torch.cat([first, second]), tensor), name


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("task", [t for t, serves in SERVES.items() if "in_memory" in chain(*serves.values())])
def test_every_way_of_loading_gives_the_same_batches(task, tmp_path):
    """Memory, workers and a stream that is kept, for every task that has a choice: the data of the others is in
    memory."""
    ways = {}
    for recipe in FAMILIES[task](tmp_path):
        if not is_large_stream(recipe.data):
            source = "shards" if recipe.data.source == "stream" else recipe.data.source
            ways.setdefault((source, recipe.data.train), []).append(recipe)
    assert (
        sorted(map(len, ways.values()))
        == {"classification": [1, 2, 3], "retrieval": [1, 2, 3], "detection2d": [1, 2]}[task]
    )
    for first, *others in ways.values():
        expected = batches(first, 1, 3)
        for recipe in others:
            for workers in (0, 1) if not recipe.data.in_memory or recipe.data.source == "stream" else (0,):
                found = batches(replace(recipe, data=replace(recipe.data, workers=workers)), 1, 3)
                for a, b in zip(expected, found, strict=True):
                    assert a.keys() == b.keys()
                    assert all(torch.equal(a[name], b[name]) for name in a)
