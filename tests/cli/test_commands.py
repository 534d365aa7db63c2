"""train, eval and compare as people type them, on a small recipe."""

import subprocess
import sys

import pytest

from captioned_files import picture, shard, words
from stringpe.cli.main import main
from stringpe.io import checkpoint as checkpoints
from stringpe.io.files import read_json, write_json
from stringpe.recipes.schema import Data, Loop, Loss, Model, Recipe, Text
from stringpe.training import train

pytestmark = pytest.mark.slow

SMALL = [
    *("data.image_size=16", "data.train_size=12", "data.val_size=6"),
    *("model.dim=16", "model.layers=1", "model.heads=2"),
    *("loop.batch_size=4", "loop.steps=2", "loop.eval_every=0"),
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return [*SMALL, f"data.cache={tmp_path_factory.mktemp('cache')}"]


def test_train_and_eval_agree(small, tmp_path, capsys):
    main(["train", "scenes", *small, "model.encoding=rope", "--out", str(tmp_path)])
    trained = capsys.readouterr().out
    main(["eval", str(tmp_path)])
    evaluated = capsys.readouterr().out
    assert "95 % interval" in evaluated
    assert f"report: {tmp_path}/eval/000002/report.html" in evaluated
    page = (tmp_path / "eval" / "000002" / "report.html").read_text()
    assert "<h2>What cannot be concluded</h2>" in page
    assert "the share of validation cases whose first answer is right" in page
    assert read_json(tmp_path / "eval" / "000002" / "metrics.json")["count"] > 0
    loss = trained.split("loss ")[1].split(",")[0]
    assert f"loss {loss}" in evaluated


def test_a_finished_run_is_only_read_and_evaluated_with_changes(small, tmp_path, capsys):
    main(["train", *small, "scenes", "--out", str(tmp_path)])
    first = capsys.readouterr().out
    main(["train", "--out", str(tmp_path), "scenes", *small])
    assert capsys.readouterr().out == first
    main(["eval", "data.queries=2", str(tmp_path), "--out", str(tmp_path / "evaluation")])
    assert "(95 % interval" in (printed := capsys.readouterr().out)
    assert "12 cases)" in printed
    assert read_json(tmp_path / "evaluation" / "metrics.json")["count"] == 12


def test_changes_that_no_longer_fit_the_weights_are_one_line(small, tmp_path):
    main(["train", "scenes", *small, "--out", str(tmp_path)])
    with pytest.raises(
        SystemExit, match=r"the weights of .* are not those of its recipe \(vit.* is .* there, .* by the"
    ):
        main(["eval", str(tmp_path), "model.dim=32"])
    with pytest.raises(SystemExit, match=r"augment.mixup=0.5 would change nothing"):
        main(["eval", str(tmp_path), "augment.mixup=0.5"])


def test_a_run_evaluates_at_another_size(small, tmp_path, capsys):
    main(["train", "scenes", *small, "model.encoding=absolute", "--out", str(tmp_path)])
    main(["eval", str(tmp_path), "data.image_size=32"])
    assert " 384 cases)" in capsys.readouterr().out  # 64 queries in each of 6 frames


def test_a_run_cannot_name_a_file_to_write_or_code_to_import(small, tmp_path, monkeypatch):
    main(["train", "scenes", *small, "--out", str(tmp_path / "run")])
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    config = checkpoints.model_folder(tmp_path / "run") / "config.json"
    recipe = read_json(config)
    write_json(config, recipe | {"data": recipe["data"] | {"results": str(victim)}})
    main(["eval", str(tmp_path / "run")])  # written by an earlier version: the key is dropped
    assert victim.read_text() == "precious"
    (tmp_path / "evil.py").write_text(f"open({str(victim)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path)
    write_json(config, recipe | {"model": recipe["model"] | {"encoding": "evil:factory"}})
    run = str(tmp_path / "run")
    picture_file = tmp_path / "a.png"
    picture_file.write_bytes(picture())
    for line in (["eval", run], ["export", run], ["predict", run, str(picture_file), "--text", "mug"]):
        with pytest.raises(SystemExit, match=r"is code, 'evil:factory', which a run may not choose"):
            main(line)
    assert "evil" not in sys.modules
    assert victim.read_text() == "precious"


def test_zero_shot_classification(tmp_path, capsys):
    samples = {f"{i}": {"png": picture(20 * i), "json": words("a dark thing", "a light thing")} for i in range(8)}
    pairs = str(shard(tmp_path / "pairs.tar", samples))
    recipe = Recipe(
        task="retrieval",
        model=Model(dim=16, layers=1, heads=2, patch_size=8, encoding="rope"),
        text=Text(dim=16, layers=1, heads=2, width=16, vocab=300, context=24),
        data=Data(source="shards", image_size=16, train=pairs, val=pairs),
        loss=Loss(kind="siglip"),
        loop=Loop(batch_size=4, steps=1),
    )
    train(recipe, tmp_path / "run", quiet=True)
    for name, shade in (("dark_thing", 10), ("light_thing", 240)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "a.png").write_bytes(picture(shade))
    main(["eval", str(tmp_path / "run"), "--zero-shot", str(tmp_path / "photos")])
    assert "2 pictures of 2 classes, 0 corrupt), top5 100.00 %" in capsys.readouterr().out


def test_compare_prints_the_table_and_names_the_report(small, tmp_path, capsys):
    words = ["compare", "scenes", *small, "--encodings", "none", "rope", "--seeds", "1", "--out", str(tmp_path)]
    main([*words, "--jobs", "1"])
    first = capsys.readouterr().out
    assert "| none " in first
    assert "fourth image channel" in first
    assert f"report: {tmp_path / 'report.html'}" in first
    main(words)
    assert capsys.readouterr().out.splitlines()[:4] == first.splitlines()[:4]


def test_training_needs_neither_rich_nor_matplotlib(small, tmp_path):
    """As on a bare GPU machine: the modules are hidden, the comparison runs, and the report says what it lacks."""
    hide = "import sys; sys.modules |= dict.fromkeys('rich matplotlib tensorboard webdataset'.split()); "
    script = tmp_path / "bare.py"
    script.write_text(hide + "from stringpe.cli.main import main\nif __name__ == '__main__':\n    main()\n")
    words = ["compare", "scenes", *small, "--encodings", "rope", "--seeds", "1"]
    run = subprocess.run(
        [sys.executable, str(script), *words, "--out", str(tmp_path / "out"), "--jobs", "1"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "| rope" in run.stdout
    assert run.stderr.count("matplotlib is not installed") == 1
    assert (tmp_path / "out" / "report.html").exists()


def test_recipes_are_listed_and_told(capsys):
    main(["recipes"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("relations ") and "nearest point" in line for line in lines)
    main(["recipes", "imagenet2012"])
    told = capsys.readouterr().out
    assert "Expected, from the paper" in told
    assert "  optim.lr=0.001" in told
    with pytest.raises(SystemExit, match="there is no recipe named 'imagenet': did you mean 'imagenet2012'"):
        main(["recipes", "imagenet"])
