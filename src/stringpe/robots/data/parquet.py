"""One episode as one Parquet file, as LeRobot 2.1 writes it with images inside.

Columns: `observation.state`, `action` (fixed-size lists of float32), `observation.images.<camera>` and
`observation.depth.<camera>` (structs of encoded bytes and a path, which `datasets` shows as images), `timestamp`,
`frame_index`, `episode_index`, `index`, `task_index`, and scalars such as `next.reward`. Depth is a 16-bit PNG in
millimetres, 0 for a hole. The footer holds what the columns do not: task, seed and statistics.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...io.pictures import BadSample, decode_deep, decode_picture

Array = NDArray[Any]
Frames = Mapping[str, Array]
"""An episode in memory, step first: observation.state (t, s) and action (t, a) float32, observation.images.<camera>
(t, h, w, 3) uint8, observation.depth.<camera> (t, h, w) float32 in metres, and scalars (t,) such as next.reward."""

STATE, ACTION = "observation.state", "action"
IMAGES, DEPTH = "observation.images.", "observation.depth."
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_SAMPLED = 20  # frames per episode from which image statistics are computed
_MOST_PIXELS = 2**24  # of a picture: more is taken for a decompression bomb
Result = TypeVar("Result")


class BrokenEpisode(ValueError):
    """An episode's file cannot be read, or does not hold what the data set says."""


@dataclass(frozen=True)
class Footer:
    """What can be known of an episode without reading its columns."""

    length: int
    task: str
    seed: int | None
    stats: dict[str, Any]


def arrow() -> Any:
    """pyarrow, or a message that says how to get it."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as missing:
        raise ValueError(f"robot data sets need pyarrow: pip install 'stringpe[robots]' ({missing})") from None
    return pyarrow


def is_picture(key: str) -> bool:
    """Whether a column holds encoded images or depth."""
    return key.startswith((IMAGES, DEPTH))


def check(frames: Frames) -> None:
    """Refuse frames that do not form an episode."""
    missing = [key for key in (STATE, ACTION) if key not in frames]
    if missing:
        raise ValueError(f"an episode needs {' and '.join(missing)}, got {', '.join(sorted(frames)) or 'nothing'}")
    lengths = {key: len(value) for key, value in frames.items()}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        raise ValueError(f"all parts of an episode need the same number of steps, at least one; got {lengths}")
    for key, value in frames.items():
        if key.startswith(IMAGES):
            good = value.dtype == np.uint8 and value.ndim == 4 and value.shape[3] == 3
            wanted = "(steps, height, width, 3) uint8"
        elif key.startswith(DEPTH):
            good, wanted = value.ndim == 3 and value.dtype.kind == "f", "(steps, height, width) of floats in metres"
        elif key in (STATE, ACTION):
            good, wanted = value.ndim == 2 and bool(np.isfinite(value).all()), "(steps, size), all finite"
        else:
            good, wanted = key not in COUNTERS and value.dtype.kind in "biuf", "(steps, …) numbers"
        if not good:
            raise ValueError(f"{key} must be {wanted}; got {value.dtype} {value.shape}, {_finite(value)}")


def features(frames: Frames, cameras: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The "features" of meta/info.json: type and shape of every column. cameras: what else is known of each."""
    found: dict[str, dict[str, Any]] = {}
    for key in sorted(frames):
        value = frames[key]
        if is_picture(key):
            shape = [*value.shape[1:3], 3 if key.startswith(IMAGES) else 1]
            found[key] = {"dtype": "image", "shape": shape, "names": ["height", "width", "channels"]}
            if info := cameras.get(key.removeprefix(IMAGES).removeprefix(DEPTH)):
                found[key]["info"] = info
        elif value.ndim >= 2:
            found[key] = {"dtype": "float32", "shape": list(value.shape[1:]), "names": None}
        else:
            found[key] = {"dtype": _scalar(value), "shape": [1], "names": None}
    for key in COUNTERS:
        found[key] = {"dtype": "float32" if key == "timestamp" else "int64", "shape": [1], "names": None}
    return found


def encode(frames: Frames, quality: int) -> dict[str, list[bytes]]:
    """Pictures as files in memory: JPEG of that quality (PNG for 0), depth as 16-bit PNG in millimetres."""
    return {
        key: [_png16(f) if key.startswith(DEPTH) else _picture(f, quality) for f in value]
        for key, value in frames.items()
        if is_picture(key)
    }


