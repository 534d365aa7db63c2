"""Episodes of ACT and ALOHA recordings, one HDF5 file each, into a data set.

A file holds /action (t, a), /observations/qpos (t, s) and /observations/images/<camera>, either (t, h, w, 3) uint8 or
(t, bytes) of encoded pictures. Other entries are left alone. HDF5 can store an entry as a reference to another file;
such entries are refused, since a recording from elsewhere could otherwise read any file of this machine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...io.files import hold_lock
from ...io.imports import ROBOTS, import_optional
from ...io.problems import Problems
from ...io.progress import progress
from . import parquet
from .columns import ACTION, IMAGES, STATE, check_episode
from .parquet import BrokenEpisode
from .writer import Writer

_MOST_BYTES = 1 << 34
"""Largest entry of a file, unpacked: 16 GiB, which is five minutes of one camera of 640 × 480 pixels at 50 Hz."""


def import_hdf5(
    files: Sequence[str | Path],
    folder: str | Path,
    *,
    task: str,
    fps: float = 50,
    robot: str = "aloha",
    cameras: Sequence[str] = (),
) -> tuple[int, dict[str, str]]:
    """Add files to the data set in `folder`; returns how many were added and why others were not.

    cameras: which to take, all by default. Run it again to resume: a file's number is its seed."""
    if not files:
        raise ValueError("there are no HDF5 files to import: pass their paths, for example episode_0.hdf5")
    missing = [str(path) for path in files if not Path(path).is_file()]
    if missing:
        raise ValueError(f"there is no file {missing[0]}: check the paths of the {len(files)} files")
    if not 0 < fps < float("inf"):
        raise ValueError(f"fps, the steps per second, must be above 0, got {fps}")
    added, broken = 0, {}
    alone = hold_lock(Path(folder) / ".import.lock", f"the data set {folder}")
    with alone, Writer(folder, fps=fps, robot=robot) as writer, progress("importing", len(files), unit="files") as job:
        done = writer.seeds
        for number, path in enumerate(map(Path, files)):
            job.show(number)
            if number in done:
                continue
            try:
                frames = read_hdf5(path, cameras)
            except BrokenEpisode as error:
                broken[path.name] = str(error)
                continue
            writer.add(frames, task=task, seed=number)
            added += 1
        job.show(len(files))
    problems = Problems("files")
    problems.extend(broken.values())
    if len(broken) == len(files):
        raise ValueError(f"nothing was imported: {problems.describe(len(files))}")
    problems.warn(total=len(files))
    return added, broken


def read_hdf5(path: Path, cameras: Sequence[str] = ()) -> dict[str, Any]:
    """One file as an episode in memory: see `columns`."""
    h5py = import_optional("h5py", "an HDF5 file", ROBOTS)
    try:
        with h5py.File(path) as file:
            frames = {ACTION: np.asarray(_read_entry(file, "action"), np.float32)}
            frames[STATE] = np.asarray(_read_entry(file, "observations/qpos"), np.float32)
            pictures = _follow(file, "observations/images")
            missing_cameras = [name for name in cameras if name not in pictures]
            if missing_cameras:
                there = ", ".join(pictures)
                raise BrokenEpisode(f"{path.name} has no camera {', '.join(missing_cameras)}; it has {there}")
            for name in cameras or pictures:
                frames[IMAGES + name] = _pictures(IMAGES + name, _read_entry(pictures, name))
    except BrokenEpisode:
        raise
    except Exception as error:  # h5py raises all kinds for damaged files
        raise BrokenEpisode(f"{path.name} cannot be read ({type(error).__name__}: {error})") from None
    try:
        check_episode(frames)
    except ValueError as error:
        raise BrokenEpisode(f"{path.name}: {error}") from None
    return frames


def _follow(group: Any, name: str) -> Any:
    """What lies under a path of a file, once no part of it is a link."""
    import h5py  # type: ignore[import-untyped]

    for part in name.split("/"):
        if part in group and not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is a link, which may lead to another file and is not followed")
        group = group[part]
    return group


def _read_entry(group: Any, name: str) -> Any:
    """The values of an entry, which are stored in this very file and fit into memory."""
    stored = _follow(group, name)
    if stored.external or stored.is_virtual:
        raise ValueError(f"{name} is stored in another file, which is not read")
    if stored.nbytes > _MOST_BYTES:
        raise ValueError(f"{name} has {stored.nbytes} bytes, more than the {_MOST_BYTES} that are read")
    return stored[()]


def _pictures(key: str, stored: Any) -> Any:
    """Pictures (t, h, w, 3), decoded if they are stored encoded."""
    if stored.ndim == 4:
        return stored
    return np.stack([parquet.decode(key, bytes(row)) for row in stored])  # padding after a JPEG does no harm
