"""One episode as rows of a Parquet file, as LeRobot writes them with pictures inside.

Columns carry the names of files (see `columns`): numbers as scalars or lists, pictures as structs of encoded bytes and
a path, which `datasets` shows as images. Depth is written as 16-bit PNG in millimetres, 0 for a hole. The footer holds
what the columns do not: task, seed and statistics.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...io.files import find_mismatch
from ...io.imports import ROBOTS, import_optional
from ...io.pictures import MILLIMETRE, BadSample, decode_deep, decode_picture, to_millimetres
from .columns import DEPTH, Array, scalar_type

_MOST_VALUES = 10**8
"""Most values of a column in a file: four times what LeRobot's files of 100 MB can hold of numbers."""

_MOST_BYTES = 1 << 34
"""Largest file, unpacked: 16 GiB."""


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
    """pyarrow with its module parquet."""
    import_optional("pyarrow.parquet", "a robot data set", ROBOTS)
    return import_optional("pyarrow", "a robot data set", ROBOTS)


def encode(key: str, picture: Array, quality: int = 0) -> bytes:
    """A picture as a file in memory: JPEG of that quality (PNG for 0); depth in metres as 16-bit PNG in millimetres."""
    from PIL import Image

    file = io.BytesIO()
    if key.startswith(DEPTH):
        Image.fromarray(depth_to_steps(picture)).save(file, "PNG")
    elif quality:
        # Full colour resolution: at these sizes a coloured object may be a few pixels wide.
        Image.fromarray(picture).save(file, "JPEG", quality=quality, subsampling=0)
    else:
        Image.fromarray(picture).save(file, "PNG", compress_level=1)
    return file.getvalue()


def depth_to_steps(depth: Array) -> Array:
    """Depth in metres as it is stored: whole millimetres, 0 where nothing was measured."""
    return to_millimetres(torch.from_numpy(np.ascontiguousarray(depth))).numpy().astype(np.uint16)


def decode(key: str, data: bytes, unit: float | None = MILLIMETRE) -> Array:
    """An encoded picture: (h, w, 3) uint8, or depth (h, w) float32 in metres.

    unit: metres per step of stored depth; None stands for millimetres in whole numbers and metres in others."""
    try:
        if key.startswith(DEPTH):
            values = decode_deep(data, key, tiff=True).numpy()
            metres = values.astype(np.float32) * (unit or (1.0 if values.dtype.kind == "f" else MILLIMETRE))
            return np.where(np.isfinite(metres), metres, 0).astype(np.float32)
        return np.array(decode_picture(data, key))
    except BadSample as error:
        raise BrokenEpisode(f"a picture of {key} cannot be decoded ({error})") from None


def write(path: Path, columns: Mapping[str, Any], footer: Footer) -> None:
    """Write an episode. columns, by their names in files: arrays of numbers (t, …), and lists of encoded pictures."""
    pa = arrow()
    arrays = {key: _to_arrow(value, pa) for key, value in columns.items()}
    about = {"task": footer.task, "seed": footer.seed, "stats": footer.stats}
    table = pa.table(arrays).replace_schema_metadata(
        {"stringpe": json.dumps(about), "huggingface": json.dumps({"info": {"features": _huggingface(arrays, pa)}})}
    )
    # Pictures are compressed already; small row groups would cost a footer each.
    pa.parquet.write_table(table, path, compression="snappy", row_group_size=max(len(table), 1))


def read_footer(path: Path) -> tuple[Footer | None, int, dict[str, int]]:
    """The footer of a file of one episode (None if another program wrote it), its rows, and its columns with sizes."""
    pa = arrow()
    try:
        metadata = pa.parquet.read_metadata(path)
        schema = metadata.schema.to_arrow_schema()
    except (OSError, pa.ArrowException) as error:
        raise BrokenEpisode(f"{path.name} is not a whole Parquet file ({str(error).splitlines()[0]})") from None
    wrong = _excess(metadata)
    if wrong:
        raise BrokenEpisode(f"{path.name} {wrong}")
    sizes = {field.name: getattr(field.type, "list_size", 1) for field in schema}
    footer = (schema.metadata or {}).get(b"stringpe")
    length = int(metadata.num_rows)
    return (None if footer is None else _footer(path, length, footer)), length, sizes


