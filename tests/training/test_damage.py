"""Weights that are not finite, damaged files, and writers that meet: nothing good is lost, nothing bad is used."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stringpe.data.fingerprints import digest_data
from stringpe.io import checkpoint as checkpoints
from stringpe.io.files import hold_lock
from stringpe.training import evaluate, train
from stringpe.training.evaluation import evaluation_folder
from stringpe.training.launch import digest_recipe
from stringpe.training.log import Log

pytestmark = pytest.mark.slow

FILES = (
    "pretrained_model/config.json",
    "pretrained_model/model.safetensors",
    "training_state/optimizer.safetensors",
    "training_state/optimizer.json",
    "training_state/rng.safetensors",
    "training_state/progress.json",
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    from training_toy import TOY

    out = tmp_path_factory.mktemp("finished") / "run"
    return out, train(TOY, out, quiet=True)


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run whose result is gone: training goes on from its newest checkpoint."""
    shutil.copytree(finished[0], tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    return tmp_path / "run"


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garble(path):
    path.write_bytes(b"\xff\x00{]" * 64)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def other_type(path):
    path.write_bytes(b"[1, 2]" if path.suffix == ".json" else b"\x02\x00\x00\x00\x00\x00\x00\x00{}")


@pytest.mark.parametrize("damage", [cut, garble, empty, remove, other_type])
@pytest.mark.parametrize("file", FILES)
def test_a_damaged_checkpoint_is_named_in_one_line(run, file, damage):
    last = checkpoints.list_checkpoints(run)[-1]
    damage(last / file)
    with pytest.raises(ValueError) as failure:
        checkpoints.read(last)
    assert file.rpartition("/")[2] in str(failure.value)
    assert "\n" not in str(failure.value)
    if file.startswith("pretrained_model"):
        with pytest.raises(ValueError, match="checkpoint"):
            evaluate(last)


@pytest.mark.parametrize("file", FILES)
def test_a_run_goes_on_from_the_newest_whole_checkpoint_and_says_so(finished, run, file, toy):
    newest = checkpoints.list_checkpoints(run)[-1]
    cut(newest / file)
    with pytest.warns(RuntimeWarning, match=r"goes on from the checkpoint before; this one is kept as 000012\.damaged"):
        again = train(toy, run, quiet=True)
    assert again["metrics"] == finished[1]["metrics"]
    assert again["digest"] == finished[1]["digest"]
    assert [p.name for p in checkpoints.list_checkpoints(run)] == ["000010", "000012"]
    assert newest.with_name("000012.damaged").is_dir()


def test_weights_that_are_not_finite_are_never_saved_and_good_ones_stay(changed, tmp_path, monkeypatch):
    from stringpe.tasks.classification import Classification

    recipe = changed(loop={"steps": 12, "save_every": 3, "log_every": 100, "eval_every": 0, "keep": 1})
    own, steps = Classification.loss, []

    def diverges(self, model, batch):
        steps.append(1)
        return own(self, model, batch) * (float("nan") if len(steps) == 8 else 1)

    with monkeypatch.context() as patch:
        patch.setattr(Classification, "loss", diverges)
        with pytest.raises(ValueError, match=r"no longer finite at step 9, which is not saved; the newest .*000006"):
            train(recipe, tmp_path / "run", quiet=True)
    assert [p.name for p in checkpoints.list_checkpoints(tmp_path / "run")] == ["000006"]
    repeated = train(recipe, tmp_path / "run", quiet=True)
    assert repeated["metrics"] == train(recipe, tmp_path / "whole", quiet=True)["metrics"]


def test_a_checkpoint_of_bad_weights_is_refused_by_the_writer_itself(run):
    last = checkpoints.read(checkpoints.list_checkpoints(run)[-1])
    last.model["head.weight"][0] = float("inf")
    bad = checkpoints.Checkpoint(**{**vars(last), "step": 99})
    with pytest.raises(ValueError, match=r"the weights after step 99: head.weight hold NaN or infinity"):
        checkpoints.write(run, bad, keep=1)
    assert [p.name for p in checkpoints.list_checkpoints(run)] == ["000010", "000012"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_weights_are_not_evaluated(run, value):
    path = checkpoints.model_folder(run) / "model.safetensors"
    weights = load_file(path)
    weights["head.bias"][1] = value
    save_file(weights, path)
    with pytest.raises(ValueError, match=r"model.safetensors: head.bias hold NaN or infinity"):
        evaluate(run)


def test_changes_that_shape_the_model_are_refused_with_what_does_not_fit(run):
    with pytest.raises(ValueError, match=r"are not those of its recipe \(patch.weight is .* leave model"):
        evaluate(run, ["model.dim=32"])


def test_a_digest_is_of_names_types_shapes_and_values(run):
    weights = checkpoints.read_tensors(checkpoints.model_folder(run) / "model.safetensors")
    digest = checkpoints.digest_weights(weights)
    assert digest == checkpoints.digest_weights(run)
    assert digest == checkpoints.digest_weights(dict(reversed(weights.items())))
    name = "head.weight"
    for other in (
        {**weights, name: weights[name] + 1e-7},
        {**weights, name: weights[name].double()},
        {**weights, name: weights[name].flatten()},
        {("other" if k == name else k): v for k, v in weights.items()},
    ):
        assert checkpoints.digest_weights(other) != digest
    assert checkpoints.digest_weights({"x": torch.zeros(0), "y": torch.tensor(3).bfloat16()})


def test_results_and_evaluations_carry_the_same_digests(finished, toy):
    out, outcome = finished
    kept = json.loads((out / "result.json").read_text())
    found = evaluate(out)
    assert kept["digest"] == outcome["digest"] == found["digest"]
    assert kept["digest"]["recipe"] == digest_recipe(toy)
    assert evaluate(out, ["data.val_size=20"])["digest"]["data"] != kept["digest"]["data"]
    earlier = evaluate(out / "checkpoints" / "000010")
    assert earlier["digest"]["weights"] != kept["digest"]["weights"]


def test_the_digest_of_data_follows_its_content_and_not_its_place(tmp_path, changed):
    def data(**values):
        return changed(data={"source": "shards", **values}).data

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for i in range(2):
            (tmp_path / folder / f"train-{i:03}.tar").write_bytes(bytes([i]) * 1000)
    one, two = (digest_data(data(train=f"{tmp_path}/{f}/train-{{000..001}}.tar")) for f in ("a", "b"))
    assert one == two
    assert digest_data(data(train=f"{tmp_path}/a/train-000.tar")) != one
    (tmp_path / "b" / "train-001.tar").write_bytes(bytes([7]) * 1000)
    assert digest_data(data(train=f"{tmp_path}/b/train-{{000..001}}.tar")) != one
    assert digest_data(data(train=str(tmp_path / "a"))) != digest_data(data(train=str(tmp_path)))


def test_a_second_writer_is_told_of_the_first(toy, tmp_path):
    with hold_lock(tmp_path / "run" / ".lock", "x"):
        busy = rf"the run in .* is in use by process {os.getpid()}"
        with pytest.raises(ValueError, match=busy):
            train(toy, tmp_path / "run", quiet=True)
    assert train(toy, tmp_path / "run", quiet=True)["step"] == 12


def test_a_result_that_is_not_one_is_refused(finished, run, toy):
    (run / "result.json").write_text("[]")
    with pytest.raises(
        ValueError, match=r"result.json is damaged \(it is '\[\]', not an object\): restore it, or remove it"
    ):
        train(toy, run, quiet=True)


@pytest.mark.parametrize(
    "change",
    [{"step": "x"}, {"step": True}, {"step": -1}, {"window": [0.0]}, {"window": [0.0, None]}, {"log_bytes": 1.5}],
)
def test_progress_that_cannot_be_is_refused(run, change):
    last = checkpoints.list_checkpoints(run)[-1]
    path = last / "training_state" / "progress.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match=r"progress\.json is damaged"):
        checkpoints.read(last)


def test_a_config_out_of_range_or_of_no_model_is_named(run):
    from stringpe.tasks.load import load_run

    config = checkpoints.model_folder(run) / "config.json"
    whole = json.loads(config.read_text())
    for change in (
        {"task": "polic"},
        {"model": whole["model"] | {"layers": -1}},
        {"model": whole["model"] | {"heads": 5}},
    ):
        config.write_text(json.dumps(whole | change))
        with pytest.raises(ValueError, match=r"config\.json"):
            load_run(run)


@pytest.mark.parametrize("content", ["", "[]", '{"a": 1}', '{"model": {"dim": "x"}}', "\xff"])
def test_a_damaged_recipe_of_a_finished_run_is_named(finished, tmp_path, content, toy):
    shutil.copytree(finished[0], tmp_path / "run")
    (tmp_path / "run" / "recipe.json").write_text(content)
    with pytest.raises(ValueError, match=r"recipe\.json"):
        train(toy, tmp_path / "run", quiet=True)


@pytest.mark.parametrize("line", [b"\xff\xfe", b'{"step": 1', b"[1]", b"3"])
def test_a_damaged_curve_is_named(finished, tmp_path, line, toy):
    from stringpe.recipes.design import PlannedRun
    from stringpe.training.comparison import read_curve_lines

    shutil.copytree(finished[0], tmp_path / "run")
    planned = PlannedRun("rope", 0, toy, tmp_path / "run")
    assert len(list(read_curve_lines(planned))) > 1
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(ValueError, match=r"line \d+ of .*metrics\.jsonl is damaged"):
        list(read_curve_lines(planned))


@pytest.mark.parametrize(
    "content", ["3", '{"rope": 1}', '{"rope": {"step_ms": [1], "peak_bytes": 1, "encoding_parameters": 1}}']
)
def test_damaged_costs_are_measured_again(tmp_path, toy, monkeypatch, content):
    from stringpe.training import comparison_costs

    cost = {"step_ms": (1.0, 0.9, 1.1), "ratio": (1.0, 1.0, 1.0), "peak_bytes": None, "encoding_parameters": 8}
    monkeypatch.setattr(comparison_costs, "measure_in_turns", lambda rows, baseline: dict.fromkeys(rows, cost))
    (tmp_path / "costs.json").write_text(content)
    rows = {"rope": toy}
    assert comparison_costs.load_or_measure_costs(tmp_path / "costs.json", rows, "rope", quiet=True) == {"rope": cost}


def test_data_that_is_not_there_is_said_before_anything_is_made(changed, tmp_path):
    from stringpe.training.comparison import compare

    recipe = changed(
        data={"source": "folder", "train": str(tmp_path / "no"), "val": "", "train_size": 0, "val_size": 0}
    )
    for begin in (lambda: train(recipe, tmp_path / "out"), lambda: compare(recipe, ["rope"], 1, tmp_path / "out")):
        with pytest.raises(ValueError, match=r"data\.train=.*no is not a folder"):
            begin()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.complex64])
