"""Damaged and hostile input on every path that reads data: counted and named, or refused in words; never a crash."""

import json
import os
import random
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mutate import mutate

from captioned_files import bomb, depth, picture, shard, words
from stringpe.data import omni3d
from stringpe.data.boxes2d import load_boxes2d
from stringpe.data.boxes3d import load_boxes3d
from stringpe.data.captioned_batches import load_captioned
from stringpe.data.captioned_images import FolderCaptions
from stringpe.data.coco import read_coco
from stringpe.data.images import PictureFiles
from stringpe.data.labelled_batches import load_labelled
from stringpe.data.labelled_images import FolderSet
from stringpe.io.pictures import BadSample
from stringpe.recipes.schema import Data

BAD_PICTURES = {
    "bomb": bomb(20_000, 20_000),
    "large": bomb(8200, 8200),
    "cut": picture()[:40],
    "empty": b"",
    "text": b"not a picture",
    "script": b"%!PS-Adobe-3.0 EPSF-3.0\n",
}
K = [[20.0, 0, 10], [0, 20, 8], [0, 0, 1]]


def coco_content(count):
    images = [{"id": i, "file_name": f"{i}.png", "width": 20, "height": 16} for i in range(count)]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 5, 6], "area": 30} for i in range(count)]
    return {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "dog"}]}


def omni3d_content(count):
    images = [{"id": i, "file_path": f"{i}.png", "width": 20, "height": 16, "K": K} for i in range(count)]
    box = {"category_id": 1, "center_cam": [0, 0, 2], "dimensions": [1, 1, 1], "R_cam": torch.eye(3).tolist()}
    boxes = [{"id": i, "image_id": i, **box} for i in range(count)]
    return {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "dog"}]}


def count_read(kind, folder, bad):
    """How many of three samples a path reads, of which the second's picture is bad."""
    contents = [picture(), bad, picture(200)]
    size = {"image_size": 16, "num_classes": 2}
    if kind in ("labelled", "captioned", "depth"):
        extra = {"cls": b"1", "json": words("a dog"), "depth.png": depth()}
        samples = {str(i): extra | {"png": content} for i, content in enumerate(contents)}
        if kind == "depth":
            samples = {
                str(i): extra | {"png": picture(), "depth.png": c} for i, c in enumerate((depth(), bad, depth()))
            }
        path = str(shard(folder / "s.tar", samples))
        data = Data(source="shards", train=path, val=path, **size)
        return (
            len(load_labelled(data, "train")[0]["label"])
            if kind == "labelled"
            else len(load_captioned(data, "train", kind == "depth"))
        )
    (folder / "pictures" / "a").mkdir(parents=True)
    (folder / "pictures" / "b").mkdir()
    where = folder / "pictures" / "a" if kind == "folder" else folder / "pictures"
    for i, content in enumerate(contents):
        (where / f"{i}.png").write_bytes(content)
    source = kind if kind in ("coco", "omni3d") else "folder"
    data = Data(source=source, train=str(folder / "pictures"), val=str(folder / "pictures"), **size)
    if kind == "folder":
        return len(load_labelled(data, "train")[0]["label"])
    content = coco_content(3) if kind == "coco" else omni3d_content(3)
    (folder / "pictures.json").write_text(json.dumps(content))
    return len(load_boxes2d(data, "train") if kind == "coco" else load_boxes3d(data, "train", False))


@pytest.mark.parametrize("bad", BAD_PICTURES)
@pytest.mark.parametrize("kind", ["labelled", "folder", "captioned", "depth", "coco", "omni3d"])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bad_picture_is_left_out_and_named_on_every_path(kind, bad, tmp_path):
    with pytest.warns(RuntimeWarning, match=r"1 .* cannot be used and are left out: .*1"):
        assert count_read(kind, tmp_path, BAD_PICTURES[bad]) == 2