def _footer(path: Path, length: int, text: bytes) -> Footer:
    """What an episode says of itself, from the file's metadata."""
    try:
        known = json.loads(text)
        wrong = find_mismatch(known, {"task": str, "seed": (int, None), "stats": {str: {str: list}}})
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong:
        raise BrokenEpisode(f"{path.name} has a damaged footer ({wrong})")
    return Footer(length, known["task"], known["seed"], known["stats"])


def read(path: Path, keys: list[str], episode: int | None = None) -> dict[str, Any]:
    """Columns by their names in files: arrays, and lists of encoded bytes for pictures.

    episode: take the rows of that episode alone, where a file holds several."""
    pa = arrow()
    chosen = None if episode is None else [("episode_index", "==", episode)]
    try:
        table = pa.parquet.read_table(path, columns=keys, filters=chosen)
    except (OSError, pa.ArrowException) as error:
        raise BrokenEpisode(f"{path.name} cannot be read ({str(error).splitlines()[0]})") from None
    columns = {}
    for key in keys:
        try:
            columns[key] = _from_arrow(table[key].combine_chunks(), pa)
        except (TypeError, ValueError):
            raise BrokenEpisode(f"{path.name} has rows of different lengths, or without values, in {key}") from None
    return columns


def write_rows(path: Path, columns: Mapping[str, Any], index: str = "") -> None:
    """Write a table of lists. index: the column that pandas takes as the index, as LeRobot has it for tasks."""
    pa = arrow()
    table = pa.table({key: list(values) for key, values in columns.items()})
    if index:
        kinds = {"int64": "int64", "string": "unicode"}
        described = [
            {"name": f.name, "field_name": f.name, "pandas_type": kinds[str(f.type)], "metadata": None}
            | {"numpy_type": "int64" if str(f.type) == "int64" else "object"}
            for f in table.schema
        ]
        about = {"index_columns": [index], "column_indexes": [], "columns": described, "pandas_version": "2.0.0"}
        table = table.replace_schema_metadata({"pandas": json.dumps(about)})
    pa.parquet.write_table(table, path, compression="snappy")


def read_rows(path: Path) -> dict[str, list[Any]]:
    """A table as lists; ValueError with its name if it is damaged."""
    pa = arrow()
    try:
        file = pa.parquet.ParquetFile(path)
        wrong = _excess(file.metadata)
        table: dict[str, list[Any]] = {} if wrong else file.read().to_pydict()
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ValueError(f"{path} is not a whole Parquet file ({str(error).splitlines()[0]}): restore it") from None
    if wrong:
        raise ValueError(f"{path} {wrong}: restore it")
    return table


def _excess(metadata: Any) -> str:
    """Why a file is too large to be read, in words; empty if it is not. A file of a megabyte can claim billions of
    equal values."""
    parts = [
        metadata.row_group(i).column(j) for i in range(metadata.num_row_groups) for j in range(metadata.num_columns)
    ]
    values = max(metadata.num_rows, *(part.num_values for part in parts), 0)
    size = sum(part.total_uncompressed_size for part in parts)
    if values > _MOST_VALUES:
        return f"has {values} values in a column, more than the {_MOST_VALUES} that are read"
    return f"unpacks to {size} bytes, more than the {_MOST_BYTES} that are read" if size > _MOST_BYTES else ""


def _to_arrow(value: Any, pa: Any) -> Any:
    if isinstance(value, list):
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.array([{"bytes": b, "path": None} for b in value], kind)
    flat = pa.array(np.ascontiguousarray(value, np.dtype(scalar_type(value))).reshape(-1))
    for size in reversed(value.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


def _from_arrow(column: Any, pa: Any) -> Any:
    if pa.types.is_struct(column.type):
        return [item["bytes"] for item in column.to_pylist()]
    if isinstance(column.type, pa.ExtensionType):
        column = column.storage
    if not (pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type)):
        return column.to_numpy(zero_copy_only=False)
    return np.array(column.to_pylist(), np.float32)


def _huggingface(columns: Mapping[str, Any], pa: Any) -> dict[str, Any]:
    """Types as the package `datasets` names them, so that it shows pictures as pictures."""
    return {key: _feature(column.type, pa) for key, column in columns.items()}


def _feature(kind: Any, pa: Any) -> dict[str, Any]:
    if pa.types.is_struct(kind):
        return {"_type": "Image"}
    if pa.types.is_fixed_size_list(kind):
        return {"feature": _feature(kind.value_type, pa), "length": kind.list_size, "_type": "Sequence"}
    names = {"float": "float32", "double": "float64"}
    return {"dtype": names.get(str(kind), str(kind)), "_type": "Value"}
