import json

import pytest

from stringpe.data.coco import clean_name, read_coco


def content(**changes):
    images = [
        {"id": 7, "file_name": "a.png", "width": 40, "height": 30},
        {"id": 9, "file_name": "b.png", "width": 20, "height": 20},
    ]
    annotations = [
        {"id": 1, "image_id": 7, "category_id": 5, "bbox": [1, 2, 10, 12], "area": 99.5, "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 2, "bbox": [30, 20, 20, 20]},
        {"id": 3, "image_id": 7, "category_id": 2, "bbox": [0, 0, 5, 5], "iscrowd": 1},
    ]
    categories = [{"id": 5, "name": "traffic_light"}, {"id": 2, "name": "Dog"}]
    return {"images": images, "annotations": annotations, "categories": categories} | changes


def written(tmp_path, data):
    path = tmp_path / "boxes.json"
    path.write_text(json.dumps(data))
    return path


def test_a_file_is_read(tmp_path):
    found = read_coco(written(tmp_path, content()))
    assert found.names == ("dog", "traffic light")  # by id; the first class is a class like the others
    assert found.ids == (2, 5)
    first, second = found.pictures
    assert first.boxes == ((1, 2, 11, 14), (30, 20, 40, 30), (0, 0, 5, 5))  # the second is cut at the border
    assert first.labels == (1, 0, 0)
    assert first.crowd == (False, False, True)
    assert first.areas == (99.5, 400, 25)
    assert second.boxes == ()
    assert not found.lvis
    assert not found.problems


def test_it_goes_back_to_cocos_format(tmp_path):
    data = read_coco(written(tmp_path, content())).dataset()
    assert [i["id"] for i in data["images"]] == [7, 9]
    assert data["annotations"][0] == content()["annotations"][0]
    assert data["annotations"][1]["bbox"] == [30, 20, 10, 10]
    assert [c["id"] for c in data["categories"]] == [2, 5]


BAD = [
    ({"image_id": 7, "category_id": 5, "bbox": [1, 1, 0, 5]}, "has no area"),
    ({"image_id": 7, "category_id": 5, "bbox": [1, 1, 4, -5]}, "has no area"),
    ({"image_id": 7, "category_id": 5, "bbox": [50, 1, 4, 5]}, "lies outside of the 40 × 30 picture"),
    ({"image_id": 7, "category_id": 5, "bbox": [float("nan"), 1, 4, 5]}, "is not finite"),
    ({"image_id": 7, "category_id": 5, "bbox": [1, 2, 3]}, "not enough values"),
    ({"image_id": 7, "category_id": 5, "bbox": ["x", 2, 3, 4]}, "could not convert"),
    ({"image_id": 7, "category_id": 5}, "has no 'bbox'"),
    ({"image_id": 8, "category_id": 5, "bbox": [1, 1, 4, 5]}, "there is no image 8"),
    ({"image_id": 7, "category_id": 1, "bbox": [1, 1, 4, 5]}, "there is no category 1"),
    ({"category_id": 1, "bbox": [1, 1, 4, 5]}, "has no 'image_id'"),
    ("nonsense", "annotation nonsense"),
    (None, "annotation None"),
    ({"image_id": 7, "category_id": 5, "bbox": [1, 1, 4, 5], "area": float("nan")}, "area nan is not a finite number"),
    ({"image_id": 7, "category_id": 5, "bbox": [1, 1, 4, 5], "area": -2}, "area -2 is not a finite number above 0"),
    ({"image_id": 7, "category_id": 5, "bbox": [1, 1, 4, 5], "area": "big"}, "could not convert"),
    ({"image_id": [7], "category_id": 5, "bbox": [1, 1, 4, 5]}, "unhashable"),
    ({"image_id": 7, "category_id": {}, "bbox": [1, 1, 4, 5]}, "unhashable"),
    ({"image_id": 7, "category_id": 5, "bbox": 4}, "not iterable"),
    ({"image_id": 7, "category_id": 5, "bbox": [1, 1, 10**400, 5]}, "too large"),
    ([7, 5], "annotation [7, 5]"),
]


@pytest.mark.parametrize(("bad", "reason"), BAD)
def test_one_bad_annotation_is_counted_and_named(tmp_path, bad, reason):
    data = content()
    data["annotations"].insert(1, {"id": 17} | bad if isinstance(bad, dict) else bad)
    with pytest.warns(RuntimeWarning, match=r"1 entries of .* cannot be used and are left out") as told:
        found = read_coco(written(tmp_path, data))
    assert reason in str(told[0].message)
    assert len(found.problems) == 1
    assert [len(p.boxes) for p in found.pictures] == [3, 0]


BAD_IMAGES = [
    ({"width": None}, "it needs id, width, height and file_name"),
    ({"width": "40"}, "the first three as whole numbers"),
    ({"height": 30.5}, "the first three as whole numbers"),
    ({"height": 0}, "it needs id, width, height and file_name"),
    ({"id": "7"}, "it needs id, width, height and file_name"),
    ({"id": [7]}, "it needs id, width, height and file_name"),
    ({"file_name": 3}, "it needs id, width, height and file_name"),
    ({"neg_category_ids": 3}, "must be lists"),
]


@pytest.mark.parametrize(("change", "reason"), BAD_IMAGES)
@pytest.mark.filterwarnings("ignore:.*there is no image 7")
def test_a_bad_image_takes_its_boxes_along(tmp_path, change, reason):
    data = content()
    data["images"][0] |= change
    with pytest.warns(RuntimeWarning, match=rf"entries of .* image .*: .*{reason}"):
        found = read_coco(written(tmp_path, data))
    assert [p.id for p in found.pictures] == [9]


def test_an_image_id_that_is_there_twice_is_named_and_used_once(tmp_path):
    data = content()
    data["images"].insert(1, {"id": 7, "file_name": "c.png", "width": 9, "height": 9})
    with pytest.warns(RuntimeWarning, match="image 7: an earlier image has this id, and that one is used"):
        found = read_coco(written(tmp_path, data))
    assert [(p.id, p.file, p.width) for p in found.pictures] == [(7, "a.png", 40), (9, "b.png", 20)]


BAD_FILES = [
    ("{", "is not valid JSON"),
    ("3", "not subscriptable"),
    ("[]", "list indices"),
    ('{"images": [], "annotations": []}', "it has no 'categories'"),
    ('{"images": {}, "annotations": [], "categories": []}', "must be lists"),
    ('{"images": [], "annotations": [], "categories": [3]}', "not subscriptable"),
    ('{"images": [], "annotations": [], "categories": [{"id": "a", "name": "b"}]}', "a whole number as id"),
    ('{"images": [], "annotations": [], "categories": [{"id": 1, "name": 2}]}', "a text as name"),
]


@pytest.mark.parametrize(("text", "reason"), BAD_FILES)
def test_files_of_another_kind_are_refused_with_their_name(tmp_path, text, reason):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=rf"x\.json is not a COCO annotation file .*{reason}"):
        read_coco(tmp_path / "x.json")


