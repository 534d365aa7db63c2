"""Writing a folder of demonstrations in LeRobot's format 3.0: one episode per Parquet file, and meta/ to look them up.

    with Writer("data/pick", fps=50, robot="aloha") as writer:          # again later, or in several processes at once
        number = writer.add({"observation.state": …, "action": …, "observation.images.overhead": …}, task="…", seed=7)

The files of the episodes are the truth; meta/ is derived from them by `write_meta`. An episode appears by one rename,
under the first free number and while its writer holds the folder's lock: a killed process loses at most the episode in
its hands, numbers have no gaps, and several processes can write to one folder.
"""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ...io.files import new_file, read_json, remove_all_stale_drafts, write_json
from . import parquet
from .claims import wait_for_lock
from .columns import ACTION, DEPTH, Array, check_episode, describe, is_encoded, is_picture, stored_key
from .dataset import Dataset
from .episode_statistics import pick_pictures, pool_statistics, summarise
from .episodes import CHUNK, DATA_PATH, VERSION, Episode, episode_path
from .parquet import BrokenEpisode, Footer


class Writer:
    """Adds episodes to a folder, new or existing. Leaving `with` writes meta/.

    quality: of JPEG images, 0 for PNG. cameras: what else is known of each camera, by name, such as its intrinsics; it
    is stored in the `info` of the camera's columns (see `Dataset.camera_info`)."""

    def __init__(
        self,
        folder: str | Path,
        *,
        fps: float,
        robot: str = "unknown",
        quality: int = 95,
        cameras: Mapping[str, Mapping[str, Any]] | None = None,
    ):
        parquet.arrow()
        self.folder, self.fps, self.robot, self.quality = Path(folder), fps, robot, quality
        self.cameras = cameras or {}
        for chunk in (self.folder / "data").glob("chunk-*"):
            remove_all_stale_drafts(chunk)
        self._episodes: list[Episode] = []
        self._check_version()
        self._refresh()

    @property
    def seeds(self) -> set[int]:
        """Seeds of the episodes that are there now, whoever wrote them."""
        self._refresh()
        return {e.seed for e in self._episodes if e.seed is not None}

    def __len__(self) -> int:
        self._refresh()
        return len(self._episodes)

    def add(self, frames: Mapping[str, Any], *, task: str, seed: int | None = None) -> int:
        """Write one episode and return its number. The episode is there whole when this returns, or not at all.

        frames: as `columns` describes an episode in memory; pictures may be lists of encoded bytes instead, depth then
        16-bit PNG in millimetres."""
        frames = {key: value if is_encoded(value) else np.asarray(value) for key, value in frames.items()}
        check_episode(frames)
        numbers = {key: value for key, value in frames.items() if not is_picture(key)}
        pictures = {key: self._encode(key, value) for key, value in frames.items() if is_picture(key)}
        samples = {key: _sample_pictures(key, value) for key, value in pictures.items()}
        self._check_features(describe(numbers, {key: value.shape[1:3] for key, value in samples.items()}, self.cameras))
        length = len(numbers[ACTION])
        stats = summarise(numbers, {stored_key(key): value for key, value in samples.items()})
        with wait_for_lock(self.folder / "meta" / ".lock", f"the data set {self.folder}"):
            self._refresh()
            number = len(self._episodes)
            counters = self._counters(number, length, task)
            columns = {stored_key(key): value for key, value in pictures.items()} | numbers | counters
            with new_file(episode_path(self.folder, number)) as draft:
                parquet.write(draft, columns, Footer(length, task, seed, stats | summarise(counters, {})))
        return number

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        write_meta(self.folder)

    def _encode(self, key: str, pictures: Any) -> list[bytes]:
        return pictures if is_encoded(pictures) else [parquet.encode(key, each, self.quality) for each in pictures]

    def _counters(self, number: int, length: int, task: str) -> dict[str, Array]:
        """LeRobot's columns that say where each step of an episode stands in the data set."""
        first = sum(e.length for e in self._episodes)
        tasks = list(dict.fromkeys([*(e.task for e in self._episodes if e.length), task]))
        steps = np.arange(length)
        return {
            "timestamp": (steps / self.fps).astype(np.float32),
            "frame_index": steps,
            "episode_index": np.full(length, number),
            "index": steps + first,
            "task_index": np.full(length, tasks.index(task)),
        }

    def _check_version(self) -> None:
        """Refuse a folder in another format."""
        path = self.folder / "meta" / "info.json"
        version = read_json(path).get("codebase_version") if path.exists() else VERSION
        if version != VERSION:
            new = f"{self.folder}_{VERSION.partition('.')[0]}"
            raise ValueError(
                f"{self.folder} is in LeRobot's format {version}, and episodes are written in {VERSION}: "
                f"copy it with stringpe data migrate {self.folder} {new}, and go on there"
            )

    def _refresh(self) -> None:
        """Look for episodes that appeared since the last time."""
        while (path := episode_path(self.folder, len(self._episodes))).exists():
            number = len(self._episodes)
            last = self._episodes[-1] if self._episodes else None
            first = last.first + last.length if last else 0
            try:
                footer, length, _ = parquet.read_footer(path)
            except BrokenEpisode:  # its number is taken; readers leave it out
                self._episodes.append(Episode(number, path, 0, "", None, first, {}))
                continue
            if footer is None:
                raise ValueError(f"{self.folder} was written by another program: choose another folder")
            self._episodes.append(Episode(number, path, length, footer.task, footer.seed, first, footer.stats))

    def _check_features(self, features: dict[str, Any]) -> None:
        """Write meta/info.json for the first episode; refuse later ones that look different."""
        path = self.folder / "meta" / "info.json"
        if not path.exists():
            write_json(path, _info(features, self.fps, self.robot))
        info = read_json(path)
        if info["features"] != features or info["fps"] != self.fps:
            known, new = info["features"] | {"fps": info["fps"]}, features | {"fps": self.fps}
            other = [k for k in sorted(known.keys() | new.keys()) if known.get(k) != new.get(k)]
            differences = "; ".join(f"{k}: {_shape(known.get(k))} there, {_shape(new.get(k))} now" for k in other)
            raise ValueError(f"{self.folder} holds episodes of another shape ({differences}): choose another folder")


