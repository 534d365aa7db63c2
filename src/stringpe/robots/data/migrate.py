"""A data set of any format that can be read, copied into LeRobot's format 3.0.

Before, stringpe wrote format 2.1 with depth under keys of its own and its statistics in metres beside pictures in
millimetres, which LeRobot takes for a mean of a thousandth. The copy has LeRobot's keys and statistics.
"""

import shutil
from pathlib import Path
from typing import Any

from ...io.files import claim_folder, hold_lock, new_file
from .dataset import Dataset
from .writer import Writer

_OURS = ("is_depth_map", "depth_unit")


def migrate(source: str | Path, out: str | Path, *, quality: int = 95) -> tuple[int, int]:
    """Copy a data set; returns how many episodes `out` holds and how many broken ones were left out.

    Pictures are copied byte by byte; videos become JPEG pictures of that quality (PNG for 0). Task texts, seeds and
    what is known of the cameras are kept. A second call continues where the first one ended."""
    source, out = Path(source), Path(out)
    if source.resolve() == out.resolve():
        raise ValueError(f"{source} cannot be copied into itself: name another folder")
    data = Dataset(source)
    if not len(data):
        raise ValueError(f"{source} has no readable episode")
    claim_folder(out, {"source": str(source.resolve())}, file="migrated.json", what="data set")
    known = {camera: _about(data.camera_info(camera)) for camera in data.cameras}
    robot = data.info.get("robot_type") or "unknown"
    with (
        hold_lock(out / ".migrate.lock", f"the copy {out}"),
        Writer(out, fps=data.fps, robot=robot, quality=quality, cameras=known) as writer,
    ):
        done = len(writer)
        for number, (episode, frames) in enumerate(data.read_all(lambda i: data.read_encoded(i, quality=quality))):
            if number >= done:
                writer.add(frames, task=episode.task, seed=episode.seed)
        _copy_settings(source, out)
        return len(writer), len(data.broken)


def _about(info: dict[str, Any]) -> dict[str, Any]:
    """What is known of a camera, without what describes its old files."""
    return {key: value for key, value in info.items() if key not in _OURS and not key.startswith("video.")}


def _copy_settings(source: Path, out: Path) -> None:
    """Copy what `stringpe data demos` needs to continue: its settings, and the seeds that failed."""
    for path in [source / "demos.json", *(source / ".claims").glob("*.failed")]:
        if path.exists():
            with new_file(out / path.relative_to(source)) as draft:
                shutil.copyfile(path, draft)
