import pytest
import torch
from PIL import Image

from stringpe import box3d
from stringpe.geometry.draw_boxes import BLUE, GREEN, outline_boxes3d, write_sheet

K = torch.tensor([[100.0, 0, 50], [0, 100, 40], [0, 0, 1]])


def cube(x=0.0, y=0.0, z=5.0, side=1.0):
    return box3d.from_parts(torch.tensor([x, y, z]), torch.eye(3), torch.full((3,), side))[None]


class TestDraw:
    def test_lines_lie_where_the_box_is(self):
        dark = torch.zeros(3, 80, 100, dtype=torch.uint8)
        out = outline_boxes3d(dark, K, [(cube(), GREEN)], scale=3)
        assert out.shape == (240, 300, 3)
        lit = (out[..., 1] > 100).nonzero()
        low, high = lit.amin(0), lit.amax(0)
        half = 3 * 50 / 4.5
        assert (low - torch.tensor([120 - half, 150 - half])).abs().max() < 3
        assert (high - torch.tensor([120 + half, 150 + half])).abs().max() < 3
        assert (out[120, 150] == 0).all()  # nothing in the middle

    def test_layers_have_their_colours_and_the_later_lies_above(self):
        dark = torch.zeros(3, 80, 100, dtype=torch.uint8)
        out = outline_boxes3d(dark, K, [(cube(), GREEN), (cube(), BLUE)])
        assert (out[..., 2] > 200).any()
        assert (out[..., 1] <= BLUE[1]).all()

    def test_boxes_far_outside_leave_the_picture_and_the_other_boxes_as_they_are(self):
        dark = torch.zeros(3, 80, 100, dtype=torch.uint8)
        far = cube(x=1e6, z=0.06)
        assert torch.equal(outline_boxes3d(dark, K, [(far, GREEN)]), outline_boxes3d(dark, K, []))
        assert torch.equal(
            outline_boxes3d(dark, K, [(torch.cat([far, cube()]), GREEN)]), outline_boxes3d(dark, K, [(cube(), GREEN)])
        )

    def test_other_images_are_refused(self):
        with pytest.raises(ValueError, match=r"uint8 \(3, h, w\), got torch.float32 \(3, 8, 8\)"):
            outline_boxes3d(torch.zeros(3, 8, 8), K, [])


def test_a_sheet_holds_every_picture_once(tmp_path):
    red, blue = (torch.tensor(c, dtype=torch.uint8).expand(30, 40, 3) for c in ([255, 0, 0], [0, 0, 255]))
    path = write_sheet(
        [[red, blue], [blue, red]], columns=["a", "b"], rows=["one", "two"], path=tmp_path / "new" / "x.png"
    )
    with Image.open(path) as picture:
        assert picture.width > 80
        assert picture.height > 60
        colours = {c: n for n, c in picture.getcolors(1 << 16)}
    assert colours[(255, 0, 0)] == colours[(0, 0, 255)] == 2 * 30 * 40
    with pytest.raises(ValueError, match="every row needs 2 pictures"):
        write_sheet([[red]], columns=["a", "b"], path=tmp_path / "y.png")


def test_more_columns_than_fit_go_below(tmp_path):
    red = torch.tensor([255, 0, 0], dtype=torch.uint8).expand(30, 40, 3)
    sizes = {}
    for count in (4, 10):
        path = write_sheet([[red] * count], columns=["a"] * count, path=tmp_path / f"{count}.png", abreast=4)
        with Image.open(path) as picture:
            sizes[count] = picture.size
            assert {c: n for n, c in picture.getcolors(1 << 16)}[(255, 0, 0)] == count * 30 * 40
    assert sizes[10] == (sizes[4][0], 3 * sizes[4][1])
