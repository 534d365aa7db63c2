"""Pictures with boxes for training and evaluation: decoded once into memory, or read by worker processes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..geometry.square import to_square
from ..io.pictures import BadSample
from ..io.problems import Problems
from ..recipes.schema import Data
from .cache import remember
from .coco import Coco, annotate, collect, join_coco, leave_out, rare_names, read_coco
from .images import PictureFiles
from .loader import Examples, Memory, Request, Row, Workers, read_all, shares, tensors
from .mosaic import PictureBoxes
from .order import Place
from .sources import FILES, READ, add_source, check_source, split_limit, split_place

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class BoxedPictures:
    """A split: its annotations, the pictures' boxes as tensors, and the loader of their pixels, uint8 (3, S, S) padded
    squares. negative and partial: (n, classes) of LVIS, else None, as in `BoxedPicture`. sizes: how many pictures each
    of its data sets has, one after the other; covers: (sets, classes), the classes that a set annotates. problems: what
    was left out."""

    coco: Coco
    pictures: PictureBoxes
    loader: Memory | Workers
    side: int
    negative: Tensor | None
    partial: Tensor | None
    sizes: tuple[int, ...]
    covers: Tensor
    problems: Problems

    def sets(self, picture: Tensor) -> Tensor:
        """The data sets that pictures belong to, by number."""
        return torch.searchsorted(torch.tensor(self.sizes).cumsum(0), picture, right=True)

    def __len__(self) -> int:
        return len(self.coco.pictures)


class BoxSet2D(ABC):
    """Pictures with boxes, picture by picture. annotations: what is in each of them."""

    annotations: Coco

    @abstractmethod
    def decode(self, file: str) -> "Image":
        """The picture with this `BoxedPicture.file` as RGB; BadSample if it cannot be decoded."""


class CocoFiles(BoxSet2D):
    """A COCO or LVIS file (its first `limit` pictures), and the folder, tars or zip of its pictures."""

    def __init__(self, where: str, file: str, limit: int):
        self.files, self.annotations = PictureFiles(where), read_coco(file, limit)

    def decode(self, file: str) -> "Image":
        return self.files.decode(file)


_SETS: dict[str, Callable[[str], BoxSet2D]] = {}


def register_boxes2d(source: str, make: Callable[[str], BoxSet2D], about: str) -> None:
    """Let detection in 2D read `data.source=<source>`, in memory or by workers.

    make: from data.train, or data.val, to the pictures. about: what the source is, in a few words, for error texts.
    """
    add_source("detection2d", source, about, (*FILES, *READ, "mix", "negatives"))
    _SETS[source] = make


@remember
def load_boxes2d(data: Data, split: str) -> BoxedPictures:
    """A split of a recipe's data."""
    check_source("detection2d", data)
    if data.source == "scenes":
        return _from_scenes(data, split)
    places = split_sets(split_place(data, split))
    if split == "val" and len(places) > 1:
        raise ValueError(
            f"data.val names {len(places)} data sets, and validation takes one: evaluate others with stringpe eval RUN "
            f"data.val=…"
        )
    if data.source == "coco":
        files = _find_annotations(data, split, places)
        sets = [CocoFiles(place, file, split_limit(data, split)) for place, file in zip(places, files, strict=True)]
        return _load(sets, places, data, split)
    return _load([_SETS[data.source](place) for place in places], places, data, split)


def split_sets(text: str) -> list[str]:
    """The data sets, or their files, that a text names with " + " between them."""
    return [part.strip() for part in text.split(" + ")]


def _load(sets: Sequence[BoxSet2D], places: Sequence[str], data: Data, split: str) -> BoxedPictures:
    """Data sets side by side, their pictures in memory or read by workers. places: where they come from."""
    limit = split_limit(data, split)
    left_out = rare_names(data.without) if data.without and split == "train" else frozenset()
    kept = [leave_out(_limit(one.annotations, limit), left_out) for one in sets]
    problems = Problems("pictures or annotations", " + ".join(places))
    if not data.in_memory:
        examples = Squares(sets, kept, data.image_size)
        return _assemble(kept, Workers(examples, data.workers, problems), examples.side, problems)
    rows: list[Row] = []
    for number, place in enumerate(places):  # set by set, so that one without a usable picture is named
        examples = Squares(sets[number : number + 1], kept[number : number + 1], data.image_size)
        bad = Problems("pictures", place)
        good = read_all(len(examples), examples.read, bad)
        problems.extend(bad)
        kept[number] = replace(kept[number], pictures=tuple(kept[number].pictures[i] for i in good))
        rows += good.values()
    return _assemble(kept, Memory(examples.stack(rows)), data.image_size, problems)


