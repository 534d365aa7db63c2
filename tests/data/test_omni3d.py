import json
import math
import re

import pytest
import torch

from stringpe import box3d
from stringpe.data import omni3d
from stringpe.metrics.average_precision3d import ScoredBoxes

K = [[500.0, 0, 320], [0, 500, 240], [0, 0, 1]]


def turned(angle):
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, 0, s], [0, 1, 0], [-s, 0, c]], dtype=torch.float64)


def picture(number=7, boxes=2):
    centre = torch.tensor([[0.1, 0.2, 3.0], [-1.0, 0.3, 4.0]], dtype=torch.float64)[:boxes]
    frame = torch.stack([turned(0.3), turned(2.0)])[:boxes]
    size = torch.tensor([[2.0, 0.5, 1.0], [0.3, 0.4, 0.5]], dtype=torch.float64)[:boxes]
    return omni3d.Picture(
        id=number,
        path=f"kitchen/{number}.jpg",
        width=640,
        height=480,
        intrinsics=torch.tensor(K, dtype=torch.float64),
        boxes=box3d.from_parts(centre, frame, size),
        labels=torch.tensor([1, 0])[:boxes],
        ignore=torch.tensor([False, True])[:boxes],
    )


def file(tmp_path, change=None, pictures=None):
    content = omni3d.dataset(pictures or [picture()], ["mug", "table"], [12, 40])
    if change:
        change(content)
    path = tmp_path / "data.json"
    path.write_text(json.dumps(content))
    return path


class TestConventions:
    def test_corners_as_omni3d_draws_them(self):
        """v0 is left, up and front of a box that is not turned; v1 is to its right, v3 below it, v4 behind it."""
        box = box3d.from_parts(torch.zeros(3).double(), torch.eye(3).double(), torch.tensor([2.0, 4.0, 6.0]).double())
        v = omni3d.corners(box).tolist()
        assert v[0] == [-1, -2, -3]
        assert v[1] == [1, -2, -3]
        assert v[2] == [1, 2, -3]
        assert v[3] == [-1, 2, -3]
        assert v[4] == [-1, -2, 3]
        assert v[6] == [1, 2, 3]
        assert v[7] == [-1, 2, 3]

    def test_dimensions_are_width_height_length_along_z_y_x(self):
        out = omni3d.dataset([picture()], ["mug", "table"])["annotations"][0]
        assert out["dimensions"] == [1.0, 0.5, 2.0]
        corner = torch.tensor(out["bbox3D_cam"])
        assert (corner[1] - corner[0]).norm().item() == pytest.approx(2.0)  # length
        assert (corner[3] - corner[0]).norm().item() == pytest.approx(0.5)  # height
        assert (corner[4] - corner[0]).norm().item() == pytest.approx(1.0)  # width

    def test_corners_give_the_box_back(self):
        boxes = picture().boxes
        torch.testing.assert_close(omni3d.from_corners(omni3d.corners(boxes)), boxes)

    def test_corners_in_another_order_are_refused(self):
        with pytest.raises(ValueError, match="in the order v0 … v7"):
            omni3d.from_corners(box3d.corners(picture().boxes))
        with pytest.raises(ValueError, match="no two the same"):
            omni3d.from_corners(torch.zeros(8, 3).double())


