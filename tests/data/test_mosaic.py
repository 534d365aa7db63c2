import pytest
import torch

from stringpe.data.mosaic import PictureBoxes, draw_mosaics, parse_shares, plan_mosaics
from stringpe.data.order import Order, Place
from stringpe.geometry.boxes import to_corners
from stringpe.geometry.square import GREY
from stringpe.recipes.schema import Augment

SIZE = 48


def painted(n=6, seed=0):
    """PictureBoxes with one white rectangle each on black, of different aspect, and what they hold."""
    dice = torch.Generator().manual_seed(seed)
    pixels = torch.full((n, 3, SIZE, SIZE), GREY, dtype=torch.uint8)
    size, boxes = torch.ones(n, 2), torch.zeros(n, 2, 4)
    for i in range(n):
        short = int(torch.randint(SIZE // 2, SIZE + 1, (1,), generator=dice))
        width, height = (SIZE, short) if i % 2 else (short, SIZE)
        pixels[i, :, :height, :width] = 0
        x0, y0 = (int(torch.randint(2, side - 14, (1,), generator=dice)) for side in (width, height))
        pixels[i, :, y0 : y0 + 12, x0 : x0 + 12] = 255
        size[i] = torch.tensor([width, height]) / SIZE
        boxes[i, 0] = torch.tensor([x0, y0, x0 + 12, y0 + 12]) / SIZE
    valid = torch.tensor([[True, False]] * n)
    return pixels, PictureBoxes(size, boxes, torch.arange(n)[:, None].repeat(1, 2), valid, torch.zeros(n, 2).bool())


def drawn(shares, how, step=0, batch=8, place=None):
    pixels, pictures = painted()
    made = plan_mosaics(Order(len(pixels), batch, 3), step, place or Place(), shares)
    return *draw_mosaics(pixels[made.picture], pictures, made, how), made


@pytest.mark.parametrize("shares", [[1.0], [0.0, 1.0], [0.0, 0.0, 1.0], [0.4, 0.3, 0.3]])
@pytest.mark.parametrize("how", [Augment(), Augment(flip=True), Augment(crop=0.4, flip=True)])
def test_boxes_are_where_the_pixels_are(shares, how):
    """Every object that counts is white inside its box, and black or padding right outside of it."""
    image, truth, made = drawn(shares, how)
    assert image.shape == (8, 3, SIZE, SIZE)
    checked = 0
    for b in range(8):
        for box, good in zip(to_corners(truth.boxes[b]), truth.valid[b] & ~truth.crowd[b], strict=True):
            if not good:
                continue
            x0, y0, x1, y1 = (box * SIZE).tolist()
            inner = image[b, 0, round(y0) + 1 : round(y1) - 1, round(x0) + 1 : round(x1) - 1]
            if inner.numel() == 0:
                continue
            assert inner.min() > 180
            ring = image[b, 0, max(round(y0) - 2, 0) : round(y1) + 2, max(round(x0) - 2, 0) : round(x1) + 2]
            share = (ring > 180).sum() / ((x1 - x0) * (y1 - y0))
            assert 0.4 < share < 1.6
            checked += 1
    assert checked >= 6
    assert len(made.picture) == int((made.side[made.place == 0] ** 2).sum())


def test_one_tile_without_augmentation_is_the_picture():
    pixels, pictures = painted()
    image, truth, made = drawn([1.0], Augment())
    assert torch.equal(image.round().to(torch.uint8), pixels[made.picture])
    assert torch.allclose(to_corners(truth.boxes)[:, 0], pictures.boxes[made.picture, 0], atol=1e-6)
    assert torch.equal(truth.labels[:, 0], made.picture)
    assert truth.valid.shape[1] == pictures.valid.shape[1]
    assert drawn([0.0, 1.0], Augment())[1].valid.shape[1] < 4 * pictures.valid.shape[1]  # most padding is left out


def test_objects_that_a_crop_cuts_are_crowds_and_those_it_leaves_out_are_gone():
    image, truth, _ = drawn([1.0], Augment(crop=0.1), batch=64)
    assert 0 < int(truth.crowd[truth.valid].sum()) < int(truth.valid.sum())
    gone = (~truth.valid).all(1)
    assert gone.any()
    assert (image[gone] > 250).flatten(1).any(1).sum() == 0


def test_grids_come_in_the_given_shares():
    made = plan_mosaics(Order(100, 4000, 0), 0, Place(), [0.4, 0.3, 0.3])
    sides = made.side[made.place == 0]
    for k, share in ((1, 0.4), (2, 0.3), (3, 0.3)):
        assert abs(float((sides == k).float().mean()) - share) < 0.03


def test_processes_share_the_same_mosaics():
    whole, truth, _ = drawn([0.4, 0.3, 0.3], Augment(crop=0.5, flip=True), step=5)
    parts = [drawn([0.4, 0.3, 0.3], Augment(crop=0.5, flip=True), step=5, place=Place(r, 2)) for r in range(2)]
    assert torch.equal(torch.cat([p[0] for p in parts]), whole)
    for r in range(2):
        mine = parts[r][1]
        n = mine.boxes.shape[1]
        assert torch.equal(mine.boxes, truth.boxes[4 * r : 4 * r + 4, :n])


def test_shares_are_read_or_refused():
    assert parse_shares("0.4 0.3 0.3") == [0.4, 0.3, 0.3]
    assert parse_shares("") == [1.0]
    for bad in ("0.4 0.4", "a b", "1.5 -0.5"):
        with pytest.raises(ValueError, match=r"augment.mosaic holds the shares .* got"):
            parse_shares(bad)


def test_pictures_without_boxes_make_images_without_boxes():
    pixels, pictures = painted()
    none = pictures._replace(valid=torch.zeros(6, 2).bool())
    made = plan_mosaics(Order(6, 4, 0), 0, Place(), [0.5, 0.5])
    _, truth = draw_mosaics(pixels[made.picture], none, made, Augment())
    assert truth.boxes.shape == (4, 0, 4)
