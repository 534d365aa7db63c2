"""Each augmentation, once."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from stringpe.data.images import Ragged, stack_ragged
from stringpe.data.order import Place
from stringpe.data.transforms import (
    CROP_COLUMNS,
    Windows,
    augment_rgbd,
    draw_windows,
    middle_windows,
    read_windows,
    shift_images,
    to_bytes,
    to_unit,
    uniforms,
)
from stringpe.recipes.schema import Augment

SIZE = st.tuples(st.integers(1, 50), st.integers(1, 50))


def images(*sizes, seed=0):
    dice = torch.Generator().manual_seed(seed)
    return [torch.randint(256, (*size, 3), generator=dice, dtype=torch.uint8) for size in sizes]


def at(corner, extent, mirror=False, shift=(0, 0)):
    rows = [torch.tensor([row], dtype=torch.float32) for row in (corner, extent)]
    return Windows(*rows, torch.tensor([mirror]), torch.tensor([shift], dtype=torch.float32), exact=False)


def test_the_whole_of_an_image_is_the_image():
    (image,) = images((8, 8))
    whole = stack_ragged([image])
    assert torch.equal(read_windows(whole, at((0, 0), (8, 8)), 8)[0], image.permute(2, 0, 1))
    assert torch.equal(read_windows(whole, at((0, 0), (8, 8), mirror=True), 8)[0], image.permute(2, 0, 1).flip(-1))
    assert torch.equal(read_windows(whole, middle_windows(whole.size, 8), 8)[0], image.permute(2, 0, 1))


@pytest.mark.parametrize("size", [(12, 20), (20, 12), (9, 9)])
def test_windows_agree_with_torchs_resampling(size):
    """Inside the image, where the border's treatment does not matter."""
    (image,) = images(size)
    corner, extent = torch.tensor([1.3, 2.1]), torch.tensor([5.2, 4.7])
    got = read_windows(stack_ragged([image]), at(corner.tolist(), extent.tolist()), 6)[0].float()
    where = [(corner[k] + (torch.arange(6) + 0.5) * extent[k] / 6) / size[k] * 2 - 1 for k in (0, 1)]
    grid = torch.stack([where[1].expand(6, 6), where[0][:, None].expand(6, 6)], -1)
    expected = F.grid_sample(image.permute(2, 0, 1)[None].float(), grid[None], align_corners=False)[0]
    assert (got - expected).abs().max() <= 0.5 + 1e-3  # rounded to a level


@pytest.mark.parametrize("shift", [(3, -2), (-8, 8), (0, 5)])
def test_shifts_reflect_at_the_border(shift):
    (image,) = images((12, 12))
    still = middle_windows(torch.tensor([[12, 12]]), 12)
    moved = still._replace(shift=torch.tensor([shift], dtype=torch.float32))
    got = read_windows(stack_ragged([image]), moved, 12)[0]
    wide = F.pad(image.permute(2, 0, 1).float(), (8, 8, 8, 8), mode="reflect")
    top, left = 8 + shift[0], 8 + shift[1]
    assert torch.equal(got.float(), wide[:, top : top + 12, left : left + 12])


def test_shifts_go_as_far_as_asked_in_every_direction():
    u = torch.rand(4000, CROP_COLUMNS, generator=torch.Generator().manual_seed(0))
    shift = draw_windows(torch.full((4000, 2), 16), u, Augment(shift=8), 16).shift
    assert set(shift[:, 0].tolist()) == set(shift[:, 1].tolist()) == set(range(-8, 9))
    assert not draw_windows(torch.full((4000, 2), 16), u, Augment(), 16).shift.any()


