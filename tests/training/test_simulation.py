"""Policies in simulation: the same states for all, under every shift, and what is refused."""

import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from stringpe import robots
from stringpe.cli.main import main
from stringpe.io.checkpoint import digest_weights, model_folder, read_model
from stringpe.recipes.overrides import override
from stringpe.training.launch import train

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*image encoder starts at random")]


@pytest.fixture
def recipe(reach_recipe):
    return reach_recipe


REACH = "stand_in:Reach"  # an environment of one's own, which spawned processes can import


def test_policies_are_compared_on_the_same_states(recipe, tmp_path, capsys):
    for name in ("rope", "cayley"):
        short = override(recipe, [f"model.encoding={name}", "loop.steps=1", "loop.eval_every=0"])
        train(short, tmp_path / "runs" / name, quiet=True)
    runs = [str(tmp_path / "runs" / name) for name in ("rope", "cayley")]
    out = tmp_path / "out"
    main(["eval", *runs, "noise=0", "--env", REACH, "--trials", "3", "--jobs", "1", "--videos", "1", "--out", str(out)])
    text = capsys.readouterr().out
    assert "| rope " in text
    assert "| cayley " in text
    assert f"{REACH}, noise=0: 3 trials each, initial states 1000000 to 1000002" in text
    assert (out / "table.md").read_text().strip() in text
    assert f"report: {out / 'report.html'}" in text
    page = (out / "report.html").read_text()
    assert "<h2>What cannot be concluded</h2>" in page
    assert "How high the success rates are: 3 trials leave wide intervals" in page
    assert re.search(r"cayley succeeds in \d+ % \(\d+ to \d+\), not shown to differ from rope", page)
    place = "stand_in-Reach-noise=0"
    infos = [json.loads((out / name / place / "eval_info.json").read_text()) for name in ("rope", "cayley")]
    assert [[e["seed"] for e in info["per_episode"]] for info in infos] == [[1_000_000, 1_000_001, 1_000_002]] * 2
    for info, run in zip(infos, runs, strict=True):
        assert info["weights"] == digest_weights(read_model(Path(run))[1])
        assert info["weights"][:8] in text
    with pytest.raises(SystemExit, match="eval takes one checkpoint, got 2; several need --env"):
        main(["eval", *runs])
    for option in (["--shifts"], ["--trials", "9"], ["--jobs", "1"], ["--videos", "0"]):
        with pytest.raises(SystemExit, match=f"{option[0]} is for policies in simulation: name the task with --env"):
            main(["eval", runs[0], *option])


def test_two_checkpoints_of_a_run_are_not_taken_for_one(recipe, tmp_path, capsys):
    """Fault N10: the folder of trials ignored the step, and the second policy got the trials of the first."""
    changes = ["loop.steps=2", "loop.save_every=1", "loop.eval_every=0", "optim.lr=0.1", "optim.warmup_steps=0"]
    train(override(recipe, changes), tmp_path / "run", quiet=True)
    steps = sorted((tmp_path / "run/checkpoints").iterdir())
    words = ["--env", REACH, "--trials", "2", "--jobs", "1", "--videos", "0"]
    main(["eval", *map(str, steps), *words])
    infos = [json.loads((tmp_path / f"run/eval/{s.name}/stand_in-Reach/eval_info.json").read_text()) for s in steps]
    assert infos[0]["weights"] != infos[1]["weights"]
    assert [e["sum_reward"] for e in infos[0]["per_episode"]] != [e["sum_reward"] for e in infos[1]["per_episode"]]


def test_weights_that_are_not_finite_are_refused(recipe, tmp_path):
    """Fault N11: they gave plausible numbers."""
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    path = model_folder(tmp_path / "run") / "model.safetensors"
    weights = load_file(path)
    weights["observer.camera"][0] = float("nan")
    save_file(weights, path)
    with pytest.raises(SystemExit, match=r"observer.camera hold NaN or infinity"):
        main(["eval", str(tmp_path / "run"), "--env", REACH, "--trials", "1", "--jobs", "1"])


def test_policies_are_tried_under_every_shift_of_several_tasks(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(robots, "shifts", {REACH: ({"noise": 1},), "stand_in:make": ()}.get)
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    out = tmp_path / "out"
    words = [
        "eval",
        str(tmp_path / "run"),
        "noise=0",
        "--trials",
        "2",
        "--jobs",
        "1",
        "--videos",
        "0",
        "--out",
        str(out),
    ]
    main([*words, "--shifts", "--env", REACH, "stand_in:make"])
    overview, *each = capsys.readouterr().out.strip().split("\n| policy")[-4:]
    settings = ("stand_in:Reach, noise=0", "stand_in:Reach, noise=1", "stand_in:make, noise=0")
    for setting, text in zip(settings, each, strict=True):
        assert f"| {setting} " in overview
        assert f"{setting}: 2 trials each" in text
    assert "noise=1" in (out / "success.svg").read_text()
    places = ["stand_in-Reach-noise=0", "stand_in-Reach-noise=1", "stand_in-make-noise=0"]
    assert sorted(p.name for p in (out / "run").iterdir()) == places


def test_a_task_without_shifts_says_so():
    with pytest.raises(ValueError, match="MugOnPlate has no shifts; these tasks have some: KukaPick"):
        robots.shifts("MugOnPlate")


def test_unknown_environments_and_other_checkpoints_are_refused(recipe, tmp_path, monkeypatch):
    train(override(recipe, ["loop.steps=1", "loop.eval_every=0"]), tmp_path / "run", quiet=True)
    begun = []
    monkeypatch.setattr("stringpe.training.simulation.evaluate_policy", lambda *_: begun.append(1))
    for tasks_ in (["KukaPik"], [REACH, "KukaPik"]):
        with pytest.raises(SystemExit, match="no task named 'KukaPik': did you mean 'KukaPick'"):
            main(["eval", str(tmp_path / "run"), "--env", *tasks_])
    with pytest.raises(SystemExit, match="there is no environment 'nowhere:make'"):
        main(["eval", str(tmp_path / "run"), "--env", "nowhere:make"])
    assert not begun
    with pytest.raises(SystemExit, match="there is no checkpoint in nowhere"):
        main(["eval", "nowhere", "--env", "KukaPick"])
