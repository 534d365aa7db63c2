import io
import json
import tarfile
import zipfile

import pytest
from PIL import Image

from stringpe.data.coco import read_coco, spoken
from stringpe.data.labelled import CorruptImage
from stringpe.data.picture_files import PictureFiles


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


def test_a_bad_image_takes_its_boxes_along(tmp_path):
    data = content()
    data["images"][0].pop("width")
    with pytest.warns(RuntimeWarning, match=r"1 entries .* image 7: it needs id, width, height and file_name"):
        found = read_coco(written(tmp_path, data))
    assert [p.id for p in found.pictures] == [9]


def test_files_that_are_none(tmp_path):
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(ValueError, match=r"is no COCO annotation file"):
        read_coco(tmp_path / "x.json")
    with pytest.raises(ValueError, match=r"has 0 pictures and 2 categories"):
        read_coco(written(tmp_path, content(images=[], annotations=[])))


def test_a_limit_takes_the_first_pictures(tmp_path):
    found = read_coco(written(tmp_path, content()), limit=1)
    assert [p.id for p in found.pictures] == [7]
    data = content()
    data["images"].reverse()
    assert [len(p.boxes) for p in read_coco(written(tmp_path, data), limit=1).pictures] == [0]


def test_lvis(tmp_path):
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
    assert [spoken(n) for n in ("baseball_bat", "bat_(animal)", "TV", "_(x)")] == ["baseball bat", "bat", "tv", "_(x)"]
    assert spoken("pottedplant") == "potted plant"


def png(shade):
    file = io.BytesIO()
    Image.new("RGB", (4, 3), (shade, 0, 0)).save(file, "png")
    return file.getvalue()


def test_pictures_from_folders_tars_and_zips(tmp_path):
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017" / "a.png").write_bytes(png(10))
    (tmp_path / "bad.png").write_bytes(png(10)[:30])
    for name, mode in (("p.tar", "w"), ("p.tar.gz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as tar:
            tar.add(tmp_path / "train2017" / "a.png", "train2017/a.png")
            tar.add(tmp_path / "bad.png", "bad.png")
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as file:
        file.write(tmp_path / "train2017" / "a.png", "train2017/a.png")
        file.write(tmp_path / "bad.png", "bad.png")
    for where in (tmp_path, tmp_path / "p.tar", tmp_path / "p.tar.gz", tmp_path / "p.zip"):
        files = PictureFiles(str(where))
        assert files.decode("train2017/a.png").getpixel((0, 0)) == (10, 0, 0)
        with pytest.raises(CorruptImage, match=r"c.png: there is no such file"):
            files.decode("train2017/c.png")
        with pytest.raises(CorruptImage, match=r"bad.png: "):
            files.decode("bad.png")
    assert PictureFiles(str(tmp_path / "p.zip")).decode("val/a.png").size == (4, 3)
    assert PictureFiles(str(tmp_path / "train2017")).decode("train2017/a.png").size == (4, 3)
    (tmp_path / "no.zip").write_text("x")
    with pytest.raises(ValueError, match="no zip file"):
        PictureFiles(str(tmp_path / "no.zip"))
    with pytest.raises(ValueError, match=r"data.train=… and data.val=…"):
        PictureFiles("")
