"""A folder of demonstrations, laid out as LeRobot 2.1: one Parquet file per episode, and meta/ to look them up.

    with Writer("data/pick", fps=50, robot="aloha") as writer:          # again later, or in several processes at once
        number = writer.add({"observation.state": …, "action": …, "observation.images.overhead": …}, task="…", seed=7)
    data = Dataset("data/pick")
    data.cameras, len(data), data.broken                                 # what is there, and what was left out
    episode = data[0]                                                    # decoded: see `parquet.Frames`

The files of the episodes are the truth; meta/ is derived from them by `write_meta`. An episode appears by one rename,
under the first free number and while its writer holds the folder's lock: a killed process loses at most the episode in
its hands, numbers have no gaps, and several processes can write to one folder.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ...io.files import new_file, read_json, write_json, write_text
from ...io.problems import Problems
from . import parquet
from .claims import wait_for_lock
from .parquet import ACTION, COUNTERS, DEPTH, IMAGES, STATE, Array, BrokenEpisode, Footer

VERSION = "v2.1"
CHUNK = 1000
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"


@dataclass(frozen=True)
class Episode:
    """An episode's file and what it holds. first: number of its first frame in the whole data set."""

    number: int
    path: Path
    length: int
    task: str
    seed: int | None
    first: int
    stats: dict[str, Any]


class Writer:
    """Adds episodes to a folder, new or existing. quality: of JPEG images, 0 for PNG. Leaving `with` writes meta/.
    cameras: what is known of each camera, such as its intrinsics, for the `info` of its pictures."""

    def __init__(
        self,
        folder: str | Path,
        *,
        fps: float,
        robot: str = "unknown",
        quality: int = 95,
        cameras: Mapping[str, Any] | None = None,
    ):
        parquet.arrow()
        self.cameras = cameras or {}
        self.folder, self.fps, self.robot, self.quality = Path(folder), fps, robot, quality
        self._episodes: list[Episode] = []
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
        """Write one episode and return its number. The episode is there whole when this returns, or not at all."""
        episode = {key: np.asarray(value) for key, value in frames.items()}
        parquet.check(episode)
        self._agree(parquet.features(episode, self.cameras))
        length = len(episode[ACTION])
        pictures = parquet.encode(episode, self.quality)
        footer = Footer(length, task, seed, parquet.statistics(episode))
        with wait_for_lock(self.folder / "meta" / ".lock", f"the data set {self.folder}"):
            self._refresh()
            number = len(self._episodes)
            with new_file(episode_path(self.folder, number)) as draft:
                parquet.write(draft, episode, pictures, footer, self._counters(number, length, task))
        return number

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        write_meta(self.folder)

    def _counters(self, number: int, length: int, task: str) -> dict[str, Array]:
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

    def _agree(self, features: dict[str, Any]) -> None:
        """Write meta/info.json for the first episode; refuse later ones that look different."""
        path = self.folder / "meta" / "info.json"
        if not path.exists():
            write_json(path, _info(features, self.fps, self.robot))
        info = read_json(path)
        if info["features"] != features or info["fps"] != self.fps:
            known, new = info["features"] | {"fps": info["fps"]}, features | {"fps": self.fps}
            other = [k for k in sorted(known.keys() | new.keys()) if known.get(k) != new.get(k)]
            told = "; ".join(f"{k}: {_shape(known.get(k))} there, {_shape(new.get(k))} now" for k in other)
            raise ValueError(f"{self.folder} holds episodes of another shape ({told}): choose another folder")


