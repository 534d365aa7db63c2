"""Files are whole or not there, folders know what made them, and a lock names its holder."""

import json
import os
import subprocess
import sys

import pytest
import torch

from stringpe.io.files import (
    _HOST,
    cache_folder,
    claim_folder,
    find_mismatch,
    find_not_finite,
    hold_lock,
    new_file,
    new_folder,
    read_json,
    read_record,
    read_tensors,
    remove_all_stale_drafts,
    remove_folder,
    write_json,
    write_tensors,
    write_text,
)


def test_a_failed_writer_leaves_the_old_file_and_no_draft(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    with pytest.raises(FileNotFoundError, match="missing"), new_file(path) as draft:
        draft.with_name("missing").rename(draft)
    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_folder_appears_whole(tmp_path):
    with new_folder(tmp_path / "run") as draft:
        (draft / "sub").mkdir()
        (draft / "sub" / "a").write_text("a")
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "run" / "sub" / "a").read_text() == "a"
    with pytest.raises(RuntimeError), new_folder(tmp_path / "other") as draft:
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_drafts_of_dead_writers_go_and_those_of_living_ones_stay(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead, alive = (tmp_path / f".x.{_HOST}.{number}.abc" for number in (ended.pid, os.getppid()))
    elsewhere = tmp_path / f".x.another{_HOST}.{ended.pid}.abc"
    for draft in (dead, alive, elsewhere):
        draft.write_text("half")
    write_text(tmp_path / "x", "whole")
    assert [draft.exists() for draft in (dead, alive, elsewhere)] == [False, True, True]


def test_a_damaged_json_file_is_named(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"x\.json is not valid JSON .*: restore it or remove it"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_a_folder_is_not_used_with_other_settings(tmp_path):
    settings = {"size": (2, 3), "seed": 0}
    claim_folder(tmp_path, settings, file="made.json", what="data set")
    claim_folder(tmp_path, settings, file="made.json", what="data set")
    with pytest.raises(ValueError, match=r"holds another data set \(seed=0 there, 1 asked for\)"):
        claim_folder(tmp_path, {**settings, "seed": 1}, file="made.json", what="data set")
    (tmp_path / "made.json").write_text("[]")
    with pytest.raises(ValueError, match="does not hold settings"):
        claim_folder(tmp_path, settings, file="made.json", what="data set")


def test_a_lock_names_who_holds_it_and_ends_with_its_holder(tmp_path):
    path = tmp_path / "lock"
    code = (
        f"from stringpe.io.files import hold_lock; from pathlib import Path\nwith hold_lock(Path({str(path)!r}), 'x'):"
    )
    code += " print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        words = rf"the folder is in use by process {other.pid} on "
        with pytest.raises(ValueError, match=words), hold_lock(path, "the folder"):
            pass
        other.kill()
        other.wait()
        with hold_lock(path, "the folder"):
            pass


def test_the_cache_is_the_one_chosen_or_the_users(monkeypatch, tmp_path):
    assert cache_folder("here").name == "here"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "stringpe"


RACE = """
import os, sys, time
from pathlib import Path
from stringpe.io.files import claim_folder
for round in range(25):
    folder = Path(sys.argv[1]) / str(round)
    start, pids = time.time() + 0.03, []
    for number in range(8):
        pids.append(os.fork())
        if not pids[-1]:
            while time.time() < start:
                pass
            try:
                claim_folder(folder, {"seed": number, "text": "x" * 5000}, file="made.json", what="data set")
            except ValueError:
                os._exit(1)
            os._exit(0)
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids), flush=True)
"""


def test_of_many_processes_that_begin_a_folder_at_once_one_gets_it(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", RACE, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    for number, line in enumerate(run.stdout.splitlines()):
        winners = [i for i, status in enumerate(line.split()) if status == "0"]
        assert winners == [read_json(tmp_path / str(number) / "made.json")["seed"]]
        assert [path.name for path in (tmp_path / str(number)).iterdir()] == ["made.json"]


def test_of_several_writers_of_a_new_file_the_first_wins(tmp_path):
    with new_file(tmp_path / "x", exclusive=True) as early:
        early.write_text("early")
    with pytest.raises(FileExistsError), new_file(tmp_path / "x", exclusive=True) as late:
        late.write_text("late")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("x", "early")]


SHAPE = {"step": int, "window": [float], "name": (str, None), "rows": {str: {"on": bool}}, "rest": object}
GOOD = {"step": 3, "window": [1, 0.5], "name": None, "rows": {"a": {"on": True}}, "rest": [], "more": 1}


def test_what_has_the_shape_has_no_mismatch():
    assert find_mismatch(GOOD, SHAPE) == ""
    assert find_mismatch(GOOD | {"name": "x", "window": [], "rows": {}}, SHAPE) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": True}, "step is 'True', not a whole number"),
        ({"step": 1.5}, "step is '1.5', not a whole number"),
        ({"window": 3}, "window is '3', not a list"),
        ({"window": [0.1, "x"]}, "window[1] is 'x', not a finite number"),
        ({"window": [float("nan")]}, "window[0] is 'nan', not a finite number"),
        ({"window": [10**400]}, "not a finite number"),
        ({"name": 3}, "name is '3', not a text"),
        ({"rows": {"a": {}}}, "rows.a has no 'on'"),
        ({"rows": {"a": {"on": 1}}}, "rows.a.on is '1', not true or false"),
        ({"rows": []}, "rows is '[]', not an object"),
    ],
)
def test_what_does_not_is_named(change, words):
    assert words in find_mismatch(GOOD | change, SHAPE)


