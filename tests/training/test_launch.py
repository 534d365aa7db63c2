"""Numbers belong to the data and the weights that made them: files that change before, during and after a run."""

import re
from dataclasses import replace

import numpy as np
import pytest

from cloud_files import KINDS, write_clouds
from stringpe.data.cache import forget_all
from stringpe.io import checkpoint as checkpoints
from stringpe.io.files import write_json
from stringpe.recipes.schema import Augment, Data, Loop, Model, Optim, Recipe
from stringpe.tasks.shapes import Shapes
from stringpe.tasks.warm_start import start_files
from stringpe.training import evaluate, train
from stringpe.training.launch import digest_start, read_result


@pytest.fixture
def recipe(tmp_path):
    forget_all()
    path = str(write_clouds(tmp_path / "clouds.npz", train=24, test=6))
    return Recipe(
        name="clouds",
        task="shapes",
        model=Model(dim=8, layers=1, heads=1, encoding="rope", pool="mean"),
        data=Data(
            source="clouds", train=path, num_classes=KINDS, groups=4, group_size=5, cache=str(tmp_path / "cache")
        ),
        augment=Augment(),
        optim=Optim(lr=1e-2),
        loop=Loop(batch_size=8, steps=4, save_every=2, log_every=1),
    )


def rewrite(recipe):
    """The same number of clouds in the same file: others, with other labels."""
    with np.load(recipe.data.train) as file:
        held = dict(file)
    dice = np.random.default_rng(5)
    for split in ("train", "test"):
        held[f"{split}_points"] = dice.normal(size=held[f"{split}_points"].shape).astype(np.float32)
        held[f"{split}_label"] = (held[f"{split}_label"] + 1) % KINDS
    np.savez(recipe.data.train, **held)


def test_one_process_reads_a_file_again_once_it_has_changed(recipe, tmp_path):
    first = train(recipe, tmp_path / "first", quiet=True)
    rewrite(recipe)
    kept = train(recipe, tmp_path / "kept", quiet=True)
    forget_all()
    fresh = train(recipe, tmp_path / "fresh", quiet=True)
    assert kept["metrics"] == fresh["metrics"] != first["metrics"]
    assert kept["digest"] == fresh["digest"]
    assert kept["digest"]["data"] != first["digest"]["data"]


def test_a_finished_run_on_other_data_is_not_taken_for_this_one(recipe, tmp_path):
    train(recipe, tmp_path / "run", quiet=True)
    rewrite(recipe)
    with pytest.raises(ValueError, match=r"run holds a run on other data: .* have changed since"):
        train(recipe, tmp_path / "run", quiet=True)


def test_a_run_does_not_go_on_with_other_data(recipe, tmp_path):
    train(recipe, tmp_path / "run", quiet=True)
    (tmp_path / "run" / "result.json").unlink()
    checkpoints.set_aside(checkpoints.list_checkpoints(tmp_path / "run")[-1])
    rewrite(recipe)
    with pytest.raises(ValueError, match=r"run holds a run on other data: .* have changed since"):
        train(recipe, tmp_path / "run", quiet=True)


def test_data_that_change_during_a_run_give_no_result(recipe, tmp_path, monkeypatch):
    whole = Shapes.evaluate
    monkeypatch.setattr(Shapes, "evaluate", lambda *given: (rewrite(recipe), whole(*given))[1])
    with pytest.raises(ValueError, match="holds a run on other data"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "result.json").exists()


def test_data_that_change_during_an_evaluation_give_no_result(recipe, tmp_path, monkeypatch):
    train(recipe, tmp_path / "run", quiet=True)
    whole = Shapes.evaluate
    monkeypatch.setattr(Shapes, "evaluate", lambda *given: (rewrite(recipe), whole(*given))[1])
    with pytest.raises(ValueError, match="changed meanwhile: evaluate it again"):
        evaluate(tmp_path / "run")


def test_a_result_knows_the_tokeniser_that_it_started_with(toy, tmp_path):
    place = tmp_path / "tokenizer.json"
    place.write_text("{}")
    asked = replace(toy, text=replace(toy.text, tokenizer=str(place)))
    assert start_files(asked) == [place]
    assert start_files(toy) == start_files(replace(toy, model=replace(toy.model, start="recipe:scenes"))) == []


def test_a_result_of_a_run_that_started_from_other_files_is_refused(toy, tmp_path):
    place = tmp_path / "tokenizer.json"
    place.write_text("{}")
    asked = replace(toy, text=replace(toy.text, tokenizer=str(place)))
    sums = {"start": digest_start(asked)}
    write_json(tmp_path / "run" / "recipe.json", asked.to_dict())
    write_json(
        tmp_path / "run" / "result.json",
        {"metric": "top1", "metrics": {"top1": 0.5}, "parameters": 1, "seconds": 1.0, "digest": sums},
    )
    assert read_result(asked, tmp_path / "run")["digest"] == sums
    place.write_text("{ }")
    with pytest.raises(ValueError, match=r"run holds a run that started from other weights: .*text.tokenizer names"):
        read_result(asked, tmp_path / "run")
    place.unlink()
    assert read_result(asked, tmp_path / "run")["digest"] == sums  # nothing can be said of files that are gone


@pytest.mark.parametrize("text", ["{encoding.x}", "{seed:>99999999999}", "{0}", "{", "{nothing}", "{seed!r}"])
def test_a_start_has_three_parts_that_can_be_filled_in(toy, text):
    with pytest.raises(ValueError, match=r"model.start can hold \{encoding\}, .* got '" + re.escape(text)):
        start_files(replace(toy, model=replace(toy.model, start=text)))
