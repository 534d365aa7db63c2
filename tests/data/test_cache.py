import pytest
import torch

from stringpe.data import cache
from stringpe.data.cache import digest, file_marks, forget_all, load_or_make, remember
from stringpe.recipes.schema import Data


def test_equal_arguments_give_what_they_gave_and_the_oldest_set_goes_first():
    calls = []

    @remember
    def load(name):
        calls.append(name)
        return [name]

    @remember
    def other(name):
        calls.append(f"other {name}")
        return [name]

    forget_all()
    first = load("a")
    assert load("a") is first
    assert other("a") is not first  # each function has sets of its own
    for i in range(cache.MOST - 2):
        load(str(i))
    assert load("a") is first  # used just now, so it stays
    load("one more")
    assert other("a") is not None
    assert calls.count("other a") == 2  # the one that was used least recently had to go
    assert calls.count("a") == 1
    forget_all()
    load("a")
    assert calls.count("a") == 2


def test_a_set_is_loaded_again_once_a_file_that_it_names_has_changed(tmp_path):
    calls, data = [], Data(train=str(tmp_path))

    @remember
    def load(data):
        calls.append(data)
        return [data]

    forget_all()
    (tmp_path / "a").write_text("1")
    first = load(data)
    assert load(data) is first
    (tmp_path / "a").write_text("22")
    second = load(data)
    assert second is not first
    assert load(data) is second
    (tmp_path / "b").write_text("3")
    assert load(data) is not second
    assert len(calls) == 3


def test_what_fails_is_not_remembered():
    @remember
    def load(name):
        raise ValueError(name)

    for _ in range(2):
        with pytest.raises(ValueError, match="a"):
            load("a")


def test_a_file_is_made_once_and_again_when_it_is_damaged(tmp_path):
    made = []

    def make():
        made.append(1)
        return {"x": torch.arange(3)}

    for _ in range(2):
        assert load_or_make(str(tmp_path), "set", make)["x"].tolist() == [0, 1, 2]
    assert len(made) == 1
    (tmp_path / "set.safetensors").write_bytes(b"cut")
    with pytest.warns(RuntimeWarning, match=r"in the cache, .*set\.safetensors is damaged .*: it is made again"):
        load_or_make(str(tmp_path), "set", make)
    assert load_or_make(str(tmp_path), "set", make)["x"].tolist() == [0, 1, 2]
    assert len(made) == 2


def test_marks_change_with_what_they_stand_for(tmp_path):
    path = tmp_path / "a"
    path.write_text("x")
    before = digest(path), file_marks([path])
    path.write_text("xy")
    assert digest(path) != before[0]
    assert file_marks([path]) != before[1]
    assert len({digest("a", "b"), digest("ab"), digest("a"), digest(1), digest("1")}) == 5
