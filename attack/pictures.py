"""Damaged pictures on every path that decodes one: each is used, or left out, counted and named; none is lost in
silence, and none ends the job."""

from __future__ import annotations

import io
import json
import random
import re
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mutate import damage
from PIL import Image
from tally import Tally

from captioned_files import bomb, shard, words
from stringpe.data.cache import forget_all
from stringpe.io.pictures import BadSample
from stringpe.recipes.schema import Data

BATCH = 500
"""Pictures of one data set."""

_KINDS = ("PNG", "JPEG", "WEBP", "BMP", "PPM", "GIF")
_LEFT_OUT = re.compile(r"^(\d+)(?: of \d+)? .* cannot be used and are left out")
_SIZE = {"image_size": 16, "num_classes": 2}

Counts = tuple[int, int]
"""Pictures that were used, and pictures that were left out and named."""


def attack(count: int, seed: int, *, only: tuple[str, ...] = ()) -> Tally:
    """So many damaged pictures on every path."""
    tally, dice = Tally("damaged pictures"), random.Random(seed)
    torch.set_num_threads(1)
    for name, path in PATHS.items():
        if only and name not in only:
            continue
        began, used, left = time.monotonic(), 0, 0
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            contents = _damaged_pictures(size, dice, deep="depth" in name)
            try:
                with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as heard:
                    warnings.simplefilter("always")
                    counts = path(contents, Path(folder), heard)
            except Exception as error:
                tally.judge_never(error, f"{name}, pictures {first} to {first + size - 1} of seed {seed}")
                continue
            finally:
                forget_all()
            used, left = used + counts[0], left + counts[1]
            if sum(counts) != size:
                tally.fault("lost in silence", f"{name}: {counts[0]} used and {counts[1]} named, of {size}")
        tally.count("used", used)
        tally.count("left out, counted and named", left)
        tally.note(f"{name}: {used:,} used, {left:,} left out, {time.monotonic() - began:.0f} s")
    return tally


def _damaged_pictures(count: int, dice: random.Random, deep: bool) -> list[bytes]:
    sound = [_picture(kind, dice, deep) for kind in (("PNG",) if deep else _KINDS)]
    found = []
    for i in range(count):
        if i % 100 == 0:  # whole pictures of sizes that nothing can be done with
            found.append(_oversized(dice, deep))
            continue
        content = dice.choice(sound)
        for _ in range(dice.choice((1, 1, 2, 3))):
            content = damage(content, dice)
        found.append(content)
    return found


def _oversized(dice: random.Random, deep: bool) -> bytes:
    """A picture that claims far too many pixels, or that is far too long."""
    if dice.random() < 0.5:
        return bomb(dice.randint(8_200, 2**31 - 1), dice.randint(8_200, 2**31 - 1))
    long, file = dice.randint(20_000, 60_000), io.BytesIO()
    Image.new("I;16" if deep else "RGB", dice.choice(((long, 1), (1, long)))).save(file, "PNG")
    return file.getvalue()


def _picture(kind: str, dice: random.Random, deep: bool) -> bytes:
    file = io.BytesIO()
    if deep:
        values = [dice.randint(500, 5000) for _ in range(20 * 16)]
        image = Image.new("I;16", (20, 16))
        image.frombytes(b"".join(v.to_bytes(2, "little") for v in values))
    else:
        image = Image.frombytes("RGB", (20, 16), dice.randbytes(20 * 16 * 3))
    image.save(file, kind)
    return file.getvalue()


def _named(heard: Sequence[Any]) -> int:
    """How many samples the warnings say were left out."""
    counts = [int(m[1]) for w in heard if (m := _LEFT_OUT.match(str(w.message)))]
    return max(counts, default=0)


def _loaded(load: Callable[[], Any], count: Callable[[Any], int], heard: Sequence[Any]) -> Counts:
    """What a loader of whole data sets says; a set of which nothing can be read is refused with the count."""
    try:
        used = count(load())
    except ValueError as error:
        found = re.search(r"nothing can be read \((\d+)", str(error))
        if found is None:
            raise
        return 0, int(found[1])
    return used, _named(heard)


def _samples(contents: Sequence[bytes], **others: bytes) -> dict[str, dict[str, bytes]]:
    return {f"{i:05d}": {"png": content, **others} for i, content in enumerate(contents)}


