"""A folder of demonstrations in LeRobot's formats 2.0, 2.1 or 3.0, with pictures or videos, LeRobot's or ours.

    data = Dataset("data/pick")
    data.cameras, len(data), data.broken                                 # what is there, and what was left out
    episode = data[0]                                                    # decoded: see `columns`

`writer.Writer` makes such folders.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...io.pictures import MILLIMETRE
from ...io.problems import Problems
from . import parquet, video
from .columns import ACTION, COUNTERS, DEPTH, IMAGES, STATE, Array, StoredColumn, read_columns
from .episodes import Episode, find_episodes, read_info
from .parquet import BrokenEpisode


class Dataset:
    """The episodes of a folder. Broken ones are left out, listed in `broken` and warned about.

    info: meta/info.json. columns: by their keys in memory. cameras, depths: names of cameras with images and with
    depth. `data[i]` decodes an episode."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.info = read_info(self.folder)
        try:
            self.columns = read_columns(self.info["features"])
        except ValueError as error:
            raise ValueError(f"{self.folder / 'meta' / 'info.json'}: {error}") from None
        self.fps = float(self.info["fps"])
        self.cameras = [key.removeprefix(IMAGES) for key in self.columns if key.startswith(IMAGES)]
        self.depths = [key.removeprefix(DEPTH) for key in self.columns if key.startswith(DEPTH)]
        self.broken: dict[str, str] = {}
        self.episodes = list(find_episodes(self.folder, self.info, self.broken))
        self._warn(self.broken, len(self.episodes) + len(self.broken))

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Episode `number` of the readable ones, decoded; raises BrokenEpisode if its columns cannot be."""
        return self.read(number)

    def camera_info(self, camera: str) -> dict[str, Any]:
        """What the data set says of a camera: the `info` of its images, for example its intrinsics."""
        info: dict[str, Any] = self.info["features"][self.columns[IMAGES + camera].stored].get("info") or {}
        return info

    def read(self, number: int, keys: list[str] | None = None) -> dict[str, Array]:
        """Decoded columns of an episode by their keys in memory; without keys, all but the counters."""
        episode, wanted = self.episodes[number], self._choose(keys)
        content = self._read_rows(episode, wanted)
        for column in wanted:
            if column.video:
                content[column.key] = _stack(column.key, self._read_video(episode, column))
            elif column.kind != "numbers":
                content[column.key] = _stack(column.key, _decode_all(column, content[column.key]))
        return content

    def read_encoded(
        self, number: int, keys: list[str] | None = None, *, stride: int = 1, quality: int = 0
    ) -> dict[str, Any]:
        """As `read`, with pictures as lists of encoded bytes, one per `stride` steps; depth as 16-bit PNG in
        millimetres. quality: of the JPEG pictures that are made of videos, 0 for PNG."""
        episode, wanted = self.episodes[number], self._choose(keys)
        content = self._read_rows(episode, wanted)
        for column in wanted:
            if column.video:
                frames = itertools.islice(self._read_video(episode, column), 0, None, stride)
                content[column.key] = [parquet.encode(column.key, frame, quality) for frame in frames]
            elif column.kind == "image" or (column.kind == "depth" and _is_png(content[column.key], column)):
                content[column.key] = content[column.key][::stride]
            elif column.kind == "depth":
                pictures = _decode_all(column, content[column.key][::stride])
                content[column.key] = [parquet.encode(column.key, p) for p in pictures]
        return content

    def read_all(self, read: Callable[[int], dict[str, Any]]) -> Iterator[tuple[Episode, dict[str, Any]]]:
        """Every episode with what `read(number)` returns for it; those that turn out broken are left out, with a
        warning."""
        before = set(self.broken)
        for number, episode in enumerate(self.episodes):
            try:
                content = read(number)
            except BrokenEpisode as error:
                self.broken[episode.name] = str(error)
                continue
            yield episode, content
        self._warn({k: v for k, v in self.broken.items() if k not in before}, len(self.episodes))

    def check_cameras(self, cameras: list[str], depth: list[str]) -> None:
        """Refuse a data set that lacks some of these cameras or their depth."""
        for what, wanted, there in (("cameras", cameras, self.cameras), ("depth of cameras", depth, self.depths)):
            missing = [name for name in wanted if name not in there]
            if missing:
                raise ValueError(
                    f"{self.folder} has no {what} {', '.join(missing)}; it has {', '.join(there) or 'none'}: "
                    f"ask for those, or record the data again"
                )

    def _choose(self, keys: list[str] | None) -> list[StoredColumn]:
        if keys is None:
            return [column for key, column in self.columns.items() if key not in COUNTERS]
        return [self.columns[key] for key in keys]

    def _read_rows(self, episode: Episode, wanted: Iterable[StoredColumn]) -> dict[str, Any]:
        """What the episode's Parquet file holds of these columns."""
        columns = [column for column in wanted if not column.video]
        number = episode.number if episode.shared else None
        stored = parquet.read(episode.path, [column.stored for column in columns], number)
        rows = {column.key: stored[column.stored] for column in columns}
        for key in (STATE, ACTION):
            if key in rows and rows[key].ndim != 2:
                raise BrokenEpisode(f"{episode.name} does not have one list of numbers per step in {key}")
            if key in rows and not np.isfinite(rows[key]).all():
                raise BrokenEpisode(f"{episode.name} has values in {key} that are not finite")
        wrong = [key for key, value in rows.items() if len(value) != episode.length]
        if wrong:
            raise BrokenEpisode(f"{episode.name} has {len(rows[wrong[0]])} steps, not {episode.length}")
        return rows

    def _read_video(self, episode: Episode, column: StoredColumn) -> Iterator[Array]:
        clip = episode.videos[column.stored]
        deep = column.kind == "depth"
        for picture in video.read_frames(clip.path, clip.start, episode.length, self.fps, deep=deep):
            yield video.dequantise(picture, column.info) if deep else picture

    def _warn(self, broken: Mapping[str, str], total: int) -> None:
        problems = Problems("episodes", str(self.folder))
        problems.extend(broken.values())
        problems.warn(total, stacklevel=3)


def _decode_all(column: StoredColumn, encoded: list[bytes]) -> Iterator[Array]:
    for data in encoded:
        yield parquet.decode(column.key, data, column.unit)


def _stack(key: str, pictures: Iterator[Array]) -> Array:
    frames = list(pictures)
    if len({frame.shape for frame in frames}) != 1:
        raise BrokenEpisode(f"pictures of {key} differ in size")
    return np.stack(frames)


def _is_png(encoded: list[bytes], column: StoredColumn) -> bool:
    """Whether depth is stored as `encoded` gives it already."""
    return column.unit in (MILLIMETRE, None) and all(data.startswith(b"\x89PNG") for data in encoded)
