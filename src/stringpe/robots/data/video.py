"""Videos: the pictures of an episode from LeRobot's files, and an episode to look at as a contact sheet and a film.

Videos are read and written by PyAV. Without it, data sets with videos are refused in words, and films are GIFs.
"""

import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from ...geometry.draw_boxes import write_sheet
from ...io.files import new_file
from ...io.imports import ROBOTS, import_optional
from ...io.pictures import MAX_PIXELS
from .columns import IMAGES, Array, read_range
from .parquet import BrokenEpisode

if TYPE_CHECKING:
    from .dataset import Dataset

Picture = npt.NDArray[np.uint8]
_STEPS = 4095  # of depth in a video: 12 bits


def read_frames(path: Path, start: float, count: int, fps: float, *, deep: bool = False) -> Iterator[Array]:
    """Pictures of a video at the times start + i / fps, i < count: (h, w, 3) uint8; deep: (h, w) uint16 of 12 bits."""
    av = _pyav()
    try:
        # Named, since a format that is guessed may be a list of other files or addresses to read.
        with av.open(str(path), format="mp4") as file:
            stream = file.streams.video[0]
            if stream.width * stream.height > MAX_PIXELS:
                raise ValueError(f"its pictures have {stream.width} × {stream.height} pixels")
            stream.thread_type = "AUTO"
            if start > 0:
                file.seek(max(round((start - 1 / fps) / stream.time_base), 0), stream=stream)
            wanted = 0
            for frame in file.decode(stream):
                if wanted == count:
                    return
                if frame.time is not None and abs(frame.time - start - wanted / fps) < 0.5 / fps:
                    yield frame.to_ndarray(format="gray12le" if deep else "rgb24")
                    wanted += 1
    except (av.FFmpegError, OSError, IndexError, ValueError) as error:
        raise BrokenEpisode(f"{path.name} cannot be read as a video ({error})") from None
    if wanted < count:
        raise BrokenEpisode(f"{path.name} has no picture {(start + wanted / fps):.3f} s after its start")


def dequantise(codes: Array, info: Mapping[str, Any]) -> Array:
    """Depth in metres, float32, from the 12-bit codes of a video.

    A code q stands for the depth z with q / 4095 = (f(z) − f(min)) / (f(max) − f(min)), where f(z) = log(z + shift) if
    use_log, else z. info: of the column, which holds `video.depth_min`, `video.depth_max` (metres), and so on."""
    low, high, shift, use_log = read_range("depth in a video", info)
    if not use_log:
        return (low + codes.astype(np.float32) * ((high - low) / _STEPS)).astype(np.float32)
    first, last = math.log(low + shift), math.log(high + shift)
    return (np.exp(first + codes.astype(np.float64) * ((last - first) / _STEPS)) - shift).astype(np.float32)


def write_video(path: Path, pictures: Sequence[Picture], fps: float = 10.0) -> Path:
    """Writes pictures (h, w, 3) as `path` with .mp4 or .gif in place of its suffix; returns the file."""
    if not len(pictures):
        raise ValueError("a video needs at least one picture, got none")
    if importlib.util.find_spec("av"):
        path = path.with_suffix(".mp4")
        with new_file(path) as draft:
            _mp4(draft.with_name(f"{draft.name}.mp4"), pictures, fps).rename(draft)  # the suffix says the format
        return path
    from PIL import Image

    first, *rest = [Image.fromarray(np.asarray(picture)) for picture in pictures]
    path = path.with_suffix(".gif")
    with new_file(path) as draft:
        first.save(draft, "GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)
    return path


def _mp4(path: Path, pictures: Sequence[Picture], fps: float) -> Path:
    av = _pyav()
    high, wide = (side - side % 2 for side in pictures[0].shape[:2])  # the codec wants even sides
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.width, stream.height, stream.pix_fmt = wide, high, "yuv420p"
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture[:high, :wide]), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def _pyav() -> Any:
    return import_optional("av", "a video", ROBOTS)


def side_by_side(episode: Mapping[str, npt.NDArray[np.uint8]]) -> Picture:
    """All cameras of an episode in a row, (t, h, cameras · w, 3)."""
    return np.concatenate([episode[key] for key in sorted(episode) if key.startswith(IMAGES)], axis=2)


def write_contact_sheet(
    episode: Mapping[str, npt.NDArray[np.uint8]], path: Path, fps: float = 10.0, columns: int = 8
) -> Path:
    """Write a picture of an episode: a row per camera, and a column per moment; moments are evenly spread."""
    cameras = [key for key in sorted(episode) if key.startswith(IMAGES)]
    moments = np.linspace(0, len(episode[cameras[0]]) - 1, columns).round().astype(int).tolist()
    pictures = [[torch.from_numpy(np.asarray(episode[key][i])) for i in moments] for key in cameras]
    names = [key.removeprefix(IMAGES) for key in cameras]
    return write_sheet(pictures, columns=[f"{i / fps:.1f} s" for i in moments], rows=names, path=path, abreast=columns)


def show_episode(data: "Dataset", number: int = 0) -> tuple[Path, Path]:
    """Writes a contact sheet and a video of an episode of a data set into its folder."""
    episode = data[number]
    picture = write_contact_sheet(episode, data.folder / "contact_sheet.png", data.fps)
    return picture, write_video(data.folder / "episode.mp4", list(side_by_side(episode)), data.fps)
