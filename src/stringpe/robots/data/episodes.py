"""Where the episodes of a folder are: LeRobot's formats 2.0, 2.1 and 3.0, written by LeRobot or by us.

- 2.x: one Parquet file per episode, `data/chunk-000/episode_000000.parquet`, and one video per episode and camera.
- 3.0: `data/chunk-000/file-000.parquet` holds episodes one after the other, and so do videos; `meta/episodes/` says
  which file and which seconds. Our own files hold one episode each and say so in their footers, so that a folder whose
  writer was killed is read without `meta/episodes/`.
"""

import itertools
import json
import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ...io.files import find_mismatch, read_record
from . import parquet
from .columns import ACTION, COUNTERS, STATE
from .parquet import BrokenEpisode, Footer

VERSION = "v3.0"
CHUNK = 1000
"""Files per folder."""
_INFO = {"fps": float, "features": {str: {"dtype": str, "shape": [int]}}}
_LISTED = {**_INFO, "data_path": str}  # from v3.0 on, files are found by it
_ROW = {
    "episode_index": int, "data/chunk_index": int, "data/file_index": int, "length": int, "dataset_from_index": int,
    "tasks": ([str], None), "seed": (int, None),
}  # fmt: skip
"""What a row of meta/episodes holds at least, from v3.0 on; a seed only where we wrote it."""
_WIDTH = re.compile(r"(0?\dd)?")  # of a number in a path
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"


@dataclass(frozen=True)
class Clip:
    """Where an episode begins in a video, in seconds."""

    path: Path
    start: float = 0.0


@dataclass(frozen=True)
class Episode:
    """An episode: its file and what it holds. first: number of its first frame in the whole data set; shared: whether
    the file holds other episodes too; videos: by the columns' names in files."""

    number: int
    path: Path
    length: int
    task: str
    seed: int | None
    first: int
    stats: dict[str, Any]
    shared: bool = False
    videos: Mapping[str, Clip] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What to call it in a message."""
        return f"episode {self.number} in {self.path.name}" if self.shared else self.path.name


def episode_path(folder: Path, number: int) -> Path:
    """Where episode `number` is, or will be, in a folder that we write."""
    return folder / DATA_PATH.format(chunk_index=number // CHUNK, file_index=number % CHUNK)


def read_info(folder: Path) -> dict[str, Any]:
    """meta/info.json; ValueError where there is none, or of a version that cannot be read."""
    path = folder / "meta" / "info.json"
    if not path.exists():
        raise ValueError(f"{folder} is not a robot data set: it has no {path.relative_to(folder)}")
    info: dict[str, Any] = read_record(path, dict)
    version = str(info.get("codebase_version", ""))
    if not version.startswith(("v2.", "v3.")):
        known = "v2.0, v2.1 and v3.0 can be read"
        raise ValueError(f"{folder} is in LeRobot's format {version or 'without a version'}; {known}")
    read_record(path, _INFO if version.startswith("v2.") else _LISTED)
    features = info["features"]
    missing = [key for key in (STATE, ACTION) if not features.get(key, {}).get("shape")]
    if missing:
        raise ValueError(f"{path} has no {' and no '.join(missing)}, which policies need")
    nameless = [f for f in features.values() if f["dtype"] == "video" and not isinstance(info.get("video_path"), str)]
    odd = [f for f in features.values() for key in ("info", "video_info") if not isinstance(f.get(key) or {}, dict)]
    if info["fps"] <= 0 or nameless or odd:
        raise ValueError(f"{path} is damaged (its fps, video_path, or the info of a column): restore it")
    if type(info.get("chunks_size", CHUNK)) is not int or info.get("chunks_size", CHUNK) < 1:
        raise ValueError(f"{path} is damaged (its chunks_size is {info['chunks_size']!r:.40}): restore it")
    return info


def find_episodes(folder: Path, info: Mapping[str, Any], broken: dict[str, str]) -> Iterator[Episode]:
    """The episodes of a folder in order; those that cannot be read are left out and named in `broken`."""
    if str(info["codebase_version"]).startswith("v2."):
        paths = sorted((folder / "data").glob("chunk-*/episode_*.parquet"))
        yield from _one_per_file(folder, info, paths, broken)
        return
    paths = sorted((folder / "data").glob("chunk-*/file-*.parquet"))
    if any(map(_is_foreign, paths)):  # or LeRobot has added to a folder of ours
        yield from _listed(folder, info, broken)
    else:
        yield from _one_per_file(folder, info, paths, broken)


def _is_foreign(path: Path) -> bool:
    """Whether another program wrote a file, as far as it can be read."""
    try:
        return parquet.read_footer(path)[0] is None
    except BrokenEpisode:
        return False


def _one_per_file(
    folder: Path, info: Mapping[str, Any], paths: list[Path], broken: dict[str, str]
) -> Iterator[Episode]:
    first = 0
    tasks = read_tasks(folder)
    for path in paths:
        number = int(path.stem.rpartition("_" if "_" in path.stem else "-")[2])
        if path.stem.startswith("file-"):
            number += CHUNK * int(path.parent.name.rpartition("-")[2])
        try:
            footer, length, sizes = parquet.read_footer(path)
            _check_columns(path, sizes, info)
            if not length:
                raise BrokenEpisode(f"{path.name} has no steps")
            if footer is None:  # LeRobot's own: the task stands in a column
                index = int(parquet.read(path, ["task_index"])["task_index"][0])
                footer = Footer(length, tasks.get(index, ""), None, {})
        except BrokenEpisode as error:
            broken[path.name] = str(error)
            continue
        videos = {key: Clip(_video_path(folder, info, key, number)) for key in _videos(info)}
        yield Episode(number, path, length, footer.task, footer.seed, first, footer.stats, videos=videos)
        first += length


def _listed(folder: Path, info: Mapping[str, Any], broken: dict[str, str]) -> Iterator[Episode]:
    """Episodes as meta/episodes lists them: files may hold several."""
    paths = sorted((folder / "meta" / "episodes").glob("*/*.parquet"))
    if not paths:
        raise ValueError(f"{folder} has no files under meta/episodes: it was not finalised, or not copied whole")
    checked: dict[Path, str] = {}
    known: set[int] = set()
    for row in itertools.chain.from_iterable(_read_listed(path, info) for path in paths):
        number = row["episode_index"]
        if number in known:
            raise ValueError(f"{folder} lists episode {number} twice under meta/episodes: restore these files")
        known.add(number)
        where = {"chunk_index": row["data/chunk_index"], "file_index": row["data/file_index"]}
        path = _fill_path(folder, info, "data_path", where)
        if path not in checked:
            checked[path] = _damage(path, info)
        if checked[path]:
            broken[f"episode {number} in {path.name}"] = f"episode {number}: {checked[path]}"
            continue
        clips = {key: _clip(folder, info, key, row) for key in _videos(info)}
        task, length, first = " ".join(row["tasks"] or []), row["length"], row["dataset_from_index"]
        yield Episode(number, path, length, task, row.get("seed"), first, {}, shared=True, videos=clips)


def _read_listed(path: Path, info: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a file of meta/episodes, once they have what is read of them."""
    rows = parquet.read_rows(path)
    shape = dict(_ROW)
    for key in _videos(info):
        shape |= {f"videos/{key}/{part}": int for part in ("chunk_index", "file_index")}
        shape[f"videos/{key}/from_timestamp"] = float
    for i in range(len(next(iter(rows.values()), []))):
        row = {key: values[i] for key, values in rows.items()}
        wrong = find_mismatch({"seed": None, **row}, shape)
        counts = [key for key, kind in shape.items() if kind is int]
        wrong = wrong or next((f"{key} is {row[key]}" for key in counts if row[key] < (key == "length")), "")
        if wrong:
            raise ValueError(f"row {i} of {path} is damaged ({wrong}): restore it")
        yield row