def _tar_labelled(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    from stringpe.data.labelled_batches import load_labelled

    path = str(shard(folder / "s.tar", _samples(contents, cls=b"1")))
    data = Data(source="shards", train=path, val=path, cache=str(folder), **_SIZE)
    return _loaded(lambda: load_labelled(data, "train"), lambda found: len(found[0]["label"]), heard)


def _folder_labelled(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    from stringpe.data.labelled_batches import load_labelled

    for name in "ab":
        (folder / "p" / name).mkdir(parents=True)
    for i, content in enumerate(contents):
        (folder / "p" / "a" / f"{i:05d}.png").write_bytes(content)
    data = Data(source="folder", train=str(folder / "p"), val=str(folder / "p"), **_SIZE)
    return _loaded(lambda: load_labelled(data, "train"), lambda found: len(found[0]["label"]), heard)


def _stream(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    from stringpe.data.labelled_batches import _Parse
    from stringpe.data.tars import stream_samples

    path = shard(folder / "s.tar", _samples(contents, cls=b"1"))
    parse = _Parse(16, 2)
    with path.open("rb") as file:
        return _each(list(stream_samples(file)), lambda sample: parse(*sample))


def _each(items: Sequence[Any], read: Callable[[Any], Any], *refusals: type[Exception]) -> Counts:
    """One call per picture: used, or refused by an exception with a reason."""
    used = 0
    for item in items:
        try:
            read(item)
            used += 1
        except (BadSample, *refusals) as error:
            if len(str(error)) < 12 or "\n" in str(error).strip():
                raise RuntimeError(f"a refusal without words: {error!r}") from error
    return used, len(items) - used


def _pairs(depth: bool, source: str) -> Callable[[Sequence[bytes], Path, Sequence[Any]], Counts]:
    def load(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
        from stringpe.data.captioned_batches import load_captioned

        good = _picture("PNG", random.Random(0), deep=False)
        files = [{"png": good, "depth.png": c} if depth else {"png": c} for c in contents]
        if source == "folder":
            (folder / "p").mkdir()
            for i, each in enumerate(files):
                for kind, content in {**each, "txt": b"a dog"}.items():
                    (folder / "p" / f"{i:05d}.{kind}").write_bytes(content)
            where = str(folder / "p")
        else:
            named = {f"{i:05d}": {**each, "json": words("a dog")} for i, each in enumerate(files)}
            where = str(shard(folder / "s.tar", named))
        data = Data(source=source, train=where, val=where, **_SIZE)
        return _loaded(lambda: load_captioned(data, "train", depth), len, heard)

    return load


def _boxes(kind: str) -> Callable[[Sequence[bytes], Path, Sequence[Any]], Counts]:
    def load(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
        from stringpe.data.boxes2d import load_boxes2d
        from stringpe.data.boxes3d import load_boxes3d

        names = [f"{i:05d}.png" for i in range(len(contents))]
        where = folder / {"zip": "p.zip", "tar": "p.tar"}.get(kind, "p")
        if kind == "zip":
            with zipfile.ZipFile(where, "w") as file:
                for name, content in zip(names, contents, strict=True):
                    file.writestr(name, content)
        elif kind == "tar":
            shard(where, _samples(contents))
        else:
            where.mkdir()
            good = _picture("PNG", random.Random(0), deep=False)
            for name, content in zip(names, contents, strict=True):
                (where / name).write_bytes(good if kind == "depth" else content)
                if kind == "depth":
                    (where / name).with_suffix(".depth.png").write_bytes(content)
        camera = [[20.0, 0, 10], [0, 20.0, 8], [0, 0, 1]]
        images = [
            {"id": i, "file_name": n, "file_path": n, "width": 20, "height": 16, "K": camera}
            for i, n in enumerate(names)
        ]
        content = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "dog"}]}
        (folder / "p.json").write_text(json.dumps(content))
        source = "omni3d" if kind in ("omni3d", "depth") else "coco"
        data = Data(source=source, train=str(where), val=str(where), **_SIZE)
        if source == "coco":
            return _loaded(lambda: load_boxes2d(data, "train"), len, heard)
        return _loaded(lambda: load_boxes3d(data, "train", kind == "depth"), len, heard)

    return load


def _robot(deep: bool, packed: bool) -> Callable[[Sequence[bytes], Path, Sequence[Any]], Counts]:
    def load(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
        from stringpe.robots.data import parquet
        from stringpe.robots.data.columns import DEPTH, IMAGES
        from stringpe.robots.data.pack import _fit_picture

        key = (DEPTH if deep else IMAGES) + "top"
        if packed:
            return _each(contents, lambda c: _fit_picture(key, c, 16, 80, 1), parquet.BrokenEpisode)
        return _each(contents, lambda c: parquet.decode(key, c), parquet.BrokenEpisode)

    return load


def _episodes(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    """Whole episodes, each with one damaged picture, decoded and packed."""
    import numpy as np

    from stringpe.robots.data import parquet
    from stringpe.robots.data.columns import ACTION, COUNTERS, IMAGES, STATE
    from stringpe.robots.data.dataset import Dataset
    from stringpe.robots.data.episodes import episode_path
    from stringpe.robots.data.writer import Writer

    key, numbers = IMAGES + "top", {STATE: np.zeros((1, 2), np.float32), ACTION: np.zeros((1, 2), np.float32)}
    with Writer(folder, fps=10) as writer:
        writer.add(numbers | {key: np.zeros((1, 16, 20, 3), np.uint8)}, task="x", seed=0)
    footer = parquet.Footer(1, "x", 0, {})
    counters = {name: np.zeros(1, np.float32 if name == "timestamp" else np.int64) for name in COUNTERS}
    for i, content in enumerate(contents):
        path = episode_path(folder, i)
        path.parent.mkdir(exist_ok=True)
        parquet.write(path, numbers | {key: [content]} | counters, footer)
    data = Dataset(folder)
    used = sum(1 for _ in data.read_all(data.read))
    return used, len(data.broken)


def _predict(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    from stringpe.tasks.predictor import open_picture

    def read(content: bytes) -> None:
        (folder / "x.png").write_bytes(content)
        open_picture(folder / "x.png")

    return _each(contents, read, ValueError)


def _predict_depth(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    from types import SimpleNamespace

    from stringpe.tasks.predictor import Query, read_query_depth

    recipe: Any = SimpleNamespace(data=Data())
    image = Image.new("RGB", (20, 16))
    query = Query(texts=("x",), depth=folder / "x.depth.png", depth_step=0.001)

    def read(content: bytes) -> None:
        (folder / "x.depth.png").write_bytes(content)
        far = read_query_depth(image, query, recipe)
        assert bool(far.isfinite().all())
        assert float(far.amin()) >= 0

    return _each(contents, read, ValueError)


def _opened(contents: Sequence[bytes], folder: Path, heard: Sequence[Any]) -> Counts:
    """Pictures that another library has opened, as data sets of a hub give them."""
    from stringpe.io.pictures import convert_picture

    def read(content: bytes) -> None:
        try:
            image = Image.open(io.BytesIO(content))
        except Exception as error:
            raise BadSample("the other library refuses it") from error
        convert_picture(image, "x")

    return _each(contents, read)


PATHS: dict[str, Callable[[Sequence[bytes], Path, Sequence[Any]], Counts]] = {
    "labelled tar": _tar_labelled,
    "labelled folder": _folder_labelled,
    "labelled stream": _stream,
    "captioned tar": _pairs(False, "shards"),
    "captioned folder": _pairs(False, "folder"),
    "captioned tar, depth": _pairs(True, "shards"),
    "captioned folder, depth": _pairs(True, "folder"),
    "COCO folder": _boxes("folder"),
    "COCO tar": _boxes("tar"),
    "COCO zip": _boxes("zip"),
    "Omni3D": _boxes("omni3d"),
    "Omni3D, depth": _boxes("depth"),
    "demonstrations": _robot(False, packed=False),
    "demonstrations, depth": _robot(True, packed=False),
    "demonstrations packed": _robot(False, packed=True),
    "demonstrations packed, depth": _robot(True, packed=True),
    "episodes": _episodes,
    "predict": _predict,
    "predict, depth": _predict_depth,
    "opened elsewhere": _opened,
}
"""Every way from a picture's bytes to pixels."""