def test_files_without_pictures_or_with_one_id_for_two_classes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"is not a COCO annotation file .*No such file"):
        read_coco(tmp_path / "missing.json")
    with pytest.raises(ValueError, match=r"has 0 usable pictures and 2 categories"):
        read_coco(written(tmp_path, content(images=[], annotations=[])))
    twice = [{"id": 5, "name": "dog"}, {"id": 5, "name": "cat"}]
    with pytest.raises(ValueError, match=r"several categories with the id 5"):
        read_coco(written(tmp_path, content(categories=twice)))


def test_a_limit_takes_the_first_pictures(tmp_path):
    found = read_coco(written(tmp_path, content()), limit=1)
    assert [p.id for p in found.pictures] == [7]
    data = content()
    data["images"].reverse()
    assert [len(p.boxes) for p in read_coco(written(tmp_path, data), limit=1).pictures] == [0]


def test_files_of_lvis_keep_what_their_images_were_checked_for(tmp_path):
    data = content()
    data["images"][0] |= {"neg_category_ids": [5, 77], "not_exhaustive_category_ids": [2]}
    data["images"][1] |= {"neg_category_ids": [], "not_exhaustive_category_ids": []}
    for image in data["images"]:
        image["coco_url"] = f"http://images.cocodataset.org/val2017/{image.pop('file_name')}"
    data["categories"][0]["frequency"] = "c"
    found = read_coco(written(tmp_path, data))
    assert found.lvis
    assert found.frequency == ("r", "c")
    assert found.pictures[0].file == "val2017/a.png"
    assert found.pictures[0].negative == {1}
    assert found.pictures[0].partial == {0}
    again = found.dataset()["images"][0]
    assert again["neg_category_ids"] == [5]
    assert again["not_exhaustive_category_ids"] == [2]


def test_names_as_texts_have_them():
    assert [clean_name(n) for n in ("baseball_bat", "bat_(animal)", "TV", "_(x)")] == [
        "baseball bat",
        "bat",
        "tv",
        "_(x)",
    ]
    assert clean_name("pottedplant") == "potted plant"
