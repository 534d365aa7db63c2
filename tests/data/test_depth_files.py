"""Depth maps in files: their unit, their holes, and what is wrong with them."""

import pytest
import torch

from captioned_files import depth, picture, shard, words
from stringpe.data.captioned_images import ShardCaptions
from stringpe.io.pictures import BadSample, encode_png


def test_trap_30_zeros_and_the_largest_number_are_holes_and_steps_are_millimetres(tmp_path):
    path = shard(
        tmp_path / "s.tar",
        {
            "0": {"png": picture(), "json": words("a"), "depth.png": depth(2500)},
            "1": {"png": picture(), "json": b'{"captions": ["a"], "depth_step": 0.0002}', "depth.png": depth(10_000)},
        },
    )
    found = ShardCaptions(str(path))
    far = found.depth(0)
    assert far[0, 0] == far[0, 1] == 0
    assert torch.allclose(far[1:], torch.tensor(2.5))
    assert torch.allclose(found.depth(1)[1:], torch.tensor(2.0))  # a sample may say its own unit
    assert torch.allclose(ShardCaptions(str(path), depth_step=0.002).depth(0)[1:], torch.tensor(5.0))


def test_the_step_in_a_depth_file_wins_over_json_and_option(tmp_path):
    far = encode_png(torch.full((16, 20), 10_000, dtype=torch.int32), depth_step=0.0002)
    wrong = encode_png(torch.full((16, 20), 10_000, dtype=torch.int32), depth_step=-1)
    said = b'{"captions": ["a"], "depth_step": 0.001}'
    path = shard(
        tmp_path / "s.tar",
        {
            "0": {"png": picture(), "json": words("a"), "depth.png": far},
            "1": {"png": picture(), "json": said, "depth.png": far},
            "2": {"png": picture(), "json": said, "depth.png": wrong},
            "3": {"png": picture(), "json": b'{"captions": ["a"], "depth_step": "short"}', "depth.png": depth()},
        },
    )
    found = ShardCaptions(str(path), depth_step=0.01)
    assert torch.allclose(found.depth(0), torch.tensor(2.0))
    assert torch.allclose(found.depth(1), torch.tensor(2.0))
    for i in (2, 3):
        with pytest.raises(BadSample, match=r"its depth_step (cannot be used|is .short., not a length)"):
            found.depth(i)


@pytest.mark.parametrize("step", ['"a"', "-1", "0", "NaN", "Infinity", "true", "[1]"])
def test_a_unit_of_depth_that_cannot_be_used_is_named(tmp_path, step):
    record = f'{{"captions": ["a"], "depth_step": {step}}}'.encode()
    path = shard(tmp_path / "s.tar", {"0": {"png": picture(), "json": record, "depth.png": depth()}})
    with pytest.raises(BadSample, match=r"its depth_step is .*, not a length in metres"):
        ShardCaptions(str(path)).depth(0)
