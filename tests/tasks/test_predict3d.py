"""Where the metres of a depth file come from."""

import json
import tarfile
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from stringpe import scenes
from stringpe.io.pictures import encode_png
from stringpe.tasks.predict import Query
from stringpe.tasks.predict3d import Predictor3D

SIDE = 16


@pytest.fixture
def predictor():
    """A predictor without a model: reading depth needs its recipe alone."""
    made = object.__new__(Predictor3D)
    data = SimpleNamespace(depth_step=0.001, image_size=SIDE)
    made.recipe = SimpleNamespace(data=data, model=SimpleNamespace(depth="lift"))
    made.device = torch.device("cpu")
    return made


def read(predictor, path):
    return predictor._depth(Image.new("RGB", (SIDE, SIDE)), Query(["a mug"], depth=path))[0]


def test_depth_of_written_scenes_comes_out_in_metres(predictor, tmp_path, capsys):
    frames = scenes.render(scenes.sample(0, 1), (SIDE, SIDE))
    (shard,) = scenes.write(tmp_path, 1, size=(SIDE, SIDE))
    with tarfile.open(shard) as tar:
        tar.extractall(tmp_path, filter="data")
    capsys.readouterr()
    path = tmp_path / "000000000.depth.png"
    torch.testing.assert_close(read(predictor, path), frames.depth[0], atol=1.1e-4, rtol=0)
    moved = path.rename(tmp_path / "elsewhere.png")  # without the json beside it
    torch.testing.assert_close(read(predictor, moved), frames.depth[0], atol=1.1e-4, rtol=0)
    assert capsys.readouterr().err == ""


def test_a_file_that_says_nothing_is_read_as_its_json_says_or_in_millimetres_with_a_word(predictor, tmp_path, capsys):
    path = tmp_path / "room.depth.png"
    path.write_bytes(encode_png(torch.full((SIDE, SIDE), 10_000, dtype=torch.int32)))
    (tmp_path / "room.json").write_text(json.dumps({"depth_step": 0.0002}))
    assert torch.allclose(read(predictor, path), torch.tensor(2.0))
    assert capsys.readouterr().err == ""
    (tmp_path / "room.json").unlink()
    assert torch.allclose(read(predictor, path), torch.tensor(10.0))
    assert "room.depth.png does not say how long its steps are: 0.001 m assumed" in capsys.readouterr().err


def test_a_frame_to_look_at_has_its_points_and_what_was_found(predictor, tmp_path):
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