def write(
    path: Path,
    frames: Frames,
    pictures: Mapping[str, list[bytes]],
    footer: Footer,
    numbers: Mapping[str, Array],
) -> None:
    """Write an episode; numbers: the COUNTERS, (t,) each."""
    pa = arrow()
    columns: dict[str, Any] = {}
    for key, value in [*sorted(frames.items()), *numbers.items()]:
        if is_picture(key):
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            columns[key] = pa.array([{"bytes": b, "path": None} for b in pictures[key]], kind)
        elif value.ndim >= 2:
            flat = pa.array(np.ascontiguousarray(value, np.float32).reshape(-1))
            columns[key] = pa.FixedSizeListArray.from_arrays(flat, int(np.prod(value.shape[1:])))
        else:
            kind = numbers[key].dtype if key in numbers else np.dtype(_scalar(value))
            columns[key] = pa.array(value.astype(kind))
    known = {"task": footer.task, "seed": footer.seed, "stats": footer.stats}
    table = pa.table(columns)
    table = table.replace_schema_metadata(
        {"stringpe": json.dumps(known), "huggingface": json.dumps({"info": {"features": _huggingface(columns, pa)}})}
    )
    # Pictures are compressed already; small row groups would cost a footer each.
    pa.parquet.write_table(table, path, compression="snappy", row_group_size=max(len(table), 1))


def read_footer(path: Path) -> tuple[Footer | None, int, dict[str, int]]:
    """An episode's footer (None if another program wrote it), its length, and its columns with their sizes."""
    pa = arrow()
    try:
        found = pa.parquet.read_metadata(path)
        schema = found.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise BrokenEpisode(f"{path.name} is not a whole Parquet file ({str(error).splitlines()[0]})") from None
    sizes = {field.name: getattr(field.type, "list_size", 1) for field in schema}
    own = (schema.metadata or {}).get(b"stringpe")
    length = int(found.num_rows)
    return (None if own is None else Footer(length=length, **json.loads(own))), length, sizes


def read(path: Path, keys: list[str]) -> dict[str, Any]:
    """Columns of an episode: arrays, and lists of encoded bytes for pictures."""
    pa = arrow()
    try:
        table = pa.parquet.read_table(path, columns=keys)
    except (OSError, pa.ArrowException) as error:
        raise BrokenEpisode(f"{path.name} cannot be read ({str(error).splitlines()[0]})") from None
    found: dict[str, Any] = {}
    for key in keys:
        column = table[key].combine_chunks()
        if pa.types.is_struct(column.type):
            found[key] = [item["bytes"] for item in column.to_pylist()]
        elif pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type):
            found[key] = np.array(column.to_pylist(), np.float32).reshape(len(table), -1)
        else:
            found[key] = column.to_numpy(zero_copy_only=False)
    return found


def decode(key: str, data: bytes) -> Array:
    """An encoded picture: (h, w, 3) uint8, or depth (h, w) float32 in metres."""
    try:
        if key.startswith(DEPTH):
            return decode_deep(data, key).numpy().astype(np.float32) / 1000
        return np.array(decode_picture(data, key))
    except BadSample as error:
        raise BrokenEpisode(f"a picture of {key} cannot be decoded ({error})") from None


def statistics(frames: Frames) -> dict[str, Any]:
    """LeRobot's statistics of an episode: min, max, mean, std, count of each column; pictures per channel in 0 … 1."""
    found = {}
    shape: tuple[int, ...]
    for key, value in frames.items():
        if is_picture(key):
            some = value[:: -(-len(value) // _SAMPLED)]
            x = some.astype(np.float64).reshape(-1, 3 if key.startswith(IMAGES) else 1)
            x, shape = (x / 255 if key.startswith(IMAGES) else x), (-1, 1, 1)
            x = np.where(np.isfinite(x), x, 0)
        else:
            x, shape = value.astype(np.float64).reshape(len(value), -1), (-1,)
        moments = {"min": x.min(0), "max": x.max(0), "mean": x.mean(0), "std": x.std(0)}
        found[key] = {name: m.reshape(shape).tolist() for name, m in moments.items()} | {"count": [len(value)]}
    return found


def _picture(image: Array, quality: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    if quality:
        # Full colour resolution: at these sizes a coloured object may be a few pixels wide.
        Image.fromarray(image).save(file, "JPEG", quality=quality, subsampling=0)
    else:
        Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _png16(depth: Array) -> bytes:
    from PIL import Image

    metres = np.where(np.isfinite(depth) & (depth > 0), depth, 0)
    file = io.BytesIO()
    Image.fromarray(np.clip(np.rint(metres * 1000), 0, 65535).astype(np.uint16)).save(file, "PNG")
    return file.getvalue()


def _huggingface(columns: Mapping[str, Any], pa: Any) -> dict[str, Any]:
    """Types as the package `datasets` names them, so that it shows pictures as pictures."""
    found: dict[str, Any] = {}
    for key, column in columns.items():
        if pa.types.is_struct(column.type):
            found[key] = {"_type": "Image"}
        elif pa.types.is_fixed_size_list(column.type):
            value = {"dtype": "float32", "_type": "Value"}
            found[key] = {"feature": value, "length": column.type.list_size, "_type": "Sequence"}
        else:
            names = {"float": "float32", "double": "float64"}
            found[key] = {"dtype": names.get(str(column.type), str(column.type)), "_type": "Value"}
    return found


def _scalar(value: Array) -> str:
    return {"b": "bool", "f": "float32"}.get(value.dtype.kind, "int64")


def _finite(value: Array) -> str:
    bad = int((~np.isfinite(value)).sum()) if value.dtype.kind == "f" else 0
    return f"{bad} values not finite" if bad else "all finite"