@pytest.mark.parametrize("bad", BAD_PICTURES)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_bad_picture_of_a_robot_breaks_its_episode_and_nothing_else(bad):
    pytest.importorskip("pyarrow")
    from stringpe.robots.data.columns import DEPTH, IMAGES
    from stringpe.robots.data.pack import _fit_picture
    from stringpe.robots.data.parquet import BrokenEpisode, decode

    for key in (IMAGES + "top", DEPTH + "top"):
        with pytest.raises(BrokenEpisode, match=f"a picture of {key} cannot be decoded"):
            decode(key, BAD_PICTURES[bad])
        with pytest.raises(BrokenEpisode, match=f"a picture of {key} cannot be decoded"):
            _fit_picture(key, BAD_PICTURES[bad], 16, 80, 1)


def read_captions(path):
    (path.parent / "0.png").write_bytes(picture())
    found = FolderCaptions(str(path.parent))
    return found.captions(0)


READERS = {
    "coco": (coco_content(3), read_coco, "a.json"),
    "omni3d": (omni3d_content(3), omni3d.read, "a.json"),
    "captions": ({"images": [{"id": 1, "file_name": "0.png"}], "annotations": [{"image_id": 1, "caption": "a"}]},
                 read_captions, "captions.json"),
    "rows": ([{"file": "0.png", "captions": ["a", "b"]}], read_captions, "captions.json"),
}  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(READERS)), st.integers(0, 2**32), st.integers(1, 4))
def test_annotations_of_any_shape_are_used_or_refused_in_words(kind, seed, changes):
    content, read, name = READERS[kind]
    dice = random.Random(seed)
    for _ in range(changes):
        content = mutate(content, dice)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / name
        path.write_text(json.dumps(content))
        try:
            found = read(path)
        except (ValueError, BadSample):  # anything else fails the test
            return
        if kind == "coco":
            numbers = [v for p in found.pictures for v in (*p.areas, *(x for box in p.boxes for x in box))]
            assert torch.tensor(numbers).isfinite().all()
            assert len({p.id for p in found.pictures}) == len(found.pictures)
        elif kind == "omni3d":
            assert all(bool(p.boxes.abs().le(1e4).all()) for p in found.images)
            assert len({p.id for p in found.images}) == len(found.images)


@pytest.mark.parametrize("name", ["../secret.png", "pictures/../../secret.png", "{folder}/secret.png", "/dev/zero"])
def test_a_name_in_annotations_cannot_lead_out_of_the_folder(name, tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "secret.png").write_bytes(picture())
    files = PictureFiles(str(tmp_path / "pictures"))
    with pytest.raises(BadSample, match="file not found"):
        files.read(name.format(folder=tmp_path))
    (tmp_path / "pictures" / "7.png").write_bytes(picture())
    assert files.read("train/7.png") == files.read(f"{tmp_path}/pictures/7.png") == picture()


@pytest.mark.parametrize("kind", ["classes", "captions", "annotations"])
def test_a_pipe_among_pictures_is_left_out_and_nobody_waits_for_it(kind, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(picture())
        (tmp_path / name / "0.txt").write_text("a dog")
    os.mkfifo(tmp_path / "a" / "1.png")
    read = {
        "classes": lambda: FolderSet(str(tmp_path)).decode(1),
        "captions": lambda: FolderCaptions(str(tmp_path)).picture(1),
        "annotations": lambda: PictureFiles(str(tmp_path / "a")).decode("1.png"),
    }
    with pytest.raises(BadSample, match=r"1\.png is not an ordinary file"):
        read[kind]()


def test_half_a_surrogate_pair_in_a_caption_ends_nothing(tmp_path):
    pytest.importorskip("tokenizers")
    from stringpe.io.files import write_text
    from stringpe.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.train(["a dog", "a \ud800 cat"], vocab=280)
    assert torch.equal(tokenizer.encode(["a \udfff cat"]), tokenizer.encode(["a ? cat"]))
    write_text(tmp_path / "page.html", "a \ud800 cat")
    assert (tmp_path / "page.html").read_text() == "a \\ud800 cat"
