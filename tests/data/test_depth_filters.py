import pytest
import torch
from PIL import Image, ImageDraw, ImageFont

from stringpe import scenes
from stringpe.data.depth_filters import (
    FILTERS,
    ground_share,
    has_frame,
    has_seam,
    has_text,
    no_ground,
    outdoor,
    overlay,
)
from stringpe.data.images import to_tensor


@pytest.fixture
def photo():
    """Something like a photograph: smooth shapes and a little noise."""
    dice = torch.Generator().manual_seed(0)
    smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 6, 8, generator=dice), (120, 160), mode="bicubic")[0]
    noisy = 0.2 + 0.6 * smooth + 0.02 * torch.randn(3, 120, 160, generator=dice)
    return (noisy.clamp(0, 1) * 255).to(torch.uint8)


def pixels(image):
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def floor(tilt=0.5, height=1.4, size=(60, 80)):
    """Depth of a level floor from `height` metres above it, with the camera tilted down; sky is a hole."""
    rows = (torch.arange(size[0]) + 0.5 - size[0] / 2) / size[1]
    down = torch.sin(torch.tensor(tilt)) + rows * torch.cos(torch.tensor(tilt))  # of the ray at focal length 1
    depth = torch.where(down > 0.02, height / down, 0.0)
    return depth[:, None].expand(size).contiguous()


def test_a_photograph_is_not_an_overlay(photo):
    assert overlay(photo, floor()) == ""


def test_frames_are_seen(photo):
    letterbox = photo.clone()
    letterbox[:, :10] = letterbox[:, -10:] = 0
    assert has_frame(letterbox)
    assert overlay(letterbox, floor()) == "overlay: a frame of one colour"
    one_side = photo.clone()
    one_side[:, :10] = 255  # a sky
    assert not has_frame(one_side)


def test_drawings_are_seen():
    image = Image.new("RGB", (160, 120), (200, 220, 210))
    ImageDraw.Draw(image).ellipse((30, 20, 120, 100), fill=(90, 40, 160))
    drawn = to_tensor(image)
    drawn[:, 0, ::2] = drawn[:, -1, ::2] = drawn[:, ::2, 0] = drawn[:, ::2, -1] = 3  # no frame
    assert overlay(drawn, floor()) == "overlay: drawn, not photographed"


def test_seams_are_seen(photo):
    collage = photo.clone()
    collage[:, :, 90:] = 255 - collage[:, :, 90:] // 3
    assert has_seam(collage)
    assert has_seam(collage.mT)
    assert not has_seam(photo)


def test_text_is_seen(photo):
    image = pixels(photo)
    draw = ImageDraw.Draw(image)
    draw.text((4, 50), "SALE SALE SALE 50% OFF", fill=(255, 255, 255), font=ImageFont.load_default(18))
    assert has_text(to_tensor(image))
    assert overlay(to_tensor(image), floor()) == "overlay: lines of text"
    assert not has_text(photo)


@pytest.mark.parametrize("tilt", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("height", [0.5, 1.5])
def test_a_floor_is_ground(tilt, height):
    assert ground_share(floor(tilt, height)) > 0.9


def test_walls_ceilings_and_nothing_are_not_ground():
    assert no_ground(torch.zeros(3, 1, 1), torch.full((60, 80), 2.0)) == "no ground plane"
    column = torch.linspace(1, 3, 80).expand(60, 80)  # a wall to one side
    assert ground_share(1 / (0.3 + 0.2 * column)) == 0
    assert ground_share(floor().flip(0)) < 0.15  # a ceiling
    assert ground_share(torch.zeros(60, 80)) == 0
    torch.manual_seed(0)
    assert ground_share(1 + 4 * torch.rand(60, 80)) < 0.15


def test_rooms_have_ground():
    depth = scenes.render(scenes.sample(0, 24), (48, 64)).depth
    shares = torch.tensor([ground_share(d) for d in depth])
    assert (shares >= 0.15).float().mean() > 0.9
    assert all(outdoor(torch.zeros(3, 1, 1), d) == "" for d in depth)


def test_large_scenes_are_outdoor():
    assert outdoor(torch.zeros(3, 1, 1), torch.full((8, 8), 15.0)) == "large outdoor scene"
    partly = torch.full((10, 10), 3.0)
    partly[:2] = 15  # a window
    assert outdoor(torch.zeros(3, 1, 1), partly) == ""
    assert outdoor(torch.zeros(3, 1, 1), torch.zeros(8, 8)) == "no depth at all"


def test_filters_have_the_names_of_the_command():
    import inspect

    from stringpe.cli.data import depth

    assert inspect.signature(depth).parameters["filters"].default == tuple(FILTERS)
