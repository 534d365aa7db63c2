"""The one table of data sources: what each is, which tasks it serves, and which keys of a recipe it then reads."""

from pathlib import Path

from ..io.registry import suggest
from ..recipes.schema import Data

SOURCES: dict[str, str] = {
    "synthetic": "coloured spots, made in memory",
    "scenes": "frames of the procedural world, rendered once",
    "one_object": "frames of one object in an empty room, rendered once",
    "shards": "tars in the WebDataset layout",
    "folder": "a folder of images",
    "huggingface": "a data set of the Hugging Face hub",
    "stream": "tars read from end to end, over a network if need be",
    "coco": "pictures with a COCO or LVIS file",
    "omni3d": "pictures with an Omni3D file",
    "demos": "robot demonstrations, a data set's folder or a pack of it",
    "points": "random points in space, drawn anew in every step",
    "clouds": "point clouds with a class each, an .npz",
}
"""Every value of data.source, and what it is."""

_MADE = ("train_size", "val_size", "cache", "seed")
FILES = ("train", "val", "train_size", "val_size")
_BOXES = (*FILES, "train_boxes", "val_boxes")
READ = ("in_memory", "workers")

SERVES: dict[str, dict[str, tuple[str, ...]]] = {
    "classification": {
        "synthetic": ("num_classes", "train_size", "val_size", "seed"),
        "shards": ("num_classes", *FILES, *READ, "cache"),
        "folder": ("num_classes", *FILES, *READ),
        "huggingface": ("num_classes", *FILES, *READ),
        "stream": ("num_classes", *FILES, *READ),  # never kept decoded, in_memory or not
    },
    "objects": {"scenes": (*_MADE, "queries", "cameras")},
    "retrieval": {
        "scenes": _MADE,
        "shards": (*FILES, *READ, "depth_step"),
        "folder": (*FILES, *READ, "depth_step"),
        "stream": (*FILES, "workers", "depth_step"),
    },
    "detection2d": {"scenes": (*_MADE, "negatives"), "coco": (*_BOXES, *READ, "mix", "without", "negatives")},
    "detection3d": {
        "scenes": (*_MADE, "queries"),
        "one_object": (*_MADE, "queries"),
        "omni3d": (*_BOXES, "depth_step", "queries"),
    },
    "policy": {"demos": ("train", "val", "val_size", "cache", "seed")},
    "relations": {"points": ("train_size", "val_size", "seed")},
    "shapes": {"clouds": (*FILES, "cache", "seed", "num_classes", "groups", "group_size", "pose")},
}
"""The sources that serve a task, and what of `data` each of them reads, besides source and image_size."""

AUGMENTS: dict[str, tuple[str, ...]] = {
    "classification": ("crop", "flip", "colour", "randaugment", "magnitude", "mixup", "shift"),
    "objects": ("flip",),
    "retrieval": ("crop", "flip", "colour"),
    "detection2d": ("crop", "flip", "colour", "mosaic"),
    "detection3d": ("flip", "colour"),
    "policy": ("shift", "colour"),
    "relations": (),
    "shapes": ("turn", "stretch"),
}
"""What of `augment` a task reads."""

_SELF_MADE = ("synthetic", "scenes", "one_object", "points")
_BOTH_SPLITS = ("demos", "clouds")  # held-out episodes validate, and a file of clouds has a test set of its own


def add_source(task: str, source: str, about: str, reads: tuple[str, ...]) -> None:
    """Let a task of the package read `data.source=<source>`. about: what the source is, in a few words, for error
    texts; reads: the keys of `data` that it reads, besides source and image_size."""
    if source in SERVES[task]:
        raise ValueError(f"there is a data source named {source!r} already: take another name")
    SOURCES.setdefault(source, about)
    SERVES[task][source] = reads


def check_served(task: str, source: str) -> dict[str, tuple[str, ...]]:
    """The sources of the task, with the keys that each of them reads; ValueError if this one is not among them."""
    serves = SERVES[task]
    if source not in serves:
        listed = ", ".join(f"{name} ({SOURCES[name]})" for name in serves)
        hint = "" if source in SOURCES else suggest(source, serves)
        raise ValueError(f"data.source={source} does not serve the task {task}: {hint}It takes {listed}")
    return serves


def check_source(task: str, data: Data) -> None:
    """Refuse a data.source that does not serve the task, and a place that does not fit the source."""
    check_served(task, data.source)
    if data.source in _SELF_MADE:
        refuse_unread(task, data)
        return
    for split in ("train", "val"):
        where = getattr(data, split)
        if not where and not (split == "val" and data.source in _BOTH_SPLITS):
            raise ValueError(f"data.source={data.source} needs data.{split}=…, {SOURCES[data.source]}; it is empty")
        if data.source in ("shards", "stream") and Path(where).is_dir():
            raise ValueError(f"data.{split}={where} is a folder, not a tar: set data.source=folder, or name its tars")
        if data.source == "folder" and where and not Path(where).is_dir():
            raise ValueError(
                f"data.{split}={where} is not a folder: check the path, or set data.source=shards for tars"
            )


def refuse_unread(task: str, data: Data) -> None:
    """Refuse files that a source which makes its own data would not read, and say which source reads them."""
    given = [f"data.{split}={getattr(data, split)}" for split in ("train", "val") if getattr(data, split)]
    if not given or data.source not in _SELF_MADE:
        return
    other = [name for name in SERVES.get(task, {}) if name not in _SELF_MADE]
    if other:
        guess = "folder" if "folder" in other and Path(data.train or data.val).is_dir() else " or ".join(other)
        use = f"set data.source={guess} to read it"
    else:
        use = f"leave it out, or take a recipe that reads files; the task {task} has none"
    raise ValueError(f"{given[0]} is not read, because data.source={data.source} makes its own data: {use}")


def split_place(data: Data, split: str) -> str:
    """Where a split comes from: data.train or data.val."""
    place: str = getattr(data, split)
    return place


def split_limit(data: Data, split: str) -> int:
    """How many examples of a split are used at most, 0 for all: data.train_size, or data.val_size for any other split
    than "train"."""
    return data.train_size if split == "train" else data.val_size


def keys_read(task: str, data: Data) -> tuple[str, ...]:
    """The keys of a recipe that the task's data and augmentation read: "data.train", "augment.crop", …; ValueError if
    its source does not serve the task."""
    own = ("source", *check_served(task, data.source)[data.source])
    return (*(f"data.{key}" for key in own), *(f"augment.{key}" for key in AUGMENTS[task]))
