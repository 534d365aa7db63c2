"""Omni3D's JSON: annotations in, annotations and predictions out.

    data = omni3d.read("Omni3D/SUNRGBD_train.json")
    data.names, data.images[0].boxes, data.images[0].labels       # boxes (g, 12) as everywhere in this package
    data.problems                                                 # annotations that were left out or corrected, and why

Omni3D's camera frame is this package's: x right, y down, z forward, metres. Its `dimensions` are [width, height,
length], and they lie along the box's own z, y and x: size (x, y, z) = (length, height, width). Its corners v0 … v7 have
the signs

    v0 − − −   v1 + − −   v2 + + −   v3 − + −   v4 − − +   v5 + − +   v6 + + +   v7 − + +

along (x, y, z). `box3d.corners` counts in binary, so v0 … v7 are its corners 0, 4, 6, 2, 1, 5, 7, 3.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..geometry import box3d
from ..io.files import read_json
from ..metrics.average_precision3d import ScoredBoxes

ORDER = (0, 4, 6, 2, 1, 5, 7, 3)
"""Corner k of Omni3D is corner ORDER[k] of `box3d.corners`."""

_LEAST_VISIBLE, _MOST_CUT = 0.01, 0.99  # Omni3D does not count objects that are hidden, or cut off, beyond this
_FARTHEST, _LARGEST = 1e4, 1e3  # metres: a box farther away, or longer, is a wrong unit or a damaged number


@dataclass(frozen=True)
class Picture:
    """One image of a file: boxes (g, 12) float64, labels (g,) as places in `Omni3D.names`, and which objects do not
    count (g,) because the file calls their boxes unreliable or they are hardly seen."""

    id: int
    path: str
    width: int
    height: int
    intrinsics: Tensor  # (3, 3)
    boxes: Tensor
    labels: Tensor
    ignore: Tensor


@dataclass(frozen=True)
class Omni3D:
    """A file: names and ids of its categories, its images, and what was wrong in it."""

    names: tuple[str, ...]
    ids: tuple[int, ...]
    images: tuple[Picture, ...]
    problems: tuple[str, ...]


class Unusable(Exception):
    """Why an annotation is left out."""


def read(path: str | PathLike[str]) -> Omni3D:
    """A data set's file. An annotation that cannot be used is left out and named in `problems`."""
    content = _content(Path(path))
    categories = _categories(content["categories"], path)
    place = {number: i for i, (number, _) in enumerate(categories)}
    problems: list[str] = []
    rows: dict[int, list[tuple[Tensor, int, bool]]] = {}
    pictures: dict[int, Mapping[str, Any]] = {}
    for image in content["images"]:
        wrong = _wrong_image(image) if isinstance(image, dict) else "it is not an object"
        if not wrong and image["id"] in pictures:
            wrong = "an earlier image has this id, and that one is used"
        if wrong:
            problems.append(f"image {image.get('id') if isinstance(image, dict) else image!r}: {wrong}")
        else:
            pictures[image["id"]], rows[image["id"]] = image, []
    for annotation in content["annotations"]:
        try:
            label, image_id = place.get(annotation["category_id"]), annotation["image_id"]
            if label is None or image_id not in rows:
                raise Unusable(f"its category {annotation['category_id']} or its image {image_id} is not here")
            ignore = _is_ignored(annotation)
            rows[image_id].append((_box(annotation, problems), label, ignore))
        except (Unusable, KeyError, TypeError, ValueError, AttributeError, OverflowError) as why:
            if not isinstance(why, Unusable):
                problems.append(f"{_name(annotation)}: not an annotation ({type(why).__name__}: {why})")
            elif not _is_unreliable(annotation):  # else the file itself says that the box is not valid
                problems.append(f"{_name(annotation)}: {why}")
    images = tuple(_picture(image, rows[number]) for number, image in pictures.items())
    return Omni3D(tuple(n for _, n in categories), tuple(i for i, _ in categories), images, tuple(problems))


def corners(box: Tensor) -> Tensor:
    """Corners (…, 8, 3) in Omni3D's order."""
    return box3d.corners(box)[..., ORDER, :]


def from_corners(corner: Tensor) -> Tensor:
    """The boxes (…, 12) with these corners (…, 8, 3) in Omni3D's order; refuses what is not a cuboid in that order."""
    edges = torch.stack([corner[..., k, :] - corner[..., 0, :] for k in (1, 3, 4)], dim=-1)  # columns x, y, z
    size = edges.norm(dim=-2)
    if not bool(corner.isfinite().all()) or not bool((size > 0).all()):
        raise ValueError("corners must be finite numbers, no two the same")
    frame = edges / size[..., None, :]
    box = box3d.from_parts(corner.mean(-2), frame, size)
    apart = (corners(box) - corner).norm(dim=-1).amax(-1)
    if bool((apart > 0.02 * size.norm(dim=-1)).any()) or bool((torch.linalg.det(frame) < 0).any()):
        raise ValueError(
            "corners must be those of a cuboid in the order v0 … v7 of Omni3D: front face first, from the upper left "
            "clockwise, then the back face"
        )
    return box


