"""One object in an empty room: what the demonstration of detection in 3D learns from."""

import pytest
import torch

from stringpe import box3d, scenes
from stringpe.data.boxes3d import load_boxes3d
from stringpe.data.one_object import KINDS, sample_rooms
from stringpe.recipes.schema import Data


def test_the_pixels_of_an_object_lie_in_its_box():
    frames = scenes.render(sample_rooms(0, torch.arange(12)), (32, 32))
    assert (frames.visibility > 0.9).all()
    assert len(set(frames.kind[:, 0].tolist())) > 3
    for number in range(12):
        points = frames.points()[number][frames.instance[number] == 1]
        low, high = (box3d.corners(frames.box3d[number, 0]).amin(0), box3d.corners(frames.box3d[number, 0]).amax(0))
        assert len(points) > 30
        assert (points > low - 0.02).all()
        assert (points < high + 0.02).all()


def test_a_room_depends_on_its_number_alone():
    some, others = sample_rooms(3, torch.tensor([4, 9])), sample_rooms(3, torch.tensor([9]))
    for name in ("kind", "size", "pose", "tint"):
        assert torch.equal(getattr(some, name)[1:], getattr(others, name))


def test_the_set_names_its_kinds_and_splits_share_no_room(tmp_path):
    data = Data(source="one_object", image_size=32, train_size=9, val_size=5, cache=str(tmp_path))
    train, val = (load_boxes3d(data, split, True) for split in ("train", "val"))
    assert (len(train), len(val)) == (9, 5)
    assert train.names == val.names == KINDS
    assert train.groups == ("all",)
    assert train.label.shape[1] == 1
    rooms = scenes.render(sample_rooms(0, torch.arange(9)), (32, 32))
    assert [KINDS[i] for i in train.label[:, 0]] == [scenes.kinds()[i] for i in rooms.kind[:, 0]]
    torch.testing.assert_close(train.box[:, 0], rooms.box3d[:, 0])
    assert not (train.box[:5] == val.box).all(-1).any()
    with pytest.raises(ValueError, match=r"needs data.train_size and data.val_size"):
        load_boxes3d(Data(source="one_object", image_size=32, train_size=0, val_size=5), "train", True)
