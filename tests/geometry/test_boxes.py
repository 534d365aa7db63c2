import pytest
import torch

from stringpe.geometry import boxes


def random_boxes(*shape, seed=0):
    dice = torch.Generator().manual_seed(seed)
    low = torch.rand(*shape, 2, generator=dice, dtype=torch.float64)
    return torch.cat([low, low + torch.rand(*shape, 2, generator=dice, dtype=torch.float64)], -1)


def test_corners_and_centres_are_each_others_inverse():
    a = random_boxes(50)
    assert torch.allclose(boxes.to_corners(boxes.to_centre(a)), a)
    assert boxes.to_centre(torch.tensor([1.0, 2, 5, 10])).tolist() == [3, 6, 4, 8]


def test_iou_of_known_boxes():
    a = torch.tensor([0.0, 0, 2, 2])
    others = torch.tensor(
        [[0.0, 0, 2, 2], [1, 1, 3, 3], [2, 0, 4, 2], [5, 5, 6, 6], [0, 0, 0, 0], [0.5, 0.5, 1.5, 1.5]]
    )
    assert boxes.iou(a, others).tolist() == pytest.approx([1, 1 / 7, 0, 0, 0, 1 / 4])
    # The hull of touching boxes is full; that of boxes apart is 6 × 6 with 5 covered.
    assert boxes.giou(a, others).tolist() == pytest.approx([1, 1 / 7 - 2 / 9, 0, -31 / 36, 0, 1 / 4])


def test_empty_boxes_give_numbers_and_gradients():
    a = torch.zeros(3, 4, requires_grad=True)
    b = torch.tensor([[0.0, 0, 0, 0], [0, 0, 1, 1], [2, 2, 1, 1]])
    value = boxes.giou(a, b) + boxes.iou(a, b)
    assert value.isfinite().all()
    value.sum().backward()
    assert a.grad.isfinite().all()


def test_iou_counts_grid_points():
    a, b = random_boxes(20, seed=1), random_boxes(20, seed=2)
    axis = torch.linspace(0, 2, 801, dtype=torch.float64)
    x, y = torch.meshgrid(axis, axis, indexing="xy")

    def inside(box):
        x0, y0, x1, y1 = box[:, :, None, None].unbind(1)
        return (x > x0) & (x < x1) & (y > y0) & (y < y1)

    both, either = (inside(a) & inside(b)).sum((1, 2)), (inside(a) | inside(b)).sum((1, 2))
    assert torch.allclose(boxes.iou(a, b), both.double() / either, atol=0.02)


def test_boxes_apart_are_drawn_together():
    a = torch.tensor([0.0, 0, 1, 1], requires_grad=True)
    boxes.giou(a, torch.tensor([3.0, 0, 4, 1])).backward()
    assert a.grad[2] > 0  # a larger right edge raises it


def test_clip_moves_corners_into_images_of_different_size():
    a = torch.tensor([[-5.0, -1, 30, 4], [2, 3, 4, 90]])
    assert boxes.clip(a, 20.0, 10.0).tolist() == [[0, 0, 20, 4], [2, 3, 4, 10]]
    assert boxes.clip(a, torch.tensor([10.0, 3]), torch.tensor([3.0, 50])).tolist() == [[0, 0, 10, 3], [2, 3, 3, 50]]


def test_nms_keeps_the_best_of_each_heap():
    a = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [0, 0, 10, 9], [50, 50, 60, 60]])
    assert boxes.nms(a, torch.tensor([0.2, 0.9, 0.5, 0.1]), 0.5).tolist() == [1, 3]
    assert boxes.nms(a[:0], torch.zeros(0), 0.5).tolist() == []
    assert boxes.nms(a, torch.tensor([0.2, 0.9, 0.5, 0.1]), 1).tolist() == [1, 2, 0, 3]
    assert boxes.nms(a, torch.tensor([0.2, 0.9, 0.5, 0.1]), 0.5, torch.tensor([0, 0, 1, 1])).tolist() == [1, 2, 3]
