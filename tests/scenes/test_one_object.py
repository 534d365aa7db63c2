"""One object in an empty room: what the demonstration of detection in 3D learns from."""

import torch

from stringpe import box3d, scenes
from stringpe.scenes.one_object import sample_one_object


def test_the_pixels_of_an_object_lie_in_its_box():
    frames = scenes.render(sample_one_object(0, torch.arange(12)), (32, 32))
    assert (frames.visibility > 0.9).all()
    assert len(set(frames.kind[:, 0].tolist())) > 3
    for number in range(12):
        points = frames.points()[number][frames.instance[number] == 1]
        low, high = (box3d.corners(frames.box3d[number, 0]).amin(0), box3d.corners(frames.box3d[number, 0]).amax(0))
        assert len(points) > 30
        assert (points > low - 0.02).all()
        assert (points < high + 0.02).all()


def test_a_room_depends_on_its_number_alone():
    some, others = sample_one_object(3, torch.tensor([4, 9])), sample_one_object(3, torch.tensor([9]))
    for name in ("kind", "size", "pose", "tint"):
        assert torch.equal(getattr(some, name)[1:], getattr(others, name))
