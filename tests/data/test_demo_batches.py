"""Augmentation of camera pictures."""

import torch

from stringpe.data.demo_batches import augment_cameras
from stringpe.recipes.schema import Augment


def test_cameras_are_moved_together_with_their_depth():
    image = torch.arange(2 * 3 * 64, dtype=torch.float32).reshape(1, 2, 3, 8, 8).to(torch.uint8)
    depth = image[:, :, 0].float()
    u = torch.tensor([[0.99, 0.01, 0.5, 0.5, 0.5, 0.5, 0.5]])  # 2 rows down, 2 columns left; the second stays
    found, deep = augment_cameras(image, depth, u, Augment(shift=2))
    pixels = (found + 1) * 127.5
    torch.testing.assert_close(pixels[:, 1], image[:, 1].float())
    torch.testing.assert_close(pixels[0, 0, :, :6, 2:], image[0, 0, :, 2:, :6].float())
    torch.testing.assert_close(deep, pixels[:, :, 0])
    plain, _ = augment_cameras(image, None, u, Augment())
    torch.testing.assert_close((plain + 1) * 127.5, image.float())