class Dataset:
    """The episodes of a folder, LeRobot's or ours. Broken ones are left out, listed in `broken` and warned about.

    info: meta/info.json. cameras, depths: names of cameras with images and with depth. `data[i]` decodes an episode.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        path = self.folder / "meta" / "info.json"
        if not path.exists():
            raise ValueError(f"{self.folder} is not a robot data set: it has no {path.relative_to(self.folder)}")
        self.info: dict[str, Any] = read_json(path)
        self.features: dict[str, Any] = self.info["features"]
        self._supported()
        self.fps = float(self.info["fps"])
        self.cameras = [key.removeprefix(IMAGES) for key in self.features if key.startswith(IMAGES)]
        self.depths = [key.removeprefix(DEPTH) for key in self.features if key.startswith(DEPTH)]
        self.broken: dict[str, str] = {}
        self.episodes = list(self._found())
        self._warn(self.broken, len(self.episodes) + len(self.broken))

    def __len__(self) -> int:
        return len(self.episodes)

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Episode `number` of the readable ones, decoded; raises BrokenEpisode if its columns cannot be."""
        return self.read(number)

    def read(self, number: int, keys: list[str] | None = None) -> dict[str, Array]:
        """Decoded columns of an episode; without keys, all but the counters."""
        found = self.encoded(number, keys)
        return {k: _decode_all(k, v) if parquet.is_picture(k) else v for k, v in found.items()}

    def encoded(self, number: int, keys: list[str] | None = None) -> dict[str, Any]:
        """As `read`, with pictures as lists of encoded bytes."""
        found = parquet.read(self.episodes[number].path, keys or [k for k in self.features if k not in COUNTERS])
        for key in (STATE, ACTION):
            if key in found and not np.isfinite(found[key]).all():
                raise BrokenEpisode(f"{self.episodes[number].path.name} has values in {key} that are not finite")
        return found

    def good(self, read: Callable[[int], dict[str, Any]]) -> Iterator[tuple[Episode, dict[str, Any]]]:
        """Every episode with what `read` returns for it; those that turn out broken are left out, with a warning."""
        before = set(self.broken)
        for number, episode in enumerate(self.episodes):
            try:
                found = read(number)
            except BrokenEpisode as error:
                self.broken[episode.path.name] = str(error)
                continue
            yield episode, found
        self._warn({k: v for k, v in self.broken.items() if k not in before}, len(self.episodes))

    def need(self, cameras: list[str], depth: list[str]) -> None:
        """Refuse a data set that lacks some of these cameras or their depth."""
        for what, wanted, there in (("cameras", cameras, self.cameras), ("depth of cameras", depth, self.depths)):
            missing = [name for name in wanted if name not in there]
            if missing:
                raise ValueError(
                    f"{self.folder} has no {what} {', '.join(missing)}; it has {', '.join(there) or 'none'}: "
                    f"ask for those, or record the data again"
                )

    def _warn(self, broken: Mapping[str, str], total: int) -> None:
        problems = Problems("episodes", str(self.folder))
        for reason in broken.values():
            problems.add(reason)
        problems.warn(total, stacklevel=3)

    def _supported(self) -> None:
        version = str(self.info.get("codebase_version", ""))
        if not version.startswith("v2"):
            raise ValueError(
                f"{self.folder} is in LeRobot's format {version or 'without a version'}; only v2.0 and v2.1 can be read"
            )
        videos = [k for k, f in self.features.items() if f["dtype"] == "video"]
        if videos:
            raise ValueError(
                f"{self.folder} keeps {', '.join(videos)} as video, which cannot be read: record images instead"
            )

    def _found(self) -> Iterator[Episode]:
        """Episodes whose file opens and holds the columns of info.json."""
        first = 0
        tasks = _lines(self.folder / "meta" / "tasks.jsonl", "task_index", "task")
        for path in sorted((self.folder / "data").glob("chunk-*/episode_*.parquet")):
            try:
                footer, length, sizes = parquet.read_footer(path)
                self._fits(path, sizes, length)
                if footer is None:  # LeRobot's own: the task stands in a column
                    footer = Footer(
                        length, tasks.get(int(parquet.read(path, ["task_index"])["task_index"][0]), ""), None, {}
                    )
            except BrokenEpisode as error:
                self.broken[path.name] = str(error)
                continue
            number = int(path.stem.rpartition("_")[2])
            yield Episode(number, path, length, footer.task, footer.seed, first, footer.stats)
            first += length

    def _fits(self, path: Path, sizes: dict[str, int], length: int) -> None:
        missing = [key for key in self.features if key not in sizes]
        if missing:
            raise BrokenEpisode(f"{path.name} has no column {', '.join(missing)}")
        for key in (STATE, ACTION):
            wanted = self.features[key]["shape"][0]
            if sizes[key] not in (wanted, 1, -1):  # lists without a fixed size are checked when they are read
                raise BrokenEpisode(f"{path.name} has {sizes[key]} numbers in {key}, not {wanted}")
        if not length:
            raise BrokenEpisode(f"{path.name} has no steps")