def test_a_missing_key_and_another_kind_of_value():
    assert find_mismatch({}, SHAPE) == "it has no 'step'"
    assert find_mismatch([1], SHAPE) == "it is '[1]', not an object"


def test_a_file_is_named(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(GOOD))
    assert read_record(path, SHAPE) == GOOD
    path.write_text(json.dumps(GOOD | {"step": "x"}))
    with pytest.raises(ValueError, match=r"x\.json is damaged \(step is 'x', not a whole number\): restore it"):
        read_record(path, SHAPE)


def test_what_is_not_an_ordinary_file_is_not_replaced_by_one(tmp_path):
    """As an administrator one could lose /dev/null."""
    os.mkfifo(tmp_path / "device")
    with pytest.raises(OSError, match="device is there and is not an ordinary file"):
        write_text(tmp_path / "device", "x")
    assert (tmp_path / "device").is_fifo()


def test_a_removed_folder_goes_at_once_and_its_rest_with_its_process(tmp_path):
    """A process that is killed while it removes a folder leaves a draft, and no half of a folder under its name."""
    script = (
        "import os, shutil, sys; from pathlib import Path; from stringpe.io import files\n"
        "files.shutil.rmtree = lambda *_: os._exit(9)\n"
        "files.remove_folder(Path(sys.argv[1]))"
    )
    for name in ("000002", "000004"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").touch()
    assert subprocess.run([sys.executable, "-c", script, str(tmp_path / "000002")]).returncode == 9
    assert sorted(path.name for path in tmp_path.glob("[0-9]*")) == ["000004"]
    assert len(list(tmp_path.glob(".000002.*"))) == 1
    remove_all_stale_drafts(tmp_path)
    remove_folder(tmp_path / "000004")
    assert list(tmp_path.iterdir()) == []


def test_tensors_come_back_and_a_damaged_file_of_them_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.arange(3), "b": torch.ones(2).bfloat16()})
    assert read_tensors(path)["a"].tolist() == [0, 1, 2]
    assert read_tensors(path)["b"].dtype == torch.bfloat16
    for content in (path.read_bytes()[:-1], b"", b"\xff" * 40):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"x\.safetensors is damaged \(.*\): train again$"):
            read_tensors(path, "train again")
    path.unlink()
    with pytest.raises(ValueError, match=r"x\.safetensors is damaged \(.*\): restore it or remove it$"):
        read_tensors(path)


def test_tensors_that_are_not_finite_are_named_whatever_their_type():
    bad = {str(dtype): torch.tensor([1.0, torch.nan]).to(dtype) for dtype in (torch.bfloat16, torch.float8_e5m2)}
    good = {
        "whole": torch.arange(3),
        "empty": torch.empty(2, device="meta"),
        "small": torch.ones(2).to(torch.float8_e5m2),
    }
    assert find_not_finite(bad | good) == list(bad)
