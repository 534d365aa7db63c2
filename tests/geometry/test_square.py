"""Images padded to squares, and boxes that come back."""

import pytest
import torch
from PIL import Image

from stringpe.geometry.boxes import to_centre
from stringpe.geometry.square import GREY, from_square, to_square


@pytest.mark.parametrize(("width", "height"), [(40, 20), (20, 40), (30, 30)])
def test_a_box_survives_padding_and_back(width, height):
    """Trap 26: images are padded, not stretched; the pad is grey; a box comes back in pixels of the image."""
    image = Image.new("RGB", (width, height), (255, 0, 0))
    image.paste((0, 0, 255), (4, 8, 12, 16))
    square = to_square(image, 80)
    side = max(width, height)
    assert square.shape == (3, 80, 80)
    scale = 80 / side
    rows, columns = ((square[2] > 200) & (square[0] < 60)).nonzero(as_tuple=True)  # the blue part
    for found, low, high in ((columns, 4, 12), (rows, 8, 16)):
        assert abs(int(found.min()) - low * scale) <= 1
        assert abs(int(found.max()) + 1 - high * scale) <= 1
    if width != height:
        assert (square[:, -1, -1] == GREY).all()  # bottom right is padding, whichever side is short
    box = to_centre(torch.tensor([4.0, 8, 12, 16])) / side
    assert torch.allclose(from_square(box, width, height), torch.tensor([4.0, 8, 12, 16]))
    over = from_square(torch.tensor([0.5, 0.5, 1.0, 1.0]), width, height)  # what reaches into the padding is cut
    assert over.tolist() == [0, 0, width, height]


def test_boxes_of_several_images_come_back_at_once():
    box = torch.tensor([0.5, 0.25, 0.5, 0.25]).expand(2, 3, 4)
    width, height = torch.tensor([[100.0], [10.0]]), torch.tensor([[50.0], [20.0]])
    found = from_square(box, width, height)
    assert found[0, 0].tolist() == [25, 12.5, 75, 37.5]
    assert found[1, 2].tolist() == [5, 2.5, 10, 7.5]
