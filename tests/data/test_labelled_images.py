"""Sets of labelled images, and the samples that do not arrive."""

import sys
import types

import pytest
from PIL import Image

from captioned_files import picture
from captioned_files import shard as write_shard
from stringpe.data.labelled_images import FolderSet, ShardSet, open_image_set
from stringpe.io.pictures import BadSample


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz"])
@pytest.mark.parametrize("labels", ["cls", "json"])
def test_shards_are_read_at_random(shard, name, labels):
    found = ShardSet(str(shard(name, labels=labels)))
    assert len(found) == 12
    assert [found.label(i) for i in (0, 4, 11)] == [0, 1, 2]
    assert found.decode(7).getpixel((3, 3)) == (70, 185, 7)
    assert found.name(7) == f"{name}/000007"


def test_a_picture_that_cannot_be_decoded_is_named(shard):
    with pytest.raises(BadSample, match=r"^train\.tar/000002: "):
        ShardSet(str(shard(corrupt=(2,)))).decode(2)


def test_samples_without_a_label_are_counted_and_named(tmp_path):
    good = {"png": picture(), "cls": b"1"}
    bad = {
        "none": {"png": picture()},
        "word": good | {"cls": b"cat"},
        "float": {"png": picture(), "json": b'{"label": 1.5}'},
        "list": {"png": picture(), "json": b"[1]"},
        "deep": {"png": picture(), "json": b"[" * 100_000},
        "below": good | {"cls": b"-1"},
        "yes": {"png": picture(), "json": b'{"label": true}'},
        "mute": {"cls": b"1"},
    }
    path = write_shard(tmp_path / "s.tar", {"fine": good, **bad})
    with pytest.warns(RuntimeWarning, match=r"8 of 9 samples of .*s\.tar cannot be used") as told:
        assert len(ShardSet(str(path))) == 1
    for name in list(bad)[:5]:
        assert f"s.tar/{name}: " in str(told[0].message)
    with pytest.raises(ValueError, match=r"no sample of .*bad\.tar can be used: 8 of 8 .*neither a \.cls nor a \.json"):
        ShardSet(str(write_shard(tmp_path / "bad.tar", bad)))


def test_dots_in_folders_lose_no_image_and_a_second_dot_is_explained(tmp_path):
    good = {"png": picture(), "cls": b"1"}
    path = write_shard(tmp_path / "s.tar", dict.fromkeys(("./000", "set.a/000", "set.b/000", "001", "img.001"), good))
    with pytest.warns(RuntimeWarning, match=r"1 of 5 samples .* s.tar/img: it has n.*001.*split at its first dot"):
        found = ShardSet(str(path))
    assert [found.name(i) for i in range(len(found))] == [
        f"s.tar/{k}" for k in ("000", "set.a/000", "set.b/000", "001")
    ]


def test_a_tar_cut_between_picture_and_label_gives_the_samples_before_it(tmp_path):
    good = {"png": picture(), "cls": b"1"}
    content = write_shard(tmp_path / "s.tar", {str(i): good for i in range(3)}).read_bytes()
    (tmp_path / "s.tar").write_bytes(content[: 2048 * 3 - 1024])  # a header and a block per file: without the last
    with pytest.warns(RuntimeWarning, match=r"s\.tar is damaged .*5 files.*; s\.tar/2: it has neither a \.cls"):
        assert len(ShardSet(str(tmp_path / "s.tar"))) == 2


def test_folders_number_classes_by_name(tmp_path):
    for name in ("cat", "ant"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / name / "x.png")
    found = FolderSet(str(tmp_path))
    assert found.classes == ("ant", "cat")
    assert [(found.label(i), found.name(i).split("/")[-2]) for i in range(2)] == [(0, "ant"), (1, "cat")]
    with pytest.raises(ValueError, match="has no images in class folders: it needs one folder per class"):
        FolderSet(str(tmp_path / "cat"))
    (tmp_path / "cat" / "x.png").unlink()
    with pytest.raises(BadSample, match="No such file"):
        found.decode(1)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install datasets"):
        open_image_set("huggingface", "x:train")


def test_hugging_face_columns_are_read(monkeypatch):
    rows = [{"image": Image.new("L", (4, 4), 9), "label": 2}]

    class Table(list):
        def __getitem__(self, key):
            return [r[key] for r in self] if isinstance(key, str) else super().__getitem__(key)

    asked = []
    fake = types.SimpleNamespace(load_dataset=lambda name, split: asked.append((name, split)) or Table(rows))
    monkeypatch.setitem(sys.modules, "datasets", fake)
    found = open_image_set("huggingface", "org/set:validation")
    assert asked == [("org/set", "validation")]
    assert (len(found), found.label(0), found.decode(0).getpixel((0, 0))) == (1, 2, (9, 9, 9))
