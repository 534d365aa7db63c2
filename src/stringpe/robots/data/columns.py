"""The columns of a data set: what they are called in memory and in LeRobot's files, and how they are stored.

In memory, as environments and policies have them, step first: `observation.state` (t, s) and `action` (t, a) float32,
`observation.images.<camera>` (t, h, w, 3) uint8, `observation.depth.<camera>` (t, h, w) float32 in metres with 0 for a
hole, scalars (t,) such as `next.reward`, and other arrays of numbers (t, …) such as `observation.camera.<camera>.pose`.

In files, LeRobot's keys: depth is `observation.images.<camera>_depth` of shape (h, w, 1), whose `info` says
`is_depth_map` and `depth_unit`; anything else that is known of a camera (its `intrinsics`, say) stands in `info` too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...io.files import find_mismatch
from ...io.pictures import MILLIMETRE

Array = NDArray[Any]
Frames = Mapping[str, Array]
"""An episode in memory, by the keys above."""

STATE, ACTION = "observation.state", "action"
IMAGES, DEPTH = "observation.images.", "observation.depth."
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
UNITS = {"mm": MILLIMETRE, "m": 1.0}
"""Metres per step of stored depth, by the name of its unit."""

Kind = Literal["numbers", "image", "depth"]


@dataclass(frozen=True)
class StoredColumn:
    """A column. key: its name in memory; stored: its name in files. unit: metres per step of stored depth, None where
    the files do not say. info: what else they say of it, such as the range of depth in a video."""

    key: str
    stored: str
    kind: Kind
    video: bool = False
    unit: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


class DepthRange(NamedTuple):
    """What the 12-bit codes of depth in a video stand for: metres from low to high, evenly in log(metres + shift) if
    use_log, else in metres."""

    low: float
    high: float
    shift: float
    use_log: bool


_RANGE = {
    "low": ("depth_min", 0.01), "high": ("depth_max", 10.0), "shift": ("shift", 3.5), "use_log": ("use_log", True)
}  # fmt: skip
_FARTHEST = 1e6  # metres


def is_picture(key: str) -> bool:
    """Whether a column in memory holds images or depth."""
    return key.startswith((IMAGES, DEPTH))


def stored_key(key: str) -> str:
    """The name in files of a column in memory."""
    return f"{IMAGES}{key.removeprefix(DEPTH)}_depth" if key.startswith(DEPTH) else key


def read_columns(features: Mapping[str, Any]) -> dict[str, StoredColumn]:
    """The columns that the features of meta/info.json declare, by their keys in memory. Text is left out."""
    columns: dict[str, StoredColumn] = {}
    for stored, feature in features.items():
        if feature["dtype"] in ("string", "language"):
            continue
        column = _picture(stored, feature) if feature["dtype"] in ("image", "video") else _numbers(stored)
        if column.key in columns:
            raise ValueError(f"{column.key} is stored twice, as {columns[column.key].stored} and as {stored}")
        columns[column.key] = column
    return columns


def _numbers(stored: str) -> StoredColumn:
    return StoredColumn(stored, stored, "numbers")


def _picture(stored: str, feature: Mapping[str, Any]) -> StoredColumn:
    """A column of images or depth, of LeRobot's or as stringpe wrote it before."""
    info = (feature.get("info") or {}) | (feature.get("video_info") or {})
    video = feature["dtype"] == "video"
    camera = stored.removeprefix("observation.").removeprefix("images.")
    if stored.startswith(DEPTH):  # as stringpe wrote it in LeRobot's format 2.1: millimetres
        return StoredColumn(stored, stored, "depth", video, MILLIMETRE, info)
    if not (info.get("is_depth_map") or info.get("video.is_depth_map")):
        return StoredColumn(IMAGES + camera, stored, "image", video, info=info)
    name = camera.removesuffix("_depth").removeprefix("depth_")
    if video:
        read_range(stored, info)
    unit = info.get("depth_unit")
    if unit is not None and unit not in UNITS:
        raise ValueError(f"{stored} is stored in the unit {unit!r}; only {' and '.join(UNITS)} can be read")
    return StoredColumn(DEPTH + name, stored, "depth", video, None if unit is None else UNITS[unit], info)


