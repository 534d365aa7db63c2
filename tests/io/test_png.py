import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from stringpe.io.png import png, read_depth_step


def pixels(data):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data))).astype(np.int64))


@pytest.mark.parametrize(
    ("shape", "top", "dtype"), [((5, 7), 256, torch.uint8), ((5, 7, 3), 256, torch.uint8), ((9, 4), 65536, torch.int32)]
)
def test_png_is_read_back_exactly(shape, top, dtype):
    image = torch.randint(0, top, shape).to(dtype)
    assert torch.equal(pixels(png(image)), image.long())


def test_a_depth_map_carries_its_step():
    steps = torch.randint(0, 65536, (6, 5)).to(torch.int32)
    content = png(steps, depth_step=0.0002)
    assert torch.equal(pixels(content), steps.long())
    assert read_depth_step(content) == 0.0002
    with Image.open(io.BytesIO(content)) as image:
        assert image.text == {"depth_step": "0.0002"}
    assert read_depth_step(png(steps)) is None


@given(st.floats(1e-9, 1e3))
def test_every_step_is_read_back_exactly(step):
    assert read_depth_step(png(torch.zeros(1, 1, dtype=torch.int32), depth_step=step)) == step


@pytest.mark.parametrize("text", [b"one", b"0", b"-1", b"nan", b"inf", b""])
def test_a_step_that_is_not_a_positive_number_is_refused(text):
    chunk = b"tEXt" + b"depth_step\0" + text
    whole = png(torch.zeros(1, 1, dtype=torch.int32))
    chunk = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(ValueError, match="not a positive number of metres"):
        read_depth_step(whole[:33] + chunk + whole[33:])


@given(st.binary(max_size=200))
def test_any_bytes_can_be_asked(content):
    assert read_depth_step(content) is None
    whole = png(torch.zeros(2, 2, dtype=torch.int32), depth_step=0.5)
    assert read_depth_step(whole[:40] + content) in (None, 0.5)
