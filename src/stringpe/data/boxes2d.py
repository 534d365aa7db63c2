"""Pictures with boxes for training and evaluation: decoded once into memory, or read by worker processes."""

import itertools
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..geometry.square import GREY, to_square
from ..recipes.schema import Data
from .coco import Annotated, Coco, read_coco
from .labelled import CorruptImage
from .loader import shares
from .mosaic import Pictures
from .picture_files import PictureFiles
from .place import Place

_NAMED = 3  # corrupt pictures that a warning names


@dataclass(frozen=True)
class Boxed:
    """A split: its annotations, the pictures' tensors, and their pixels, uint8 (n, 3, S, S) padded squares, or None
    where they are read when they are wanted. negative and partial: (n, classes) of LVIS, else None, as in `Annotated`.
    problems: what was left out, one line each."""

    coco: Coco
    pictures: Pictures
    pixels: Tensor | None
    files: PictureFiles | None
    side: int
    negative: Tensor | None
    partial: Tensor | None
    problems: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.coco.pictures)


@lru_cache(maxsize=4)
def boxed(data: Data, split: str) -> Boxed:
    """A split of a recipe's data; kept for the next run in this process."""
    if data.source == "scenes":
        return _scenes(data, split)
    if data.source != "coco":
        raise ValueError(f"data.source for detection is coco (COCO or LVIS files) or scenes, got {data.source!r}")
    where = data.train if split == "train" else data.val
    files = PictureFiles(where)
    path = (data.train_boxes if split == "train" else data.val_boxes) or _beside(where)
    found = read_coco(path, data.train_size if split == "train" else data.val_size)
    if not data.in_memory:
        return _whole(found, None, files, data.image_size, found.problems)
    return _decoded(found, files, data.image_size)


def squares(split: Boxed, requests: Iterable[Tensor], workers: int, place: Place) -> Iterator[tuple[Tensor, list[str]]]:
    """Pixels uint8 (u, 3, S, S) on the device for every request, picture numbers (u,); and the names of those that
    could not be decoded, which are grey."""
    if split.pixels is not None:
        pixels = split.pixels.to(place.device)  # once: as many bytes as the set has
        for request in requests:
            yield pixels[request.to(place.device, non_blocking=True)], []
        return
    loader: DataLoader[tuple[Tensor, list[str]]] = DataLoader(
        _Reader(split),
        sampler=requests,
        batch_size=None,  # a request is a batch
        num_workers=workers,
        pin_memory=place.device.type == "cuda",
    )
    for drawn, bad in loader:
        yield drawn.to(place.device, non_blocking=True), list(bad)


def validation(
    split: Boxed, batch: int, workers: int, place: Place
) -> Iterator[tuple[Tensor, Tensor, Tensor, list[str]]]:
    """Pixels, picture numbers (b,), weights (b,) and what could not be decoded, for this process's share of a split."""
    first, second = itertools.tee(shares(len(split), batch, place))
    drawn = squares(split, (index for index, _ in first), workers, place)
    for (pixels, bad), (index, weight) in zip(drawn, second, strict=True):
        yield pixels, index, weight, bad


class _Reader(Dataset[tuple[Tensor, list[str]]]):
    """Requests for many pictures at once."""

    def __init__(self, split: Boxed):
        assert split.files is not None
        self.files, self.side = split.files, split.side
        self.names = [p.file for p in split.coco.pictures]

    def __getitem__(self, request: Tensor) -> tuple[Tensor, list[str]]:
        drawn, bad = torch.full((len(request), 3, self.side, self.side), GREY, dtype=torch.uint8), []
        for i, number in enumerate(request.tolist()):
            try:
                drawn[i] = to_square(self.files.decode(self.names[number]), self.side)
            except CorruptImage as error:
                bad.append(str(error))
        return drawn, bad


def _beside(where: str) -> str:
    """The annotation file that lies beside a folder or an archive of pictures: pictures.tar and pictures.json."""
    path = Path(where)
    stem = path.name if path.is_dir() else path.name.partition(".")[0]
    found = path.with_name(f"{stem}.json")
    if not found.is_file():
        raise ValueError(f"there is no {found} beside {where}: give data.train_boxes=… and data.val_boxes=…")
    return str(found)