def dataset(images: Iterable[Picture], names: Sequence[str], ids: Sequence[int] | None = None) -> dict[str, Any]:
    """A whole file as plain data, which `read` and Omni3D's own tools read."""
    numbers = list(ids) if ids is not None else list(range(len(names)))
    pictures: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image in images:
        pictures.append(
            {
                "id": image.id,
                "dataset_id": 0,
                "width": image.width,
                "height": image.height,
                "file_path": image.path,
                "K": image.intrinsics.tolist(),
                "src_90_rotate": 0,
                "src_flagged": False,
            }
        )
        for box, label, ignore in zip(image.boxes, image.labels.tolist(), image.ignore.tolist(), strict=True):
            known = {"id": len(annotations), "image_id": image.id, "dataset_id": 0, "valid3D": not ignore}
            named = {"category_id": numbers[label], "category_name": names[label]}
            annotations.append(known | named | _describe(box, "bbox3D_cam", "R_cam", image.intrinsics))
    categories = [{"id": i, "name": n, "supercategory": ""} for i, n in zip(numbers, names, strict=True)]
    info = {"id": 0, "source": "stringpe", "name": "stringpe", "split": "", "version": "0.1", "url": ""}
    return {"info": info, "images": pictures, "categories": categories, "annotations": annotations}


def results(found: ScoredBoxes, image_id: int, intrinsics: Tensor, ids: Sequence[int]) -> list[dict[str, Any]]:
    """The detections of one image as entries of an Omni3D results file, a JSON list."""
    entries = []
    for box, label, score in zip(found.box, found.label.tolist(), found.score.tolist(), strict=True):
        known = {"image_id": image_id, "category_id": ids[label], "score": score}
        entries.append(known | _describe(box, "bbox3D", "pose", intrinsics))
    return entries


def _describe(box: Tensor, corner_name: str, rotation_name: str, intrinsics: Tensor) -> dict[str, Any]:
    box = box.double().cpu()
    corner = corners(box)
    x0, y0, x1, y1 = project(corner, intrinsics.double().cpu())
    length, height, width = box[9:].tolist()
    shared = {
        corner_name: corner.tolist(),
        "center_cam": box[:3].tolist(),
        "dimensions": [width, height, length],
        rotation_name: box3d.rotation(box).tolist(),
    }
    if corner_name == "bbox3D":
        return shared | {"bbox": [x0, y0, x1 - x0, y1 - y0], "depth": float(box[2])}
    behind = bool((corner[:, 2] <= 0).any())
    unknown = {"bbox2D_tight": [-1] * 4, "bbox2D_trunc": [-1] * 4, "visibility": -1, "truncation": -1}
    unknown |= {"segmentation_pts": -1, "lidar_pts": -1, "depth_error": -1}
    return shared | {"bbox2D_proj": [x0, y0, x1, y1], "behind_camera": behind} | unknown


def project(corner: Tensor, intrinsics: Tensor) -> list[float]:
    """x0, y0, x1, y1 in pixels around the corners (8, 3) that lie before the camera; −1 four times where none does."""
    before = corner[corner[:, 2] > 1e-3]
    if not len(before):
        return [-1.0] * 4
    flat = before @ intrinsics.T
    pixels = flat[:, :2] / flat[:, 2:]
    return [*pixels.amin(0).tolist(), *pixels.amax(0).tolist()]


def _content(path: Path) -> dict[str, Any]:
    content = read_json(path)
    parts = ("images", "annotations", "categories")
    if not isinstance(content, dict) or any(not isinstance(content.get(part), list) for part in parts):
        raise ValueError(f"{path} is not an Omni3D dataset file: it needs the lists {', '.join(parts)}")
    return content


def _categories(entries: Sequence[Any], path: str | PathLike[str]) -> list[tuple[int, str]]:
    """Number and name of every category, by number."""
    found: dict[int, str] = {}
    for entry in entries:
        number, name = (entry.get("id"), entry.get("name")) if isinstance(entry, dict) else (None, None)
        if type(number) is not int or not isinstance(name, str):
            raise ValueError(f"{path}: every category needs a whole number as id and a text as name, got {entry!r:.60}")
        if number in found:
            raise ValueError(f"{path}: several categories have the id {number}: a box does not say which it means")
        found[number] = name
    return sorted(found.items())