def _damage(path: Path, info: Mapping[str, Any]) -> str:
    """What is wrong with a file, or nothing."""
    try:
        _check_columns(path, parquet.read_footer(path)[2], info)
    except BrokenEpisode as error:
        return str(error)
    return ""


def _videos(info: Mapping[str, Any]) -> list[str]:
    return [key for key, feature in info["features"].items() if feature["dtype"] == "video"]


def _video_path(folder: Path, info: Mapping[str, Any], key: str, number: int) -> Path:
    chunk = number // info.get("chunks_size", CHUNK)
    where = {"video_key": key, "episode_chunk": chunk, "episode_index": number}
    return _fill_path(folder, info, "video_path", where)


def _fill_path(folder: Path, info: Mapping[str, Any], name: str, where: Mapping[str, Any]) -> Path:
    """The file that a pattern of info.json names, which lies in the folder of the data set: the pattern is data, and a
    path that leads elsewhere is refused."""
    pattern = info[name]
    try:
        fields = [field for field in string.Formatter().parse(pattern) if field[1] is not None]
        plain = all(field in where and _WIDTH.fullmatch(kind or "") and not cast for _, field, kind, cast in fields)
        path = pattern.format(**where) if plain else ""
    except ValueError:
        path = ""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in path:
        allowed = ", ".join(f"{{{field}}}" for field in where)
        raise ValueError(
            f"{folder / 'meta' / 'info.json'} has {name} {pattern[:80]!r}: it must be a path below the folder, made of "
            f"{allowed}"
        )
    return folder / path


def _clip(folder: Path, info: Mapping[str, Any], key: str, row: Mapping[str, Any]) -> Clip:
    chunk, file = row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"]
    where = {"video_key": key, "chunk_index": chunk, "file_index": file}
    return Clip(_fill_path(folder, info, "video_path", where), float(row[f"videos/{key}/from_timestamp"]))


def _check_columns(path: Path, sizes: Mapping[str, int], info: Mapping[str, Any]) -> None:
    """Refuse a file that lacks columns of info.json, or has others."""
    features = info["features"]
    missing = [key for key, f in features.items() if key not in sizes and f["dtype"] != "video" and key not in COUNTERS]
    if missing:
        raise BrokenEpisode(f"{path.name} has no column {', '.join(missing)}")
    for key in (STATE, ACTION):
        wanted = features[key]["shape"][0]
        if sizes[key] not in (wanted, 1, -1):  # lists without a fixed size are checked when they are read
            raise BrokenEpisode(f"{path.name} has {sizes[key]} numbers in {key}, not {wanted}")


def read_tasks(folder: Path) -> dict[int, str]:
    """Task texts by their numbers."""
    lines, table = folder / "meta" / "tasks.jsonl", folder / "meta" / "tasks.parquet"
    if table.exists():
        rows = parquet.read_rows(table)
        numbers = rows.pop("task_index")
        texts = rows.get("task") or next(iter(rows.values()))
        return dict(zip(numbers, texts, strict=True))
    if not lines.exists():
        return {}
    return dict(_read_task(lines, number, line) for number, line in enumerate(lines.read_bytes().splitlines(), 1))


def _read_task(path: Path, number: int, line: bytes) -> tuple[int, str]:
    try:
        row = json.loads(line)
        wrong = find_mismatch(row, {"task_index": int, "task": str})
    except (ValueError, RecursionError) as error:
        wrong = str(error)
    if wrong:
        raise ValueError(f"line {number} of {path} is damaged ({wrong}): restore it")
    return row["task_index"], row["task"]