class Squares(Examples):
    """Pictures on their padded squares, of one data set after the other."""

    def __init__(self, sets: Sequence[BoxSet2D], annotations: Sequence[Coco], side: int):
        self.sets, self.side = sets, side
        self.pictures = [
            (number, p.file, p.width, p.height) for number, one in enumerate(annotations) for p in one.pictures
        ]

    def __len__(self) -> int:
        return len(self.pictures)

    def read(self, i: int) -> Row:
        number, file, width, height = self.pictures[i]
        image = self.sets[number].decode(file)
        if image.size != (width, height):
            raise BadSample(
                f"{file}: it has {image.width} × {image.height} pixels, but its annotations say {width} × {height}"
            )
        return {"pixels": to_square(image, self.side)}


def load_squares(split: BoxedPictures, requests: Iterable[Tensor], place: Place) -> Iterator[tuple[Tensor, Tensor]]:
    """For every request, picture numbers (u,): pixels uint8 (u, 3, S, S) on the device, and the numbers (u,) of the
    pictures that these are. A picture that cannot be decoded is replaced by the next that can, boxes and all."""
    steps = (Request(index, step) for step, index in enumerate(requests))
    for batch, index, _ in split.loader.batches(steps, place, tensors):
        yield batch["pixels"], index


def validation_squares(split: BoxedPictures, batch: int, place: Place) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Pixels (b, 3, S, S), picture numbers (b,) and weights (b,) of this process's share of a split. Padding has weight
    0, and so has a picture that stands in for one that cannot be decoded."""
    parts = list(shares(len(split), batch, place))
    requests = (Request(index, step) for step, (index, _) in enumerate(parts))
    loaded = split.loader.batches(requests, place, tensors)
    for (found, index, wanted), (_, weight) in zip(loaded, parts, strict=True):
        yield found["pixels"], index, torch.where(wanted, weight, 0)


def _find_annotations(data: Data, split: str, places: Sequence[str]) -> list[str]:
    """The annotation files of a split: those that the recipe names, or those beside the pictures."""
    boxes = data.train_boxes if split == "train" else data.val_boxes
    files = split_sets(boxes) if boxes else [_find_beside(place) for place in places]
    if len(files) != len(places):
        raise ValueError(
            f"data.{split} names {len(places)} data sets and data.{split}_boxes {len(files)} files: every data set "
            f"needs its file"
        )
    return files


def _find_beside(where: str) -> str:
    """The annotation file beside a folder or an archive of pictures: pictures.json beside pictures.tar."""
    path = Path(where)
    stem = path.name if path.is_dir() else path.name.partition(".")[0]
    found = path.with_name(f"{stem}.json")
    if not found.is_file():
        raise ValueError(f"there is no {found} beside {where}: give data.train_boxes=… and data.val_boxes=…")
    return str(found)


def _limit(annotations: Coco, count: int) -> Coco:
    return replace(annotations, pictures=annotations.pictures[:count]) if count else annotations


def _assemble(sets: list[Coco], loader: Memory | Workers, side: int, problems: Problems) -> BoxedPictures:
    """A split of these data sets, whose pictures the loader holds one set after the other."""
    found = sets[0] if len(sets) == 1 else join_coco(sets)
    problems.extend(found.problems)
    covers = torch.tensor([[name in one.names for name in found.names] for one in sets])
    sizes = tuple(len(one.pictures) for one in sets)
    tables: list[Tensor | None] = [None, None]
    if found.lvis:
        tables = [
            _table(found, [p.negative for p in found.pictures]),
            _table(found, [p.partial for p in found.pictures]),
        ]
    return BoxedPictures(found, to_tensors(found), loader, side, tables[0], tables[1], sizes, covers, problems)


def to_tensors(found: Coco) -> PictureBoxes:
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
    return PictureBoxes(size, boxes, labels, valid, crowd)


def _table(found: Coco, sets: list[frozenset[int]]) -> Tensor:
    table = torch.zeros(len(sets), len(found.ids), dtype=torch.bool)
    for row, some in zip(table, sets, strict=True):
        row[list(some)] = True
    return table


def _from_scenes(data: Data, split: str) -> BoxedPictures:
    """Frames of the procedural world, with the boxes around what is seen of their objects."""
    from .. import scenes
    from .scene_frames import load_frames

    frames = load_frames(data, split)
    pictures = []
    for number, (instance, kind) in enumerate(zip(frames["instance"], frames["kind"].tolist(), strict=True), 1):
        slots = [i for i, k in enumerate(kind) if k >= 0]
        boxes = [_enclose(instance == slot + 1) for slot in slots]
        size = (data.image_size, data.image_size)
        pictures.append(annotate(number, f"{split}/{number:06d}", size, boxes, [kind[i] for i in slots]))
    found = collect(scenes.kinds(), pictures)
    return _assemble([found], Memory({"pixels": frames["rgb"]}), data.image_size, Problems("frames"))


def _enclose(mask: Tensor) -> tuple[float, float, float, float]:
    """Corners of the smallest box around the true pixels of (H, W)."""
    rows, columns = mask.any(1).nonzero()[:, 0], mask.any(0).nonzero()[:, 0]
    return float(columns[0]), float(rows[0]), float(columns[-1]) + 1, float(rows[-1]) + 1