def test_weights_of_odd_types_are_refused_in_words(finished, tmp_path, kind):
    shutil.copytree(checkpoints.list_checkpoints(finished[0])[-1], tmp_path / "step")
    path = tmp_path / "step" / "pretrained_model" / "model.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    bad = torch.full_like(weights[name], float("nan")).to(kind)
    save_file(weights | {name: bad}, path)
    with pytest.raises(ValueError, match=r"model\.safetensors.*(NaN|complex)"):
        evaluate(tmp_path / "step")


def test_a_run_from_elsewhere_cannot_choose_what_is_overwritten(run, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (run / ".lock").unlink(missing_ok=True)
    (run / ".lock").symlink_to(precious)
    with pytest.raises(OSError, match=r"\.lock"), hold_lock(run / ".lock", "the run"):
        pass
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        Log(run, "title", 1, quiet=True)
    assert not (tmp_path / "elsewhere.jsonl").exists()
    (run / "eval").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"is a link to .*: say where to write with --out"):
        evaluation_folder(run)
    assert precious.read_text() == "precious"


def test_metrics_that_are_not_finite_are_refused(finished, monkeypatch):
    from stringpe.training import evaluation

    open_whole_run = evaluation.open_run

    def open_run(path, changes):
        task, model = open_whole_run(path, changes)
        monkeypatch.setattr(task, "evaluate", lambda *_: {task.metric: float("nan"), "count": 4.0})
        return task, model

    monkeypatch.setattr(evaluation, "open_run", open_run)
    with pytest.raises(ValueError, match="is nan: the model's outputs are not finite on this data"):
        evaluate(finished[0])


def test_a_run_that_was_killed_before_it_pruned_prunes_when_it_goes_on(finished, run, toy):
    last = checkpoints.list_checkpoints(run)[-1]
    shutil.copytree(last, last.with_name("000001"))
    train(toy, run, quiet=True)
    assert [path.name for path in checkpoints.list_checkpoints(run)] == [
        path.name for path in checkpoints.list_checkpoints(finished[0])
    ]
