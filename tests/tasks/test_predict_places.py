"""Names of what is seen at places: asked for by pixels, written and drawn."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from stringpe import recipes, scenes
from stringpe.cli import main as cli
from stringpe.recipes.overrides import override
from stringpe.tasks.load import load_run
from stringpe.tasks.predict import load_predictor, predict
from stringpe.tasks.predictor import Query, open_picture
from stringpe.training import train

SMALL = [
    "data.train_size=8", "data.val_size=4", "loop.steps=1", "loop.batch_size=4", "loop.eval_batch=4", "data.queries=4",
    "model.layers=1", "model.dim=32", "model.heads=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    recipe = override(recipes.load("scenes"), [*SMALL, f"data.cache={folder}"])
    train(replace(recipe, model=replace(recipe.model, encoding="cayley")), folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture
def picture(tmp_path):
    """A picture that is wider than high, with its depth in millimetres."""
    pixels = torch.randint(0, 255, (48, 96, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "room.png")
    depth = torch.randint(800, 3000, (48, 96), generator=torch.Generator().manual_seed(1)).to(torch.uint16)
    Image.fromarray(depth.numpy()).save(tmp_path / "room.depth.png")
    return tmp_path / "room.png"


def test_places_are_named_by_the_model_of_the_run(run, picture, tmp_path):
    """As the model itself names them, on the picture padded to a square."""
    places = [(0.0, 0.0), (95.0, 47.0), (40.0, 10.0)]
    query = Query(depth=picture.with_name("room.depth.png"), depth_step=0.001, threshold=0.0, places=places)
    _, found = predict(run, picture, query, tmp_path / "found")
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    assert sorted(tuple(one["place"]) for one in found) == sorted(places)
    from stringpe.geometry.square import depth_to_square, to_square

    image = to_square(open_picture(picture), 64)[None].float() / 127.5 - 1
    with Image.open(picture.with_name("room.depth.png")) as stored:
        depth = torch.from_numpy(np.asarray(stored).astype("f4"))
    at = torch.tensor([[[(x + 0.5) / 48 - 1, (y + 0.5) / 48 - 1] for x, y in places]])
    with torch.no_grad():
        shares = load_run(run).model(image, depth_to_square(depth / 1000, 64)[None], at)[0].softmax(-1)
    for place, share in zip(places, shares, strict=True):
        (one,) = [each for each in found if tuple(each["place"]) == place]
        assert one["text"] == scenes.kinds()[int(share.argmax())]
        assert one["score"] == pytest.approx(float(share.max()), abs=1e-5)
        assert len(one["others"]) == 4
        assert max(one["others"].values()) <= one["score"]


def test_without_places_nine_are_named_and_drawn(run, picture, tmp_path, monkeypatch):
    out = tmp_path / "found"
    depth = picture.with_name("room.depth.png")
    words = ["predict", run, picture, "--depth", depth, "--depth-step", "0.001", "--threshold", "0", "--out", out]
    monkeypatch.setattr(sys, "argv", ["stringpe", *map(str, words)])
    cli.main()
    record = json.loads(out.with_suffix(".json").read_text())
    assert {tuple(one["place"]) for one in record["found"]} == {
        (x, y) for x in (15.5, 47.5, 79.5) for y in (7.5, 23.5, 39.5)
    }
    with Image.open(out.with_suffix(".png")) as drawn, Image.open(picture) as image:
        assert drawn.width > image.width
        assert drawn.tobytes() != image.resize(drawn.size, Image.Resampling.BICUBIC).tobytes()
    monkeypatch.setattr(sys, "argv", ["stringpe", *map(str, words), "--at", "20", "30", "--top", "1"])
    cli.main()
    (one,) = json.loads(out.with_suffix(".json").read_text())["found"]
    assert one["place"] == [20.0, 30.0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "a mug"], "this model names what it sees: leave --text and --query-image out"),
        (["--at", "1", "2", "3"], "--at takes pairs x y, got 3 numbers"),
        (["--at", "96", "2"], "places are pixels x y of the picture, which has 96 × 48 pixels; got 96 2"),
        (["--html"], "--html and --rrd show boxes in 3D"),
    ],
)
def test_questions_that_have_no_answer_are_refused(words, said, run, picture, tmp_path, monkeypatch):
    depth = ["--depth", picture.with_name("room.depth.png"), "--depth-step", "0.001", "--out", tmp_path / "x"]
    monkeypatch.setattr(sys, "argv", ["stringpe", "predict", *map(str, [run, picture, *depth, *words])])
    with pytest.raises(SystemExit, match=f"stringpe: .*{said}"):
        cli.main()


def test_a_model_that_was_trained_with_depth_asks_for_it(run, picture):
    with pytest.raises(ValueError, match="trained with depth: give the picture's depth map with --depth"):
        load_predictor(run)(open_picture(picture), Query())