def write_meta(folder: str | Path) -> None:
    """Derive meta/ from the episodes: info, episodes, tasks and statistics. Safe to call at any time."""
    folder = Path(folder)
    meta = folder / "meta"
    if not (meta / "info.json").exists():
        return  # nothing was ever added
    data = Dataset(folder)
    if not len(data):
        return
    tasks = list(dict.fromkeys(e.task for e in data.episodes))
    with new_file(meta / "tasks.parquet") as draft:
        parquet.write_rows(draft, {"task_index": range(len(tasks)), "task": tasks}, index="task")
    with new_file(meta / "episodes" / "chunk-000" / "file-000.parquet") as draft:
        parquet.write_rows(draft, _episode_rows(data.episodes))
    write_json(meta / "stats.json", pool_statistics([e.stats for e in data.episodes]))
    frames = sum(e.length for e in data.episodes)
    totals = {"total_episodes": len(data), "total_frames": frames, "total_tasks": len(tasks)}
    write_json(meta / "info.json", data.info | totals | {"splits": {"train": f"0:{len(data)}"}})


def _episode_rows(episodes: list[Episode]) -> dict[str, list[Any]]:
    """meta/episodes: one row per episode, with its place and its statistics."""
    rows = []
    for e in episodes:
        row = {"episode_index": e.number, "tasks": [e.task], "length": e.length, "seed": e.seed}
        row |= {"data/chunk_index": e.number // CHUNK, "data/file_index": e.number % CHUNK}
        row |= {"dataset_from_index": e.first, "dataset_to_index": e.first + e.length}
        row |= {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0}
        row |= {f"stats/{key}/{name}": value for key, s in e.stats.items() for name, value in s.items()}
        rows.append(row)
    return {key: [row[key] for row in rows] for key in rows[0]}


def _sample_pictures(key: str, encoded: list[bytes]) -> Array:
    """Pictures for the statistics: (k, h, w, 3) uint8, or depth (k, h, w) in millimetres."""
    pictures = [parquet.decode(key, encoded[i]) for i in pick_pictures(len(encoded))]
    if len({p.shape for p in pictures}) != 1:
        raise ValueError(f"pictures of {key} differ in size: {sorted({p.shape for p in pictures})}")
    return np.stack([parquet.depth_to_steps(p) if key.startswith(DEPTH) else p for p in pictures])


def _info(features: dict[str, Any], fps: float, robot: str) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": robot,
        "total_episodes": 0,
        "total_frames": 0,
        "total_tasks": 0,
        "chunks_size": CHUNK,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": int(fps) if float(fps).is_integer() else fps,
        "splits": {},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features,
    }


def _shape(feature: Any) -> str:
    if not isinstance(feature, dict):
        return str(feature)
    return f"{feature['dtype']} {feature['shape']}" + (f" {feature['info']}" if feature.get("info") else "")