class TestRead:
    def test_what_was_written_is_read(self, tmp_path):
        out = omni3d.read(file(tmp_path))
        assert out.names == ("mug", "table")
        assert out.ids == (12, 40)
        assert out.problems == ()
        (image,) = out.images
        assert (image.id, image.path, image.width, image.height) == (7, "kitchen/7.jpg", 640, 480)
        torch.testing.assert_close(image.boxes, picture().boxes)
        assert image.labels.tolist() == [1, 0]
        assert image.ignore.tolist() == [False, True]
        assert image.intrinsics.tolist() == K

    def test_corners_alone_are_enough(self, tmp_path):
        def change(content):
            for annotation in content["annotations"]:
                annotation["R_cam"] = -1
                del annotation["dimensions"]

        out = omni3d.read(file(tmp_path, change))
        torch.testing.assert_close(out.images[0].boxes, picture().boxes)
        assert out.problems == ()

    def test_images_without_objects_stay(self, tmp_path):
        out = omni3d.read(file(tmp_path, pictures=[picture(1, boxes=0), picture(2)]))
        assert [len(image.boxes) for image in out.images] == [0, 2]
        assert out.images[0].boxes.shape == (0, 12)

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"dimensions": [1.0, 0.0, 2.0]}, "not all above 0"),
            ({"dimensions": [1.0, float("nan"), 2.0], "bbox3D_cam": -1}, "neither bbox3D_cam nor"),
            ({"R_cam": [[1, 0, 0], [0, 1, 0], [0, 0, 3]]}, "not a rotation"),
            ({"R_cam": [[1, 0, 0], [0, 1, 0], [0, 0, -1]]}, "not a rotation"),
            ({"R_cam": [[0, 0, 0], [0, 0, 0], [0, 0, 0]]}, "not a rotation"),
            ({"category_id": 99}, "category 99 or its image 7 is not here"),
            ({"image_id": 99}, "category 40 or its image 99 is not here"),
            ({"category_id": [1]}, "not an annotation"),
            ({"truncation": None}, "not an annotation"),
        ],
    )
    def test_one_corrupt_annotation_is_named_and_left_out(self, tmp_path, change, words):
        out = omni3d.read(file(tmp_path, lambda content: content["annotations"][0].update(change)))
        assert len(out.images[0].boxes) == 1
        (problem,) = out.problems
        assert problem.startswith("annotation 0: ")
        assert words in problem

    def test_what_is_not_an_annotation_at_all(self, tmp_path):
        out = omni3d.read(file(tmp_path, lambda content: content["annotations"].append("oops")))
        assert len(out.images[0].boxes) == 2
        assert "annotation 'oops'" in out.problems[0]

    def test_corners_win_over_parts_that_contradict_them(self, tmp_path):
        """Dimensions in another order, the usual mistake: the corners say what was meant."""
        out = omni3d.read(file(tmp_path, lambda c: c["annotations"][0].update(dimensions=[2.0, 0.5, 1.0])))
        torch.testing.assert_close(out.images[0].boxes, picture().boxes)
        assert "annotation 0: bbox3D_cam contradicts" in out.problems[0]

    def test_boxes_that_the_file_calls_unreliable_do_not_count(self, tmp_path):
        def change(content):
            content["annotations"][0]["behind_camera"] = True
            content["annotations"][1] |= {"valid3D": False, "dimensions": [-1, -1, -1], "R_cam": -1, "bbox3D_cam": -1}

        out = omni3d.read(file(tmp_path, change))
        assert out.problems == ()  # the second has no box at all, as the file says
        assert out.images[0].ignore.tolist() == [True]

    @pytest.mark.parametrize(
        "change",
        [{"visibility": 0.0}, {"truncation": 1.0}, {"lidar_pts": 0}, {"segmentation_pts": 0}, {"depth_error": 1}],
    )
    def test_objects_that_are_hardly_seen_do_not_count(self, tmp_path, change):
        out = omni3d.read(file(tmp_path, lambda content: content["annotations"][0].update(change)))
        assert out.images[0].ignore.tolist() == [True, True]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"K": [[0, 0, 0]] * 3}, "not a camera"),
            ({"width": "640"}, "whole numbers"),
            ({"id": "1"}, "id is not a whole number"),
            ({"file_path": None}, "file_path"),
        ],
    )
    def test_images_that_cannot_be_used(self, tmp_path, change, words):
        out = omni3d.read(file(tmp_path, lambda c: c["images"][0].update(change), [picture(1), picture(2)]))
        assert [image.id for image in out.images] == [2]
        assert words in out.problems[0]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"center_cam": [0, 0, 1e30]}, "center_cam .* is beyond 10000 m"),
            ({"dimensions": [1, 1, 5e3]}, "dimensions .* is beyond 1000 m"),
            ({"bbox3D_cam": [[0, 0, 1e30]] * 8}, "bbox3D_cam reaches beyond"),
            ({"truncation": "much"}, "not an annotation"),
            ({"center_cam": [0, 0, 10**400], "bbox3D_cam": None}, "neither bbox3D_cam nor center_cam"),
        ],
    )
    def test_places_and_sizes_that_cannot_be_are_named(self, tmp_path, change, words):
        out = omni3d.read(file(tmp_path, lambda c: c["annotations"][0].update(change)))
        assert len(out.images[0].boxes) == 1
        assert re.search(words, out.problems[0])

    def test_ids_that_are_there_twice(self, tmp_path):
        out = omni3d.read(file(tmp_path, lambda c: c["images"].append(c["images"][0] | {"width": 9})))
        assert [(image.id, image.width) for image in out.images] == [(7, 640)]
        assert out.problems == ("image 7: an earlier image has this id, and that one is used",)
        with pytest.raises(ValueError, match="several categories have the id 12"):
            omni3d.read(file(tmp_path, lambda c: c["categories"].append({"id": 12, "name": "cup"})))

    def test_other_files_are_refused_in_words(self, tmp_path):
        (tmp_path / "a.json").write_text("{")
        with pytest.raises(ValueError, match=r"a.json is not valid JSON"):
            omni3d.read(tmp_path / "a.json")
        (tmp_path / "b.json").write_text("[]")
        with pytest.raises(ValueError, match="needs the lists images, annotations, categories"):
            omni3d.read(tmp_path / "b.json")
        with pytest.raises(ValueError, match="every category needs a whole number as id"):
            omni3d.read(file(tmp_path, lambda c: c["categories"].append({"id": 1})))


def test_results_have_the_fields_of_the_format():
    box = picture().boxes
    entries = omni3d.results(
        ScoredBoxes(box, torch.tensor([1, 0]), torch.tensor([0.75, 0.5])), 7, torch.tensor(K), [12, 40]
    )
    json.dumps(entries)
    first = entries[0]
    assert (first["image_id"], first["category_id"], first["score"]) == (7, 40, 0.75)
    assert first["dimensions"] == [1.0, 0.5, 2.0]
    assert first["depth"] == 3.0
    torch.testing.assert_close(torch.tensor(first["bbox3D"]).double(), omni3d.corners(box[0]), atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.tensor(first["pose"]).double(), turned(0.3), atol=1e-6, rtol=0)
    x, y, w, h = first["bbox"]
    centre = torch.tensor(K) @ box[0, :3].float()
    u, v = (centre[:2] / centre[2]).tolist()
    assert x < u < x + w
    assert y < v < y + h


def test_a_box_behind_the_camera_has_no_place_in_the_image():
    box = picture().boxes[:1].clone()
    box[:, 2] = -5
    entries = omni3d.results(ScoredBoxes(box, torch.tensor([0]), torch.tensor([0.5])), 7, torch.tensor(K), [12])
    assert entries[0]["bbox"] == [-1.0, -1.0, 0.0, 0.0]
