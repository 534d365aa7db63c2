"""An episode to look at: a contact sheet, and a video (MP4 where imageio has ffmpeg, else an animated GIF)."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...io.files import new_file

Picture = npt.NDArray[np.uint8]


def write_video(path: Path, pictures: Sequence[Picture], fps: float = 10.0) -> Path:
    """Writes pictures (h, w, 3) as `path` with .mp4 or .gif in place of its suffix; returns the file."""
    if not len(pictures):
        raise ValueError("a video needs at least one picture, got none")
    if importlib.util.find_spec("imageio") and importlib.util.find_spec("imageio_ffmpeg"):
        path = path.with_suffix(".mp4")
        with new_file(path) as draft:
            _mp4(draft.with_name(f"{draft.name}.mp4"), pictures, fps).rename(draft)  # ffmpeg looks at the suffix
        return path
    from PIL import Image

    first, *rest = [Image.fromarray(np.asarray(picture)) for picture in pictures]
    path = path.with_suffix(".gif")
    with new_file(path) as draft:
        first.save(draft, "GIF", save_all=True, append_images=rest, duration=round(1000 / fps), loop=0)
    return path


def _mp4(path: Path, pictures: Sequence[Picture], fps: float) -> Path:
    import imageio.v2 as imageio

    file: Any = imageio.get_writer(path, fps=fps, codec="libx264", macro_block_size=2)
    with file as writer:
        for picture in pictures:
            high, wide = (side - side % 2 for side in picture.shape[:2])  # the codec wants even sides
            writer.append_data(np.asarray(picture[:high, :wide]))
    return path


def side_by_side(episode: Mapping[str, npt.NDArray[np.uint8]]) -> Picture:
    """All cameras of an episode in a row, (t, h, cameras · w, 3)."""
    return np.concatenate([episode[key] for key in sorted(episode) if key.startswith("observation.images.")], axis=2)


def contact_sheet(episode: Mapping[str, npt.NDArray[np.uint8]], columns: int = 8) -> Picture:
    """Moments of an episode, evenly spread: a row a camera, a column a moment, (cameras · h, columns · w, 3)."""
    rows = []
    for key in sorted(episode):
        if key.startswith("observation.images."):
            frames = episode[key]
            moments = np.linspace(0, len(frames) - 1, columns).round().astype(int)
            rows.append(np.concatenate(list(frames[moments]), axis=1))
    return np.concatenate(rows, axis=0)


def show_episode(folder: Path, number: int = 0) -> tuple[Path, Path]:
    """Writes a contact sheet and a video of an episode of a data set into its folder."""
    from PIL import Image

    from .dataset import Dataset

    data = Dataset(folder)
    episode = data[number]
    sheet = folder / "contact_sheet.png"
    with new_file(sheet) as draft:
        Image.fromarray(contact_sheet(episode)).save(draft, "PNG")
    return sheet, write_video(folder / "episode.mp4", list(side_by_side(episode)), data.fps)