def episode_path(folder: Path, number: int) -> Path:
    """Where episode `number` is, or will be."""
    return folder / DATA_PATH.format(episode_chunk=number // CHUNK, episode_index=number)


def write_meta(folder: str | Path) -> None:
    """Derive meta/ from the episodes: info, episodes, tasks and statistics. Safe to call at any time."""
    folder = Path(folder)
    if not (folder / "meta" / "info.json").exists():
        return  # nothing was ever added
    data = Dataset(folder)
    tasks = list(dict.fromkeys(e.task for e in data.episodes))
    episodes = [
        {"episode_index": e.number, "tasks": [e.task], "length": e.length, "seed": e.seed} for e in data.episodes
    ]
    stats = [{"episode_index": e.number, "stats": e.stats} for e in data.episodes if e.stats]
    frames, chunks = sum(e.length for e in data.episodes), -(-len(data) // CHUNK)
    totals = {"total_episodes": len(data), "total_frames": frames, "total_tasks": len(tasks), "total_chunks": chunks}
    info = data.info | totals | {"splits": {"train": f"0:{len(data)}"}}
    meta = folder / "meta"
    write_text(meta / "tasks.jsonl", "".join(_line({"task_index": i, "task": t}) for i, t in enumerate(tasks)))
    write_text(meta / "episodes.jsonl", "".join(map(_line, episodes)))
    write_text(meta / "episodes_stats.jsonl", "".join(map(_line, stats)))
    write_json(meta / "stats.json", pool_statistics([e.stats for e in data.episodes if e.stats]))
    write_json(meta / "info.json", info)


def pool_statistics(each: list[dict[str, Any]]) -> dict[str, Any]:
    """Statistics of all episodes from those of every one."""
    found: dict[str, Any] = {}
    for key in each[0] if each else ():
        count = np.array([s[key]["count"][0] for s in each], np.float64)
        low, high, mean, std = (np.array([s[key][n] for s in each]) for n in ("min", "max", "mean", "std"))
        share = (count / count.sum()).reshape(-1, *[1] * (mean.ndim - 1))
        middle = (share * mean).sum(0)
        spread = np.sqrt((share * (std**2 + (mean - middle) ** 2)).sum(0))
        moments = {"min": low.min(0), "max": high.max(0), "mean": middle, "std": spread}
        found[key] = {name: m.tolist() for name, m in moments.items()} | {"count": [int(count.sum())]}
    return found


def _info(features: dict[str, Any], fps: float, robot: str) -> dict[str, Any]:
    return {
        "codebase_version": VERSION,
        "robot_type": robot,
        "total_episodes": 0,
        "total_frames": 0,
        "total_tasks": 0,
        "total_videos": 0,
        "total_chunks": 0,
        "chunks_size": CHUNK,
        "fps": fps,
        "splits": {},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features,
    }


def _decode_all(key: str, encoded: list[bytes]) -> Array:
    pictures = [parquet.decode(key, b) for b in encoded]
    if len({p.shape for p in pictures}) != 1:
        raise BrokenEpisode(f"pictures of {key} differ in size")
    return np.stack(pictures)


def _lines(path: Path, key: str, value: str) -> dict[int, str]:
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines()) if path.exists() else ()
    return {row[key]: row[value] for row in rows}


def _shape(feature: Any) -> str:
    return f"{feature['dtype']} {feature['shape']}" if isinstance(feature, dict) else str(feature)


def _line(value: Any) -> str:
    return json.dumps(value) + "\n"
