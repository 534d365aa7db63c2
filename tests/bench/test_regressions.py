"""A run is compared with an earlier one by its ratios."""

import copy
import json

import pytest

from stringpe.bench.regressions import compare_runs, describe, read_ratios
from stringpe.cli.main import main


def timing(median, ratio=None):
    return {"median": median, "low": median, "high": median, "repeats": 5, "memory": 0.0, "ratio": ratio}


@pytest.fixture
def earlier():
    op = {"shape": "(8, 1, 196, 64)", "floor": 1.0, "backend": "torch", "forward_call": None, "both_call": None}
    model = {"mode": "eager", "inference": timing(1.0)}
    return {
        "runs": [{"device": "NVIDIA H200"}],
        "op": [
            {**op, "way": "ours", "forward": timing(1.1), "both": timing(3.0)},
            {**op, "way": "rotate half", "forward": timing(4.0), "both": None},
        ],
        "vit": [
            {**model, "way": "absolute", "train": timing(10.0)},
            {**model, "way": "ours, cayley", "train": timing(11.0, [1.0, 1.02, 1.1])},
        ],
        "train": [{"recipe": "scenes_objects", "encoding": "cayley", "loop": timing(3.0, [1.0, 1.05, 1.1])}],
    }


def test_ratios_are_of_our_own_ways_and_timed_in_turns_where_they_were(earlier):
    found = read_ratios(earlier)
    assert found == {
        "op: ours (8, 1, 196, 64), forward × floor": 1.1,
        "op: ours (8, 1, 196, 64), both × floor": pytest.approx(1.2),
        "vit: ours, cayley, eager, train × absolute": 1.02,
        "vit: ours, cayley, eager, inference × absolute": 1.0,
        "train: scenes_objects, cayley, loop × plain loop": 1.05,
    }


def test_a_slower_machine_is_not_worse_and_a_larger_ratio_is(earlier):
    slower = copy.deepcopy(earlier)
    for row in slower["op"]:
        row["floor"] *= 3
        row["forward"]["median"] *= 3
        row["both"] = row["both"] and timing(3 * row["both"]["median"])
    assert compare_runs(slower, earlier).worse() == []
    slower["op"][0]["forward"]["median"] *= 1.2
    (worse,) = compare_runs(slower, earlier).worse()
    assert worse.what == "op: ours (8, 1, 196, 64), forward × floor"
    assert worse.growth == pytest.approx(0.2)
    text = describe(compare_runs(slower, earlier))
    assert "5 ratios compared, 1 worse by more than 5 %" in text
    assert "1.100 → 1.320 (+20 %)" in text


def test_what_was_not_measured_is_said(earlier):
    part = copy.deepcopy(earlier)
    part["vit"].pop()
    part.pop("train")  # a part that was not asked for is not missed
    part["vit"].append({**earlier["vit"][1], "way": "ours, rope"})
    check = compare_runs(part, earlier)
    assert [what.split(",")[1] for what in check.missing] == [" cayley", " cayley"]
    assert "not measured this time: 2, such as vit: ours, cayley" in describe(check)


def test_other_devices_and_nothing_in_common_are_refused(earlier):
    other = copy.deepcopy(earlier)
    other["runs"][0]["device"] = "CPU, 2 threads"
    with pytest.raises(ValueError, match="on CPU, 2 threads and the one to check against on NVIDIA H200"):
        compare_runs(other, earlier)
    with pytest.raises(ValueError, match="no ratio in common"):
        compare_runs({"runs": earlier["runs"]}, earlier)


def test_the_command_lists_what_got_worse_and_fails(earlier, tmp_path, monkeypatch, capsys):
    worse = copy.deepcopy(earlier)
    worse["train"][0]["loop"]["ratio"][1] = 1.5
    monkeypatch.setattr("stringpe.bench.run", lambda *args, **options: worse)
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(earlier))
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "op", "--check", str(file)])
    assert stopped.value.code == 1
    assert "loop × plain loop: 1.050 → 1.500 (+43 %)" in capsys.readouterr().out
    monkeypatch.setattr("stringpe.bench.run", lambda *args, **options: earlier)
    assert not main(["bench", "op", "--check", str(file)])


@pytest.mark.parametrize(
    "damage",
    [
        lambda kept: kept.pop("runs"),
        lambda kept: kept.update(runs=[]),
        lambda kept: kept["op"][0].update(floor=0.0),
        lambda kept: kept["op"][0].pop("way"),
        lambda kept: kept["op"][0]["forward"].update(median=float("nan")),
        lambda kept: kept["vit"][1].update(train=3),
        lambda kept: kept["train"][0]["loop"].update(ratio=None),
    ],
)
def test_a_damaged_file_to_check_against_is_refused_before_anything_is_measured(earlier, damage, tmp_path):
    damage(earlier)
    (tmp_path / "bench.json").write_text(json.dumps(earlier))
    with pytest.raises(SystemExit, match=r"bench.json.*(damaged|NaN|not valid JSON)"):
        main(["bench", "--check", str(tmp_path / "bench.json"), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