def read_range(stored: str, info: Mapping[str, Any]) -> DepthRange:
    """The range of depth that the `info` of a video's column gives, or LeRobot's own where it does not say."""
    given = {name: info.get(f"video.{key}", default) for name, (key, default) in _RANGE.items()}
    wrong = find_mismatch(given, {"low": float, "high": float, "shift": float, "use_log": bool})
    if not wrong and not 0 <= given["low"] < given["high"] < _FARTHEST:
        wrong = f"depth_min is {given['low']} and depth_max {given['high']}"
    if not wrong and given["use_log"] and given["low"] + given["shift"] <= 0:
        wrong = f"depth_min + shift is {given['low'] + given['shift']}, which has no logarithm"
    if wrong:
        raise ValueError(f"{stored} has no valid range of depth ({wrong})")
    return DepthRange(**given)


def describe(
    frames: Frames, shapes: Mapping[str, tuple[int, int]], cameras: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """The "features" of meta/info.json for an episode.

    shapes: height and width of the pictures, by key in memory. cameras: what else is known of each camera, by name,
    written to the `info` of its columns."""
    features: dict[str, dict[str, Any]] = {}
    for key in sorted([*frames, *shapes]):
        if is_picture(key):
            is_depth = key.startswith(DEPTH)
            camera = key.removeprefix(DEPTH).removeprefix(IMAGES)
            info = dict((cameras or {}).get(camera, {}))
            info |= {"is_depth_map": True, "depth_unit": "mm"} if is_depth else {}
            feature: dict[str, Any] = {"dtype": "image", "shape": [*shapes[key], 1 if is_depth else 3]}
            feature |= {"names": ["height", "width", "channels"]} | ({"info": info} if info else {})
        else:
            value = frames[key]
            feature = {"dtype": scalar_type(value), "shape": list(value.shape[1:]) or [1], "names": None}
        features[stored_key(key)] = feature
    for key in COUNTERS:
        features[key] = {"dtype": "float32" if key == "timestamp" else "int64", "shape": [1], "names": None}
    return features


def scalar_type(value: Array) -> str:
    """The type that numbers are stored in."""
    return {"b": "bool", "f": "float32"}.get(value.dtype.kind, "int64")


def check_episode(frames: Mapping[str, Any]) -> None:
    """Refuse frames that do not form an episode. Pictures may be encoded already: lists of bytes."""
    missing = [key for key in (STATE, ACTION) if key not in frames]
    if missing:
        raise ValueError(f"an episode needs {' and '.join(missing)}, got {', '.join(sorted(frames)) or 'nothing'}")
    lengths = {key: len(value) for key, value in frames.items()}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        raise ValueError(f"all parts of an episode need the same number of steps, at least one; got {lengths}")
    for key, value in frames.items():
        if is_picture(key) and is_encoded(value):
            continue
        if key.startswith(IMAGES):
            valid = value.dtype == np.uint8 and value.ndim == 4 and value.shape[3] == 3
            wanted = "(steps, height, width, 3) uint8"
        elif key.startswith(DEPTH):
            valid, wanted = value.ndim == 3 and value.dtype.kind == "f", "(steps, height, width) of floats in metres"
        elif key in (STATE, ACTION):
            valid, wanted = value.ndim == 2 and bool(np.isfinite(value).all()), "(steps, size), all finite"
        else:
            valid, wanted = key not in COUNTERS and value.dtype.kind in "biuf", "(steps, …) numbers"
        if not valid:
            raise ValueError(f"{key} must be {wanted}; got {value.dtype} {value.shape}, {_count_not_finite(value)}")


def is_encoded(value: Any) -> bool:
    """Whether pictures are encoded already: a list of bytes."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], bytes)


def _count_not_finite(value: Array) -> str:
    count = int((~np.isfinite(value)).sum()) if value.dtype.kind == "f" else 0
    return f"{count} values not finite" if count else "all finite"
