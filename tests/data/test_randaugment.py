import random

import pytest
from PIL import Image

from stringpe.data.randaugment import OPERATIONS, randaugment


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_keeps_the_size_and_changes_something(name):
    image = Image.effect_noise((24, 24), 20).convert("RGB")
    image.paste((200, 40, 40), (4, 4, 12, 20))
    changed = OPERATIONS[name](image, 0.5, 1.0)
    assert (changed.size, changed.mode) == (image.size, "RGB")
    assert changed.tobytes() != image.tobytes()


def test_the_same_dice_give_the_same_image():
    image = Image.effect_noise((24, 24), 20).convert("RGB")
    first, again = (randaugment(image, 3, 15, random.Random(5)).tobytes() for _ in range(2))
    assert first == again
    assert first != randaugment(image, 3, 15, random.Random(6)).tobytes()


def test_a_magnitude_out_of_range_is_refused():
    with pytest.raises(ValueError, match="ranges from 0 to 30, got 31"):
        randaugment(Image.new("RGB", (4, 4)), 2, 31, random.Random(0))
