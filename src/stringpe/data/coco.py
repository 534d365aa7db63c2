"""What is in pictures: boxes with classes, and the COCO and LVIS files that hold them, without what cannot be used."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..io.files import read_json
from ..io.problems import Problems

_TWO_WORDS = {"diningtable": "dining table", "pottedplant": "potted plant", "tvmonitor": "tv monitor"}  # VOC's


@dataclass(frozen=True)
class BoxedPicture:
    """One picture's truth. boxes: corners in pixels, inside the picture; labels: class numbers from 0; crowd: regions
    that are not single objects (iscrowd, or VOC's difficult). negative and partial, of LVIS: classes that are known to
    be absent, and classes of which not every object is annotated."""

    id: int
    file: str
    width: int
    height: int
    boxes: tuple[tuple[float, float, float, float], ...]
    areas: tuple[float, ...]
    labels: tuple[int, ...]
    crowd: tuple[bool, ...]
    negative: frozenset[int]
    partial: frozenset[int]


@dataclass(frozen=True)
class Coco:
    """A whole file. ids: the file's category ids, by class number; frequency: LVIS's r, c and f, else empty; problems:
    one line per entry that was left out."""

    names: tuple[str, ...]
    ids: tuple[int, ...]
    frequency: tuple[str, ...]
    pictures: tuple[BoxedPicture, ...]
    problems: tuple[str, ...]

    @property
    def lvis(self) -> bool:
        """Whether only some classes are known of a picture."""
        return bool(self.frequency)

    def dataset(self) -> dict[str, Any]:
        """What is used of the file, in its own format, for evaluation."""
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for p in self.pictures:
            lists = {"neg_category_ids": p.negative, "not_exhaustive_category_ids": p.partial}
            listed = {k: [self.ids[c] for c in sorted(v)] for k, v in lists.items()} if self.lvis else {}
            images.append({"id": p.id, "width": p.width, "height": p.height, "file_name": p.file} | listed)
            for (x0, y0, x1, y1), area, label, crowd in zip(p.boxes, p.areas, p.labels, p.crowd, strict=True):
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": p.id,
                        "category_id": self.ids[label],
                        "bbox": [x0, y0, x1 - x0, y1 - y0],
                        "area": area,
                        "iscrowd": int(crowd),
                    }
                )
        frequency = self.frequency or ("",) * len(self.ids)
        rows = zip(self.ids, self.names, frequency, strict=True)
        categories = [{"id": i, "name": n} | ({"frequency": f} if f else {}) for i, n, f in rows]
        return {"images": images, "annotations": annotations, "categories": categories}


def annotate(
    number: int,
    file: str,
    size: tuple[int, int],
    boxes: Sequence[tuple[float, float, float, float]],
    labels: Sequence[int],
) -> BoxedPicture:
    """A picture in which everything is annotated. number: its id; size: width and height; boxes: corners in pixels."""
    width, height = size
    areas = tuple((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes)
    nothing = frozenset[int]()
    crowd = (False,) * len(boxes)
    return BoxedPicture(number, file, width, height, tuple(boxes), areas, tuple(labels), crowd, nothing, nothing)


def collect(names: Sequence[str], pictures: Sequence[BoxedPicture]) -> Coco:
    """Pictures as a whole file; names: of their classes."""
    return Coco(tuple(names), tuple(range(1, len(names) + 1)), (), tuple(pictures), ())


def read_coco(path: str | Path, limit: int = 0) -> Coco:
    """The annotation file (its first `limit` pictures). What cannot be used is left out, and one warning names
    it: images without a size or with the id of an earlier one; annotations of no known picture or class, or whose
    box is not four finite numbers, has no area or lies outside of the picture. Boxes that reach over the border are cut
    there. Pictures without boxes stay: they are negatives."""
    path = Path(path)
    images, rows, categories = _read_parts(path)
    numbers = {c["id"]: i for i, c in enumerate(categories)}
    problems = Problems("entries", str(path))
    kept = _usable_images(images, problems)[: limit or None]
    found: dict[int, list[Any]] = {i["id"]: [] for i in kept}
    sizes = {i["id"]: (i["width"], i["height"]) for i in kept}
    beyond = {i["id"] for i in images if isinstance(i, Mapping) and type(i.get("id")) is int} - found.keys()
    for row in rows:
        try:
            if row["image_id"] in beyond:
                continue  # of a picture beyond the limit, or named already
            one = _read_object(row, sizes, numbers)
            found[row["image_id"]].append(one)
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            name = row.get("id", "without id") if isinstance(row, Mapping) else str(row)[:40]
            problems.add(f"annotation {name}: {_reason(error)}")
    problems.warn()
    if not kept or not categories:
        raise ValueError(
            f"{path} has {len(kept)} usable pictures and {len(categories)} categories: detection needs both"
        )
    pictures = tuple(_read_picture(i, found[i["id"]], numbers) for i in kept)
    lvis = any("neg_category_ids" in i for i in kept)
    return Coco(
        names=tuple(clean_name(c["name"]) for c in categories),
        ids=tuple(c["id"] for c in categories),
        frequency=tuple(_frequencies(categories, pictures)) if lvis else (),
        pictures=pictures,
        problems=tuple(problems),
    )


def rare_names(path: str | Path) -> frozenset[str]:
    """The names that an LVIS file calls rare."""
    _, _, categories = _read_parts(Path(path))
    found = frozenset(clean_name(c["name"]) for c in categories if c.get("frequency") == "r")
    if not found:
        raise ValueError(
            f"{path} calls no category rare: data.without takes an LVIS file, whose categories have r, c or f"
        )
    return found


def leave_out(found: Coco, names: Collection[str]) -> Coco:
    """The file without the classes of these names and without their boxes; the pictures stay."""
    kept = [i for i, name in enumerate(found.names) if name not in names]
    number = {old: new for new, old in enumerate(kept)}

    def cut(picture: BoxedPicture) -> BoxedPicture:
        places = [i for i, label in enumerate(picture.labels) if label in number]
        return replace(
            picture,
            boxes=tuple(picture.boxes[i] for i in places),
            areas=tuple(picture.areas[i] for i in places),
            labels=tuple(number[picture.labels[i]] for i in places),
            crowd=tuple(picture.crowd[i] for i in places),
            negative=frozenset(number[label] for label in picture.negative if label in number),
            partial=frozenset(number[label] for label in picture.partial if label in number),
        )

    return replace(
        found,
        names=tuple(found.names[i] for i in kept),
        ids=tuple(found.ids[i] for i in kept),
        frequency=tuple(found.frequency[i] for i in kept) if found.frequency else (),
        pictures=tuple(cut(picture) for picture in found.pictures),
    )


def join_coco(files: Sequence[Coco]) -> Coco:
    """Several annotation files as one, for training: pictures one file after the other, classes of the same name as one
    class, in the order in which they first occur."""
    names = tuple(dict.fromkeys(name for one in files for name in one.names))
    number = {name: i for i, name in enumerate(names)}
    pictures: list[BoxedPicture] = []
    for one in files:
        new = [number[name] for name in one.names]
        pictures += (
            replace(
                picture,
                id=len(pictures) + i,
                labels=tuple(new[label] for label in picture.labels),
                negative=frozenset(new[label] for label in picture.negative),
                partial=frozenset(new[label] for label in picture.partial),
            )
            for i, picture in enumerate(one.pictures)
        )
    groups = {number[name]: f for one in files for name, f in zip(one.names, one.frequency, strict=False)}
    return Coco(
        names=names,
        ids=tuple(range(1, len(names) + 1)),
        frequency=tuple(groups.get(i, "f") for i in range(len(names))) if groups else (),
        pictures=tuple(pictures),
        problems=tuple(problem for one in files for problem in one.problems),
    )


def _read_parts(path: Path) -> tuple[list[Any], list[Any], list[Mapping[str, Any]]]:
    """Images, annotations and categories; ValueError if they are not there, or the categories are not sound."""
    try:
        content = read_json(path)
        images, rows, categories = content["images"], content["annotations"], content["categories"]
        if not all(isinstance(part, list) for part in (images, rows, categories)):
            raise TypeError("images, annotations and categories must be lists")
        ids = [c["id"] for c in categories]
        if not all(type(i) is int for i in ids) or not all(isinstance(c["name"], str) for c in categories):
            raise TypeError("every category needs a whole number as id and a text as name")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a COCO annotation file (images, annotations, categories): {_reason(error)}"
        ) from None
    twice = [i for i, count in Counter(ids).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has several categories with the id {twice[0]}: a box does not say which it means")
    return images, rows, sorted(categories, key=lambda c: c["id"])


def _usable_images(images: Sequence[Any], problems: Problems) -> list[Mapping[str, Any]]:
    found: dict[int, Mapping[str, Any]] = {}
    for image in images:
        wrong = _wrong_image(image)
        if not wrong and image["id"] in found:
            wrong = "an earlier image has this id, and that one is used"
        if wrong:
            name = image.get("id", "without id") if isinstance(image, Mapping) else str(image)[:40]
            problems.add(f"image {name}: {wrong}")
        else:
            found[image["id"]] = image
    return list(found.values())


def _wrong_image(image: Any) -> str:
    """What is wrong with an entry of images, or nothing."""
    if not isinstance(image, Mapping):
        return "it is not an object"
    numbers = [image.get(name) for name in ("id", "width", "height")]
    if not all(type(n) is int for n in numbers) or min(image["width"], image["height"]) < 1:
        return "it needs id, width, height and file_name, the first three as whole numbers"
    if not isinstance(image.get("file_name") or image.get("coco_url"), str):
        return "it needs id, width, height and file_name"
    lists = [image.get(name, []) for name in _LISTS]
    return "" if all(isinstance(some, list) for some in lists) else f"{' and '.join(_LISTS)} must be lists"


def clean_name(name: str) -> str:
    """A category's name as it is written in a text: "baseball_bat" and "bat_(animal)" as "baseball bat" and "bat"."""
    plain = name.partition("_(")[0].replace("_", " ").strip().lower() or name
    return _TWO_WORDS.get(plain, plain)


def _file(image: Mapping[str, Any]) -> str:
    """The picture's file; LVIS gives its address in COCO instead, of which split and file are used."""
    return str(image.get("file_name") or "/".join(str(image["coco_url"]).split("/")[-2:]))


def _read_object(
    row: Mapping[str, Any], sizes: Mapping[int, tuple[int, int]], numbers: Mapping[int, int]
) -> tuple[tuple[float, float, float, float], float, int, bool]:
    """Corners, area, label and crowd of one annotation."""
    if row["image_id"] not in sizes:
        raise ValueError(f"there is no image {row['image_id']}")
    if row["category_id"] not in numbers:
        raise ValueError(f"there is no category {row['category_id']}")
    x, y, w, h = (float(v) for v in row["bbox"])
    if not all(map(math.isfinite, (x, y, w, h))):
        raise ValueError(f"the box {row['bbox']} is not finite")
    width, height = sizes[row["image_id"]]
    corners = (max(x, 0.0), max(y, 0.0), min(x + w, float(width)), min(y + h, float(height)))
    if w <= 0 or h <= 0:
        raise ValueError(f"the box {row['bbox']} has no area")
    if corners[2] <= corners[0] or corners[3] <= corners[1]:
        raise ValueError(f"the box {row['bbox']} lies outside of the {width} × {height} picture")
    area = float(row.get("area", w * h))
    if not math.isfinite(area) or area < 0:
        raise ValueError(f"the area {row['area']} is not a finite number above 0")
    crowd = bool(row.get("iscrowd", 0) or row.get("difficult", 0))
    return corners, area, numbers[row["category_id"]], crowd


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _read_picture(image: Mapping[str, Any], objects: list[Any], numbers: Mapping[int, int]) -> BoxedPicture:
    boxes, areas, labels, crowd = zip(*objects, strict=True) if objects else ((), (), (), ())
    known = {n: frozenset(numbers[c] for c in image.get(n, ()) if type(c) is int and c in numbers) for n in _LISTS}
    return BoxedPicture(
        id=image["id"],
        file=_file(image),
        width=image["width"],
        height=image["height"],
        boxes=boxes,
        areas=areas,
        labels=labels,
        crowd=crowd,
        negative=known["neg_category_ids"],
        partial=known["not_exhaustive_category_ids"],
    )


_LISTS = ("neg_category_ids", "not_exhaustive_category_ids")


def _frequencies(categories: list[Mapping[str, Any]], pictures: tuple[BoxedPicture, ...]) -> list[str]:
    """LVIS's groups: as the file says, else by the number of pictures: rare up to 10, common up to 100, frequent."""
    counts = Counter(c for p in pictures for c in set(p.labels))
    groups = ["r" if counts[i] <= 10 else "c" if counts[i] <= 100 else "f" for i in range(len(categories))]
    return [str(c.get("frequency", group)) for c, group in zip(categories, groups, strict=True)]
