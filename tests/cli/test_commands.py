"""The commands as people type them: through `stringpe` (tyro) and through `python -m stringpe.training` (argparse)."""

import subprocess
import sys

import pytest

from stringpe.cli import main as cli
from stringpe.training.__main__ import main

SMALL = [
    *("data.image_size=16", "data.train_size=12", "data.val_size=6"),
    *("model.dim=16", "model.layers=1", "model.heads=2"),
    *("loop.batch_size=4", "loop.steps=2", "loop.eval_every=0"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return [*SMALL, f"data.cache={tmp_path_factory.mktemp('cache')}"]


def through_tyro(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["stringpe", *words])
    cli.main()


def test_train_and_eval_agree(small, tmp_path, capsys):
    main(["train", "scenes", *small, "model.encoding=rope", "--out", str(tmp_path)])
    trained = capsys.readouterr().out
    main(["eval", str(tmp_path)])
    evaluated = capsys.readouterr().out
    assert "95 % interval" in evaluated
    loss = trained.split("loss ")[1].split(",")[0]
    assert f"loss {loss}" in evaluated


def test_both_doors_lead_to_the_same_run(small, tmp_path, capsys, monkeypatch):
    main(["train", "scenes", *small, "--out", str(tmp_path)])
    first = capsys.readouterr().out
    through_tyro(monkeypatch, "train", "scenes", *small, "--out", str(tmp_path))  # finished: only read
    assert capsys.readouterr().out == first
    through_tyro(monkeypatch, "eval", str(tmp_path), "data.queries=2")
    assert "cases)" in capsys.readouterr().out


def test_compare_prints_the_table_and_names_the_report(small, tmp_path, capsys, monkeypatch):
    words = ["compare", "scenes", *small, "--encodings", "none", "rope", "--seeds", "1", "--out", str(tmp_path)]
    main([*words, "--jobs", "1"])
    first = capsys.readouterr().out
    assert "| none " in first
    assert "fourth image channel" in first
    assert f"report: {tmp_path / 'report.html'}" in first
    through_tyro(monkeypatch, *words)
    assert capsys.readouterr().out.splitlines()[:4] == first.splitlines()[:4]


def test_properties_stay_reachable(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    through_tyro(monkeypatch, "compare", "properties", "--head-dim", "8", "--num-heads", "2", "--tokens", "16")
    assert "against expm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "scenez", "--out", "x"], "stringpe: there is no recipe named 'scenez': did you mean 'scenes'"),
        (["train", "scenes", "optim.lrr=1", "--out", "x"], "did you mean optim.lr?"),
        (["eval", "nowhere"], "stringpe: there is no checkpoint in nowhere"),
    ],
)
def test_mistakes_are_answered_in_one_line(words, answer):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert answer in str(stop.value)
    assert "\n" not in str(stop.value)


def test_training_needs_neither_tyro_nor_rich_nor_matplotlib(small, tmp_path):
    """As on a bare GPU machine: the modules are hidden, the comparison runs, and the report says what it lacks."""
    hide = "import sys; sys.modules |= dict.fromkeys('tyro rich matplotlib tensorboard webdataset'.split()); "
    script = tmp_path / "bare.py"
    script.write_text(hide + "from stringpe.training.__main__ import main\nif __name__ == '__main__':\n    main()\n")
    words = ["compare", "scenes", *small, "loop.tensorboard=true", "--encodings", "rope", "--seeds", "1"]
    run = subprocess.run(
        [sys.executable, str(script), *words, "--out", str(tmp_path / "out"), "--jobs", "1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "| rope" in run.stdout
    assert run.stderr.count("tensorboard is not installed") == 1
    assert run.stderr.count("matplotlib is not installed") == 1
    assert (tmp_path / "out" / "report.html").exists()
