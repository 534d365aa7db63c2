"""The log of a run, and curves in trackers: TensorBoard for real, and one that is registered with Accelerate as people
register their own."""

import json

import pytest
from accelerate import tracking
from accelerate.tracking import GeneralTracker, register_tracker_class

from stringpe.io import checkpoint as checkpoints
from stringpe.training import train
from stringpe.training.log import Log, check_tracker, start_tracker


def test_the_log_drops_what_came_after_the_checkpoint(tmp_path):
    with Log(tmp_path, "t", 10, quiet=True) as log:
        log.write(1, {"loss": 1.0})
        position = log.position()
        log.write(2, {"loss": float("nan")})
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1]) == {"step": 2, "loss": None}
    with Log(tmp_path, "t", 10, quiet=True, position=position) as log:
        log.write(2, {"loss": 0.5})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]


def test_plain_lines_are_sparse(tmp_path, capsys):
    with Log(tmp_path, "title", 100, quiet=False) as log:
        for step in range(1, 101):
            log.show(step, {"loss": 0.25})
    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("title: 1 / 100 steps")
    assert last.startswith("title: 100 / 100 steps")
    assert first.count("loss 0.25") == last.count("loss 0.25") == 1


def scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_tensorboard_has_the_curves_once_even_after_a_resume(changed, tmp_path):
    recipe = changed(loop={"tracker": "tensorboard", "steps": 12, "keep": 9})
    whole = train(recipe, tmp_path, quiet=True)
    steps = [step for step, _ in scalars(tmp_path / "tensorboard", "loss")]
    assert steps == [4, 8, 12]
    (tmp_path / "result.json").unlink()
    last = checkpoints.list_checkpoints(tmp_path)[-1]
    checkpoints.set_aside(last)
    assert train(recipe, tmp_path, quiet=True)["metrics"] == whole["metrics"]
    losses = scalars(tmp_path / "tensorboard", "loss")
    assert [step for step, _ in losses] == [4, 8, 12]
    (value,) = [v for step, v in scalars(tmp_path / "tensorboard", "val/top1") if step == 12]
    assert value == pytest.approx(whole["metrics"]["top1"], abs=1e-6)


class Notebook(GeneralTracker):
    """A tracker of the user's own."""

    name = "notebook"
    requires_logging_directory = False
    lines: list = []  # noqa: RUF012

    def __init__(self, project):
        super().__init__()
        self.project = project

    @property
    def tracker(self):
        return self

    def store_init_configuration(self, values):
        self.lines.append(("recipe", values))

    def log(self, values, step=None):
        self.lines.append((step, values))

    def finish(self):
        self.lines.append(("end", self.project))


def test_a_tracker_of_your_own_gets_the_recipe_and_every_number(changed, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "LOGGER_TYPE_TO_CLASS", dict(tracking.LOGGER_TYPE_TO_CLASS))
    register_tracker_class(Notebook)
    Notebook.lines.clear()
    train(changed(loop={"tracker": "notebook", "steps": 4}), tmp_path, quiet=True)
    (first, recipe), *curve, last = Notebook.lines
    assert (first, recipe["model.encoding"], recipe["loop.steps"]) == ("recipe", "rope_mixed", 4)
    assert [step for step, _ in curve] == [4, 4]
    assert {"loss", "lr", "val/top1"} <= {name for _, values in curve for name in values}
    assert last == ("end", "stringpe")


def test_a_tracker_that_is_not_there_is_refused_before_anything_is_made(changed, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"loop.tracker=tensorbord is not known: did you mean 'tensorboard'"):
        train(changed(loop={"tracker": "tensorbord"}), tmp_path / "a")
    monkeypatch.setattr(tracking, "_available_trackers", [])
    with pytest.raises(ValueError, match=r"needs the package tensorboard, .*: pip install 'stringpe\[train\]'"):
        train(changed(loop={"tracker": "tensorboard"}), tmp_path / "a")
    with pytest.raises(ValueError, match=r"pip install 'stringpe\[wandb\]', or leave it out: metrics.jsonl"):
        check_tracker("wandb")
    with pytest.raises(ValueError, match=r"needs the package comet_ml, .*: pip install comet-ml,"):
        check_tracker("comet_ml")
    assert not (tmp_path / "a").exists()


class Refusing(Notebook):
    """A tracker whose server says no."""

    name = "refusing"

    def start(self):
        raise RuntimeError("set MAY_WRITE=true")


def test_a_tracker_that_does_not_start_says_why_in_one_line(changed, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "LOGGER_TYPE_TO_CLASS", dict(tracking.LOGGER_TYPE_TO_CLASS))
    register_tracker_class(Refusing)
    with pytest.raises(ValueError, match=r"loop.tracker=refusing could not start: set MAY_WRITE=true"):
        train(changed(loop={"tracker": "refusing", "steps": 4}), tmp_path, quiet=True)


def test_without_a_tracker_nothing_is_written(changed, tmp_path):
    assert start_tracker(changed(), tmp_path, "title", 0) is None
    assert not list(tmp_path.iterdir())