def _wrong_image(image: Mapping[str, Any]) -> str:
    k = _numbers(image.get("K"), (3, 3))
    if k is None or float(k[0, 0]) <= 0 or float(k[1, 1]) <= 0:
        return "its K is not a camera matrix"
    if type(image.get("id")) is not int:
        return "its id is not a whole number"
    if not all(isinstance(image.get(side), int) and image[side] > 0 for side in ("width", "height")):
        return "its width and height are not whole numbers above 0"
    return "" if isinstance(image.get("file_path"), str) else "it has no file_path"


def _box(annotation: Mapping[str, Any], problems: list[str]) -> Tensor:
    """From centre, rotation and dimensions; corners that contradict them win, as Omni3D's own metric uses corners."""
    centre, sides = _numbers(annotation.get("center_cam"), (3,)), _numbers(annotation.get("dimensions"), (3,))
    frame, corner = _numbers(annotation.get("R_cam"), (3, 3)), _numbers(annotation.get("bbox3D_cam"), (8, 3))
    box = None
    _check_range(centre, sides, corner)
    if centre is not None and sides is not None and frame is not None:
        if float(sides.min()) <= 0:
            raise Unusable(f"dimensions {sides.tolist()} are not all above 0")
        if (frame.T @ frame - torch.eye(3).double()).abs().max() > 0.01 or torch.linalg.det(frame) < 0:
            raise Unusable("R_cam is not a rotation")
        box = box3d.from_parts(centre, frame, sides.flip(0))  # width, height, length to x, y, z
    if corner is None:
        if box is None:
            raise Unusable("neither bbox3D_cam nor center_cam, dimensions and R_cam are whole")
        return box
    if box is not None and (corners(box) - corner).norm(dim=-1).max() <= 0.05 * box[9:].norm():
        return box
    try:
        stated = from_corners(corner)
    except ValueError as error:
        if box is None:
            raise Unusable(str(error)) from None
        return box
    if box is not None:
        problems.append(
            f"{_name(annotation)}: bbox3D_cam contradicts center_cam, dimensions and R_cam; the corners are used"
        )
    return stated


def _check_range(centre: Tensor | None, sides: Tensor | None, corner: Tensor | None) -> None:
    """Refuse places and sizes that no indoor or street scene has."""
    for name, value, most in (("center_cam", centre, _FARTHEST), ("dimensions", sides, _LARGEST)):
        if value is not None and float(value.abs().max()) > most:
            raise Unusable(f"{name} {value.tolist()} is beyond {most:g} m")
    if corner is not None and float(corner.abs().max()) > _FARTHEST + _LARGEST:
        raise Unusable(f"bbox3D_cam reaches beyond {_FARTHEST + _LARGEST:g} m")


def _name(annotation: Any) -> str:
    return f"annotation {annotation.get('id') if isinstance(annotation, dict) else repr(annotation)[:40]}"


def _numbers(value: Any, shape: tuple[int, ...]) -> Tensor | None:
    try:
        found = torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None
    return found if found.shape == shape and bool(found.isfinite().all()) else None


def _is_unreliable(annotation: Mapping[str, Any]) -> bool:
    """Whether the file itself calls the box unreliable."""
    return not annotation.get("valid3D", True) or bool(annotation.get("behind_camera", False))


def _is_ignored(annotation: Mapping[str, Any]) -> bool:
    """Omni3D's rules for objects that are there but not counted; −1 stands for "not known"."""
    cut, seen = annotation.get("truncation", -1), annotation.get("visibility", -1)
    hidden = cut >= _MOST_CUT or 0 <= seen <= _LEAST_VISIBLE
    nothing = 0 in (annotation.get("lidar_pts", -1), annotation.get("segmentation_pts", -1))
    return _is_unreliable(annotation) or hidden or nothing or annotation.get("depth_error", -1) > 0.5


def _picture(image: Mapping[str, Any], rows: Sequence[tuple[Tensor, int, bool]]) -> Picture:
    empty = torch.zeros(0, 12, dtype=torch.float64)
    return Picture(
        id=image["id"],
        path=image["file_path"],
        width=image["width"],
        height=image["height"],
        intrinsics=torch.tensor(image["K"], dtype=torch.float64),
        boxes=torch.stack([box for box, _, _ in rows]) if rows else empty,
        labels=torch.tensor([label for _, label, _ in rows], dtype=torch.long),
        ignore=torch.tensor([ignore for _, _, ignore in rows], dtype=torch.bool),
    )