@settings(max_examples=100, deadline=None)
@given(st.lists(SIZE, min_size=1, max_size=6), st.integers(0, 10**6), st.floats(0.05, 1), st.integers(0, 60))
def test_any_window_of_any_image_shows_its_own_pixels_alone_or_among_others(sizes, seed, crop, shift):
    """The property that makes memory, workers and devices equal: an image does not depend on its batch. Short sides of
    at least the square are promised by `reduce_image`; crops work below that, too."""
    some = images(*sizes, seed=seed)
    how = Augment(crop=crop if crop < 0.99 else 0.99, flip=True, shift=shift)
    u = torch.rand(len(some), CROP_COLUMNS, generator=torch.Generator().manual_seed(seed))
    together = stack_ragged(some)
    windows = draw_windows(together.size, u, how, 7)
    assert (windows.corner >= -1e-4).all()
    assert (windows.corner + windows.extent <= together.size + 1e-3).all()
    whole = read_windows(together, windows, 7)
    for i, image in enumerate(some):
        alone = stack_ragged([image])
        own = read_windows(alone, draw_windows(alone.size, u[i : i + 1], how, 7), 7)
        assert torch.equal(own[0], whole[i])
        assert whole[i].amin() >= image.amin()
        assert whole[i].amax() <= image.amax()


def test_crops_have_the_area_and_the_aspect_that_were_asked_for():
    u = torch.rand(2000, CROP_COLUMNS, generator=torch.Generator().manual_seed(1))
    for size in ((30, 40), (10, 100)):
        extent = draw_windows(torch.tensor(size).expand(2000, 2), u, Augment(crop=0.1), 8).extent
        aspect = extent[:, 1] / extent[:, 0]
        assert 3 / 4 - 1e-3 <= aspect.min() < 0.8
        assert 1.25 < aspect.max() <= 4 / 3 + 1e-3
        share = extent.prod(1) / (size[0] * size[1])
        assert share.max() <= 1 + 1e-4
    share = draw_windows(torch.tensor((40, 40)).expand(2000, 2), u, Augment(crop=0.3), 8).extent.prod(1) / 1600
    assert 0.3 - 1e-3 <= share.min() < 0.35
    assert share.max() > 0.9


def test_selected_images_keep_their_pixels():
    some = images((2, 3), (4, 1), (5, 5))
    chosen = stack_ragged(some).select(torch.tensor([2, 0]))
    assert isinstance(chosen, Ragged)
    whole = Windows(torch.zeros(2, 2), chosen.size.float(), torch.zeros(2).bool(), torch.zeros(2, 2), exact=False)
    assert torch.equal(read_windows(chosen, whole, 5)[0], some[2].permute(2, 0, 1))


def test_augmentation_does_nothing_where_it_is_told_nothing():
    image = torch.randint(256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(augment_rgbd(image, None, uniforms(0, 0, 2, Place()), Augment())[0], to_unit(image))


def test_flips_mirror_half_of_the_images():
    image = torch.randint(256, (64, 3, 8, 8), dtype=torch.uint8)
    out = augment_rgbd(image, None, uniforms(0, 0, 64, Place()), Augment(flip=True))[0]
    same = (out - to_unit(image)).abs().amax((1, 2, 3)) < 1e-4
    mirrored = (out - to_unit(image).flip(-1)).abs().amax((1, 2, 3)) < 1e-4
    assert (same | mirrored).all()
    assert 16 < same.sum() < 48


def test_crops_show_parts_of_the_image():
    ramp = torch.arange(32).float().mul(8).to(torch.uint8).expand(50, 3, 32, 32)
    out = augment_rgbd(ramp, None, uniforms(0, 1, 50, Place()), Augment(crop=0.25))[0]
    width = (out.amax((1, 2, 3)) - out.amin((1, 2, 3))) / (to_unit(ramp).max() - to_unit(ramp).min())
    assert width.min() > 0.4
    assert width.max() <= 1.001
    assert width.std() > 0.05
    coloured = augment_rgbd(ramp, None, uniforms(0, 1, 50, Place()), Augment(colour=0.5))[0]
    assert coloured.mean((1, 2, 3)).std() > 0.05


def test_shifted_cameras_repeat_their_border():
    x = torch.arange(9.0).view(1, 1, 3, 3)
    assert shift_images(x, torch.tensor([[1, -1]]))[0, 0].tolist() == [[3, 3, 4], [6, 6, 7], [6, 6, 7]]


def test_bytes_and_floats_are_each_others_inverse():
    image = torch.arange(256, dtype=torch.uint8)
    floats = to_unit(image)
    assert (floats[0], floats[-1]) == (-1, 1)
    assert torch.equal(to_bytes(floats), image)
