import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from stringpe.data.images import MARGIN, reduce_image, stretch_depth, stretch_image, to_image, to_tensor


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
def test_a_crop_always_fits_into_the_working_size_and_the_aspect_stays(width, height, size):
    image = reduce_image(Image.new("RGB", (width, height)), size)
    short, long = sorted(image.size)
    assert size <= short <= max(size, round(size * MARGIN))
    wanted = max(width, height) / min(width, height)
    assert abs(long - wanted * short) <= 0.5 + 1e-9
    if size <= min(width, height) <= round(size * MARGIN):
        assert image.size == (width, height)


def test_images_go_to_tensors_and_back():
    pixels = torch.randint(256, (3, 5, 7), dtype=torch.uint8)
    assert torch.equal(to_tensor(to_image(pixels)), pixels)


def test_stretched_depth_mixes_no_two_distances():
    depth = torch.tensor([[1.0, 3.0], [0.0, 2.0]])
    assert set(stretch_depth(depth, 7).flatten().tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert stretch_image(Image.new("RGB", (9, 4)), 6).shape == (3, 6, 6)
