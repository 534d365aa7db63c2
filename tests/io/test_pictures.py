"""Pictures from bytes that nobody vouches for."""

import io
import random
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from captioned_files import bomb, depth, picture
from stringpe.io.pictures import (
    MAX_PIXELS,
    BadSample,
    convert_picture,
    decode_deep,
    decode_picture,
    encode_png,
    read_depth_step,
    to_millimetres,
)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "PPM", "GIF"])
def test_common_formats_are_decoded(kind):
    image = decode_picture(picture(100, kind=kind), "x")
    assert (image.mode, image.size) == ("RGB", (20, 16))


@pytest.mark.parametrize("size", [(8193, 8193), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_decompression_bombs_are_refused_before_they_are_unpacked(size):
    assert size[0] * size[1] > MAX_PIXELS
    for decode in (decode_picture, decode_deep):
        with pytest.raises(BadSample, match=r"^bomb\.png: "):
            decode(bomb(*size), "bomb.png")


def test_what_is_not_a_picture_says_what_is_taken():
    for content in (b"", b"nothing", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
        with pytest.raises(BadSample, match=r"a\.jpg: not a picture that can be read \(JPEG, PNG, .*\)"):
            decode_picture(content, "a.jpg")
    with pytest.raises(BadSample, match=r"a\.jpg"):
        decode_picture(None, "a.jpg")
    tiff = io.BytesIO()
    Image.new("RGB", (4, 4)).save(tiff, "TIFF")
    with pytest.raises(BadSample, match="not a picture"):
        decode_picture(tiff.getvalue(), "a.tif")


def test_depth_must_have_16_bits():
    assert decode_deep(depth(1500), "x")[5, 5] == 1500
    with pytest.raises(BadSample, match="x: it is an image of mode L, not 16-bit"):
        decode_deep(depth(mode="L"), "x")


def test_a_turned_picture_is_set_upright_where_that_is_wanted():
    file = io.BytesIO()
    image = Image.new("RGB", (20, 10))
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90°
    image.save(file, "JPEG", exif=exif)
    assert decode_picture(file.getvalue(), "x").size == (20, 10)
    assert decode_picture(file.getvalue(), "x", upright=True).size == (10, 20)


def test_opened_pictures_are_converted_under_the_same_limits():
    assert convert_picture(Image.new("L", (3, 3)), "x").mode == "RGB"
    with pytest.raises(BadSample, match=r"^x: "):
        convert_picture(None, "x")


PLAIN = {kind: picture(100, kind=kind) for kind in ("PNG", "JPEG", "WEBP", "BMP", "PPM", "GIF")}


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(PLAIN)), st.integers(0, 2**32), st.integers(1, 12), st.booleans())
@pytest.mark.filterwarnings("ignore")
def test_whatever_is_wrong_with_the_bytes_one_exception_says_so(kind, seed, changes, cut):
    dice, content = random.Random(seed), bytearray(PLAIN[kind])
    for _ in range(changes):
        content[dice.randrange(len(content))] = dice.randrange(256)
    if cut:
        del content[dice.randrange(len(content)) :]
    for decode in (decode_picture, decode_deep):
        with suppress(BadSample):  # anything else fails the test
            decode(bytes(content), "mutated")


@pytest.mark.parametrize("size", [(60_000, 1), (1, 60_000), (257, 1)])
def test_a_picture_that_is_far_too_long_is_refused(size):
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    with pytest.raises(BadSample, match=r"long\.png: .* pixels are longer than 256 : 1"):
        decode_picture(file.getvalue(), "long.png")


def pixels(data):
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data))).astype(np.int64))


@pytest.mark.parametrize(
    ("shape", "top", "dtype"), [((5, 7), 256, torch.uint8), ((5, 7, 3), 256, torch.uint8), ((9, 4), 65536, torch.int32)]
)
def test_png_is_read_back_exactly(shape, top, dtype):
    image = torch.randint(0, top, shape).to(dtype)
    assert torch.equal(pixels(encode_png(image)), image.long())


def test_a_depth_map_carries_its_step():
    steps = torch.randint(0, 65536, (6, 5)).to(torch.int32)
    content = encode_png(steps, depth_step=0.0002)
    assert torch.equal(pixels(content), steps.long())
    assert read_depth_step(content) == 0.0002
    with Image.open(io.BytesIO(content)) as image:
        assert image.text == {"depth_step": "0.0002"}
    assert read_depth_step(encode_png(steps)) is None


@given(st.floats(1e-9, 1e3))
def test_every_step_is_read_back_exactly(step):
    assert read_depth_step(encode_png(torch.zeros(1, 1, dtype=torch.int32), depth_step=step)) == step


@pytest.mark.parametrize("text", [b"one", b"0", b"-1", b"nan", b"inf", b""])
def test_a_step_that_is_not_a_positive_number_is_refused(text):
    chunk = b"tEXt" + b"depth_step\0" + text
    whole = encode_png(torch.zeros(1, 1, dtype=torch.int32))
    chunk = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    with pytest.raises(ValueError, match="not a positive number of metres"):
        read_depth_step(whole[:33] + chunk + whole[33:])


@given(st.binary(max_size=200))
def test_any_bytes_can_be_asked(content):
    assert read_depth_step(content) is None
    whole = encode_png(torch.zeros(2, 2, dtype=torch.int32), depth_step=0.5)
    assert read_depth_step(whole[:40] + content) in (None, 0.5)


@pytest.mark.parametrize("kind", ["PNG", "PPM"])
def test_grey_of_16_bits_is_scaled_and_not_cut_off(kind):
    file = io.BytesIO()
    Image.fromarray(np.array([[0, 128 * 257, 65535]], np.uint16)).save(file, kind)
    assert np.array(decode_picture(file.getvalue(), "x"))[0].tolist() == [[0] * 3, [128] * 3, [255] * 3]


def test_pictures_of_real_numbers_are_refused():
    with pytest.raises(BadSample, match="x: it has real numbers in place of colours"):
        decode_picture(b"Pf\n1 1\n-1.0\n" + struct.pack("<f", float("nan")), "x")


def test_a_sound_picture_of_too_many_pixels_is_refused():
    file = io.BytesIO()
    Image.new("1", (8200, 8200)).save(file, "PNG")
    assert len(file.getvalue()) < 100_000
    with pytest.raises(BadSample, match="8200 × 8200 pixels are more than the 64 million that are decoded"):
        decode_picture(file.getvalue(), "x")


def test_trap_30_holes_and_far_things_are_zero_and_a_step_is_a_millimetre():
    given = torch.tensor([[1.2344, 0.0, -1.0], [torch.nan, torch.inf, 65.6], [0.0004, 65.534, 65.535]])
    assert to_millimetres(given).tolist() == [[1234, 0, 0], [0, 0, 0], [0, 65534, 0]]
