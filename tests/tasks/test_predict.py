import json
import sys
import tarfile
from types import SimpleNamespace

import pytest
import torch
import transformers
from PIL import Image, ImageDraw

from detection_toy import COLOURS, toy_recipe
from stringpe import scenes
from stringpe.cli import main as cli
from stringpe.data import omni3d
from stringpe.io.pictures import encode_png
from stringpe.models.owl_checkpoints import load_owl
from stringpe.models.tokenizer import Tokenizer
from stringpe.recipes.overrides import override
from stringpe.tasks.predict import Predictor3D, load_predictor, predict
from stringpe.tasks.predictor import Query, square_depth
from stringpe.training import train


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A run of two steps, whose class head then is made to know three texts by hand."""
    folder = tmp_path_factory.mktemp("run")
    train(override(toy_recipe(folder), ["loop.steps=1"]), folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture
def picture(tmp_path):
    image = Image.new("RGB", (90, 60), (200, 200, 200))
    ImageDraw.Draw(image).rectangle([10, 10, 30, 40], fill=COLOURS["red ball"])
    image.save(tmp_path / "image.png")
    return tmp_path / "image.png"


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["stringpe", *map(str, words)])
    cli.main()


def test_the_command_writes_json_and_a_picture(checkpoint, picture, tmp_path, monkeypatch, capsys):
    out = tmp_path / "sub" / "found"
    words = ("--text", "a mug", "a lamp", "--threshold", "0", "--nms", "1", "--out", out)
    run(monkeypatch, "predict", checkpoint, picture, *words)
    record = json.loads(out.with_suffix(".json").read_text())
    assert record["texts"] == ["a mug", "a lamp"]
    assert (record["width"], record["height"]) == (90, 60)
    assert len(record["found"]) == 64
    scores = [f["score"] for f in record["found"]]
    assert scores == sorted(scores, reverse=True)
    for one in record["found"]:
        x0, y0, x1, y1 = one["box"]
        assert 0 <= x0 <= x1 <= 90
        assert 0 <= y0 <= y1 <= 60  # nothing in the padding
        assert one["text"] in record["texts"]
    with Image.open(out.with_suffix(".png")) as drawn, Image.open(picture) as image:
        assert drawn.size == (720, 480)  # enlarged eight times
        assert drawn.tobytes() != image.resize(drawn.size, Image.Resampling.BICUBIC).tobytes()
    assert "64 found" in capsys.readouterr().out


def test_threshold_and_top_limit_what_is_found(checkpoint, picture):
    model = load_predictor(checkpoint)
    image = Image.open(picture)
    whole = model(image, Query(texts=["a mug"], threshold=0, nms=1))
    assert len(model(image, Query(texts=["a mug"], threshold=0, nms=1, top=5))) == 5
    middle = whole[20]["score"]
    assert all(f["score"] >= middle for f in model(image, Query(texts=["a mug"], threshold=middle, nms=1)))
    assert model(image, Query(texts=["a mug"], threshold=1)) == []
    fewer = model(image, Query(texts=["a mug"], threshold=0, nms=0))
    assert 0 < len(fewer) < len(whole)


def test_hundreds_of_texts_are_answered(checkpoint, picture):
    texts = [f"thing number {i}" for i in range(700)]
    found = load_predictor(checkpoint)(Image.open(picture), Query(texts=texts, threshold=0))
    assert {f["text"] for f in found} <= set(texts)


def test_a_query_image_is_found_by_its_object_or_by_a_box_in_it(checkpoint, picture, tmp_path):
    _, found = predict(checkpoint, picture, Query(query_image=picture, threshold=0), tmp_path / "a")
    assert {f["text"] for f in found} == {"image.png"}
    boxed = Query(query_image=picture, query_box=(60, 30, 85, 55), threshold=0)
    _, other = predict(checkpoint, picture, boxed, tmp_path / "b")
    assert found != other
    with pytest.raises(ValueError, match=r"within the query image of 90 × 60 pixels, got \(10, 10, 31, 70\)"):
        predict(checkpoint, picture, Query(query_image=picture, query_box=(10, 10, 31, 70)), tmp_path / "c")


@pytest.mark.parametrize("kind", ["OwlViT", "Owlv2"])
def test_checkpoints_of_transformers_predict(kind, picture, tmp_path):
    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer = Tokenizer.train(["a mug", "a lamp"], vocab=300)
    config = getattr(transformers, f"{kind}Config")(
        text_config=tiny | {"vocab_size": len(tokenizer), "max_position_embeddings": 12},
        vision_config=tiny | {"image_size": 64, "patch_size": 16},
        projection_dim=32,
    )
    getattr(transformers, f"{kind}ForObjectDetection")(config).save_pretrained(tmp_path / "owl")
    tokenizer.save(tmp_path / "owl" / "tokenizer.json")
    _, found = predict(tmp_path / "owl", picture, Query(texts=["a mug"], threshold=0, nms=1), tmp_path / "a")
    assert len(found) == 16
    model = load_owl(tmp_path / "owl").eval()
    from stringpe.geometry.square import to_square

    image = to_square(Image.open(picture), 64)[None].float() / 127.5 - 1
    with torch.no_grad():
        score = model(image, tokenizer.encode(["a mug"], 12)).logits.sigmoid().max()
    assert found[0]["score"] == pytest.approx(float(score), abs=1e-6)
    _, shown = predict(tmp_path / "owl", picture, Query(query_image=picture, threshold=0), tmp_path / "b")
    assert shown


BAD = [
    (("--text", "a mug", " "), "text 2 of 2 is empty"),
    ((), 'say what to find, in one of two ways: --text "a mug"'),
    (("--text", "a mug", "--query-image", "IMAGE"), "in one of two ways"),
    (("--text", "a mug", "--threshold", "2"), "threshold and nms are from 0 to 1"),
    (("--text", "a mug", "--query-box", "1", "2", "3", "4"), "a query box lies in a query image"),
]


@pytest.mark.parametrize(("words", "complaint"), BAD)
def test_what_cannot_be_asked_is_refused_in_one_line(checkpoint, picture, monkeypatch, tmp_path, words, complaint):
    words = [str(picture) if w == "IMAGE" else w for w in words]
    with pytest.raises(SystemExit, match=f"stringpe: .*{complaint}"):
        run(monkeypatch, "predict", checkpoint, picture, *words, "--out", tmp_path / "x")


def test_files_that_cannot_be_used_are_named(checkpoint, picture, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"cannot read the picture .*recipe.json: not a picture .*: give a JPEG"):
        run(monkeypatch, "predict", checkpoint, checkpoint / "recipe.json", "--text", "a")
    with pytest.raises(SystemExit, match=r"there is no checkpoint in"):
        run(monkeypatch, "predict", tmp_path, picture, "--text", "a")


def test_a_prediction_in_3d_is_written_as_json_and_a_picture(run3d, tmp_path):
    Image.new("RGB", (64, 40), (90, 120, 60)).save(tmp_path / "a.jpg")
    Image.new("I;16", (32, 20), 1500).save(tmp_path / "depth.png")
    asked = Query(("a mug", "a lamp"), threshold=0.0, top=5, depth=tmp_path / "depth.png")
    (written, drawn), found = predict(run3d[0], tmp_path / "a.jpg", asked, tmp_path / "out")
    record = json.loads(written.read_text())
    assert drawn.exists()
    assert 1 <= len(found) <= 5
    one = record["found"][0]
    assert one["text"] in asked.texts
    assert len(one["box"]) == 12
    assert len(one["bbox3D"]) == 8
    torch.testing.assert_close(torch.tensor(one["bbox3D"]), omni3d.corners(torch.tensor(one["box"])), atol=1e-4, rtol=0)


def test_the_step_of_depth_is_that_of_the_data_set(run3d, tmp_path):
    """`stringpe data scenes` writes steps of 0.2 mm, and says so in the JSON file beside the map."""
    model, picture = load_predictor(run3d[0]), Image.new("RGB", (64, 40), (90, 120, 60))

    def boxes(value, **options):
        Image.new("I;16", (64, 40), value).save(tmp_path / "7.depth.png")
        found = model(picture, Query(("a mug",), threshold=0.0, top=3, depth=tmp_path / "7.depth.png", **options))
        return torch.tensor([one["box"] for one in found])

    metres = boxes(1500)
    torch.testing.assert_close(boxes(7500, depth_step=0.0002), metres)
    (tmp_path / "7.json").write_text(json.dumps({"depth_step": 0.0002}))
    torch.testing.assert_close(boxes(7500), metres)
    assert not torch.allclose(boxes(1500), metres)


def test_what_cannot_be_asked_in_3d_is_refused(run3d, tmp_path):
    model, picture = load_predictor(run3d[0]), Image.new("RGB", (64, 40))
    with pytest.raises(ValueError, match="asked for by text"):
        model(picture, Query(query_image=tmp_path / "q.jpg"))
    with pytest.raises(ValueError, match="text 1 of 2 is empty"):
        model(picture, Query(("", "mug")))
    Image.new("L", (64, 40)).save(tmp_path / "grey.png")
    with pytest.raises(ValueError, match="not 16-bit"):
        model(picture, Query(("mug",), depth=tmp_path / "grey.png"))
    Image.new("I;16", (40, 64), 1500).save(tmp_path / "tall.png")
    with pytest.raises(ValueError, match="40 × 64"):
        model(picture, Query(("mug",), depth=tmp_path / "tall.png"))
    Image.new("I;16", (64, 40), 1).save(tmp_path / "unit.png")
    with pytest.raises(ValueError, match="median depth"):
        model(picture, Query(("mug",), depth=tmp_path / "unit.png"))
    with pytest.raises(ValueError, match="fx and fy above 0"):
        model(picture, Query(("mug",), intrinsics=(0, 1, 1, 1)))


SIDE = 16


RECIPE = SimpleNamespace(data=SimpleNamespace(depth_step=0.001, image_size=SIDE), model=SimpleNamespace(depth="lift"))
"""What reading depth needs of a recipe."""


def read(path):
    return square_depth(Image.new("RGB", (SIDE, SIDE)), Query(["a mug"], depth=path), RECIPE, torch.device("cpu"))[0]


def test_depth_of_written_scenes_comes_out_in_metres(tmp_path, capsys):
    frames = scenes.render(scenes.sample(0, 1), (SIDE, SIDE))
    (shard,) = scenes.write(tmp_path, 1, size=(SIDE, SIDE))
    with tarfile.open(shard) as tar:
        tar.extractall(tmp_path, filter="data")
    capsys.readouterr()
    path = tmp_path / "000000000.depth.png"
    torch.testing.assert_close(read(path), frames.depth[0], atol=1.1e-4, rtol=0)
    moved = path.rename(tmp_path / "elsewhere.png")  # without the json beside it
    torch.testing.assert_close(read(moved), frames.depth[0], atol=1.1e-4, rtol=0)
    assert capsys.readouterr().err == ""


def test_a_file_that_says_nothing_is_read_as_its_json_says_or_in_millimetres_with_a_word(tmp_path, capsys):
    path = tmp_path / "room.depth.png"
    path.write_bytes(encode_png(torch.full((SIDE, SIDE), 10_000, dtype=torch.int32)))
    (tmp_path / "room.json").write_text(json.dumps({"depth_step": 0.0002}))
    assert torch.allclose(read(path), torch.tensor(2.0))
    assert capsys.readouterr().err == ""
    (tmp_path / "room.json").unlink()
    assert torch.allclose(read(path), torch.tensor(10.0))
    assert "room.depth.png does not say how long its steps are: 0.001 m assumed" in capsys.readouterr().err


def test_a_frame_to_look_at_has_its_points_and_what_was_found(tmp_path):
    predictor = object.__new__(Predictor3D)  # without a model
    predictor.recipe = RECIPE
    path = tmp_path / "room.depth.png"
    path.write_bytes(encode_png(torch.full((SIDE, SIDE), 2000, dtype=torch.int32), depth_step=0.001))
    found = [{"text": "a mug", "score": 0.5, "box": [0, 0, 2, 1, 0, 0, 0, 1, 0, 0.2, 0.2, 0.2]}]
    picture = Image.new("RGB", (2 * SIDE, 2 * SIDE), (9, 8, 7))  # twice the size of its depth
    frame = predictor.frame(picture, Query(["a mug"], depth=path, intrinsics=(32.0, 32.0, 16.0, 16.0)), found)
    points, _ = frame.points()
    assert points[:, 2].unique().tolist() == [2.0]
    assert points[:, 0].max().item() == pytest.approx(2.0 * 7.5 / 16)  # the last column, 7.5 pixels from the middle
    assert [(box.label, box.kind, box.score) for box in frame.boxes] == [("a mug", "predicted", 0.5)]
    with pytest.raises(ValueError, match="give the picture's depth map with --depth"):
        predictor.frame(picture, Query(["a mug"]), found)
