"""W&B, MLflow and Aim for real, where they are installed: what they hold after a run is read back from their own files.

Each has an environment of its own (docs/versions.md), in which little else is installed: this file needs no conftest.
"""

import struct
from dataclasses import replace

import pytest
from training_toy import TOY

from stringpe.recipes.overrides import flatten
from stringpe.training import train

STEPS = [4, 8, 12]
"""At which the loss of the toy recipe is logged."""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Train with the tracker of a name, in a folder of its own: the recipe, and what the run returned."""

    def train_with(name):
        monkeypatch.chdir(tmp_path)
        recipe = replace(TOY, loop=replace(TOY.loop, tracker=name))
        return recipe, train(recipe, tmp_path / "run", quiet=True)

    return train_with


def check(settings, curves, recipe, outcome):
    """settings: by key, as text. curves: by name, [(step, value), …]."""
    for key, value in flatten(recipe.to_dict()).items():
        assert settings[key] == str(value), key
    assert [step for step, _ in curves["loss"]] == STEPS
    assert [step for step, _ in curves["lr"]] == STEPS
    step, value = curves["val/top1"][-1]
    assert (step, value) == (12, pytest.approx(outcome["metrics"]["top1"], abs=1e-6))


@pytest.mark.filterwarnings("ignore")  # of packages that are not ours
def test_wandb_has_settings_and_curves(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    import json

    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    recipe, outcome = run("wandb")
    (file,) = tmp_path.glob("run/wandb/offline-run-*/*.wandb")
    settings, curves, names = {}, {}, []
    for entry in read_leveldb(file.read_bytes()[7:]):
        record = wandb_internal_pb2.Record.FromString(entry)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            names.append((record.run.project, record.run.display_name))
        if kind == "config":
            settings |= {one.key: str(json.loads(one.value_json)) for one in record.config.update}
        if kind == "history":
            row = {one.key or one.nested_key[0]: json.loads(one.value_json) for one in record.history.item}
            for name, value in row.items():
                curves.setdefault(name, []).append((row["_step"], value))
    assert names == [("stringpe", f"{recipe.name} {recipe.model.encoding} seed 0")]
    check(settings, curves, recipe, outcome)


def read_leveldb(blocks):
    """The records of a log in LevelDB's format, as W&B writes it behind seven bytes of its own."""
    at, part = 0, b""
    while at + 7 <= len(blocks):
        left = 32768 - (at + 7) % 32768  # W&B counts its own bytes to the first block
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", blocks[at : at + 7])
        piece = blocks[at + 7 : at + 7 + size]
        part = piece if kind in (1, 2) else part + piece  # whole, first, middle, last
        if kind in (1, 4):
            yield part
        at += 7 + size


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_settings_and_curves(run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    where = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", where)
    recipe, outcome = run("mlflow")
    client = MlflowClient(tracking_uri=where)
    (found,) = client.search_runs([client.get_experiment_by_name("stringpe").experiment_id])
    assert (found.info.run_name, found.info.status) == (f"{recipe.name} {recipe.model.encoding} seed 0", "FINISHED")
    curves = {
        name: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)]
        for name in found.data.metrics
    }
    check(found.data.params, curves, recipe, outcome)


@pytest.mark.filterwarnings("ignore")
def test_aim_has_settings_and_curves(run, tmp_path):
    aim = pytest.importorskip("aim")
    recipe, outcome = run("aim")
    repo = aim.Repo.from_path(str(tmp_path))
    (name,) = repo.list_all_runs()
    found = aim.Run(name, repo=repo)  # read-only, Aim 3.29 does not see what is not in its index yet
    assert (found.name, found.experiment) == (f"{recipe.name} {recipe.model.encoding} seed 0", "stringpe")
    settings = {key: str(value) for key, value in found["hparams"].items()}
    curves = {}
    for metric in found.metrics():
        metric.preload()
        steps, (values, *_) = metric.data.items_list()
        curves[metric.name] = sorted(zip(steps, values, strict=True))
    found.close()
    check(settings, curves, recipe, outcome)