def _decoded(found: Coco, files: PictureFiles, side: int) -> Boxed:
    """With all pixels, without the pictures that cannot be decoded."""

    def one(picture: Annotated) -> Tensor | CorruptImage:
        try:
            return to_square(files.decode(picture.file), side)
        except CorruptImage as error:
            return error

    with ThreadPoolExecutor() as pool:  # Pillow lets go of the interpreter while it decodes
        drawn = list(pool.map(one, found.pictures))
    bad = tuple(str(d) for d in drawn if isinstance(d, CorruptImage))
    good = [i for i, d in enumerate(drawn) if isinstance(d, Tensor)]
    listed = "; ".join(bad[:_NAMED]) + ("; …" if len(bad) > _NAMED else "")
    if not good:
        raise ValueError(f"none of the {len(drawn)} pictures can be decoded: {listed}")
    if bad:
        text = f"{len(bad)} of {len(drawn)} pictures cannot be decoded and are left out: {listed}"
        warnings.warn(text, RuntimeWarning, 2)
    pixels = torch.stack([d for d in drawn if isinstance(d, Tensor)])
    kept = replace(found, pictures=tuple(found.pictures[i] for i in good))
    return _whole(kept, pixels, files, side, (*found.problems, *bad))


def _whole(found: Coco, pixels: Tensor | None, files: PictureFiles | None, side: int, bad: tuple[str, ...]) -> Boxed:
    tables: list[Tensor | None] = [None, None]
    if found.lvis:
        tables = [
            _table(found, [p.negative for p in found.pictures]),
            _table(found, [p.partial for p in found.pictures]),
        ]
    return Boxed(found, tensors(found), pixels, files, side, tables[0], tables[1], bad)


def tensors(found: Coco) -> Pictures:
    """The annotations as padded tensors, on the padded square."""
    count, most = len(found.pictures), max(1, *(len(p.boxes) for p in found.pictures))
    size, boxes = torch.zeros(count, 2), torch.zeros(count, most, 4)
    labels, valid, crowd = (
        torch.zeros(count, most).long(),
        torch.zeros(count, most).bool(),
        torch.zeros(count, most).bool(),
    )
    for i, p in enumerate(found.pictures):
        long, n = max(p.width, p.height), len(p.boxes)
        size[i] = torch.tensor([p.width, p.height]) / long
        if n:
            boxes[i, :n] = torch.tensor(p.boxes) / long
            labels[i, :n], crowd[i, :n] = torch.tensor(p.labels), torch.tensor(p.crowd)
            valid[i, :n] = True
    return Pictures(size, boxes, labels, valid, crowd)


def _table(found: Coco, sets: list[frozenset[int]]) -> Tensor:
    table = torch.zeros(len(sets), len(found.ids), dtype=torch.bool)
    for row, some in zip(table, sets, strict=True):
        row[list(some)] = True
    return table


def _scenes(data: Data, split: str) -> Boxed:
    """Frames of the procedural world, with the boxes around what is seen of their objects."""
    from .. import scenes
    from .rendered import frames

    kept = frames(data, split)
    side = data.image_size
    pictures = []
    for number, (instance, kind) in enumerate(zip(kept["instance"], kept["kind"].tolist(), strict=True), 1):
        slots = [i for i, k in enumerate(kind) if k >= 0]
        boxes = tuple(_around(instance == slot + 1) for slot in slots)
        pictures.append(
            Annotated(
                id=number,
                file=f"{split}/{number:06d}",
                width=side,
                height=side,
                boxes=boxes,
                areas=tuple((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes),
                labels=tuple(kind[i] for i in slots),
                crowd=(False,) * len(slots),
                negative=frozenset(),
                partial=frozenset(),
            )
        )
    names = scenes.kinds()
    found = Coco(tuple(names), tuple(range(1, len(names) + 1)), (), tuple(pictures), ())
    return _whole(found, kept["rgb"], None, side, ())


def _around(mask: Tensor) -> tuple[float, float, float, float]:
    """Corners of the smallest box around the true pixels of (H, W)."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    return float(columns[0]), float(rows[0]), float(columns[-1]) + 1, float(rows[-1]) + 1
