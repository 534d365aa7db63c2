"""The commands of benchmarks/queue.sh are ones that stringpe takes: every recipe, key and row of them."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from stringpe.cli.main import run
from stringpe.recipes import load_design
from stringpe.recipes.design import plan_runs
from stringpe.tasks import check

QUEUE = Path(__file__).parents[1] / "benchmarks" / "queue.sh"


def commands(folder):
    """The words of every command, by step."""
    settings = {**os.environ, "OUT": str(folder), "DATA": "data"}
    shown = subprocess.run(["bash", QUEUE, "show"], env=settings, capture_output=True, text=True, check=True).stdout
    step = ""
    for line in shown.splitlines():
        if line.startswith("# "):
            step = line[2:]
        else:
            yield step, shlex.split(line)[1:]


def test_every_step_has_commands_and_wrong_ones_are_named(tmp_path):
    listed = subprocess.run(["bash", QUEUE, "list"], capture_output=True, text=True, check=True).stdout.split()
    assert {step for step, _ in commands(tmp_path)} == set(listed)
    wrong = subprocess.run(["bash", QUEUE, "E99"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "there is no step named E99" in wrong.stderr


class Checked(Exception):
    """Raised in place of the work."""


@pytest.mark.slow
def test_every_row_of_every_comparison_could_be_run(tmp_path, monkeypatch):
    seen = []

    def compare(recipe, encodings, seeds, out, baseline, **options):
        rows = list(encodings) or list(load_design(recipe.name).rows)
        assert not baseline or baseline in rows
        for row in plan_runs(recipe, rows, 1, Path(out)):
            start = row.recipe.model.start
            if start and not start.startswith("recipe:"):
                folder = Path(start.format(encoding=row.recipe.model.encoding, seed=0), "pretrained_model")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "model.safetensors").touch()
            train(row.recipe, out, stop=False)
        raise Checked

    def train(recipe, out, stop=True, **options):
        check(recipe)
        seen.append(recipe.name)
        if stop:
            raise Checked

    monkeypatch.setattr("stringpe.training.comparison.compare", compare)
    monkeypatch.setattr("stringpe.training.launch.train", train)
    for _, words in commands(tmp_path):
        if words[0] in ("compare", "train"):
            with pytest.raises(Checked):
                run(words)
    assert len(seen) > 50
    assert {"tiny_imagenet100", "scenes_frozen", "modelnet10", "voc2007", "kuka_small", "aloha_multi"} < set(seen)
