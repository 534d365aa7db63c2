"""The commands `stringpe data …`: what makes, lifts or imports data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any


def scenes(
    out: Path,
    count: int = 10_000,
    size: tuple[int, int] = (128, 128),
    families: tuple[str, ...] = (),
    shard_size: int = 1000,
    seed: int = 0,
    decorated: bool = False,
    device: str = "",
) -> None:
    """Render procedural RGB-D scenes to WebDataset shards, with boxes, segmentation and captions, and a contact sheet.

    Run it again to resume where it stopped.

    Args:
        out: Folder for the shards, dataset.json and the contact sheet.
        count: Frames in all.
        size: Height and width in pixels.
        families: Of living, tabletop, tables and trays; all by default.
        shard_size: Frames a shard.
        seed: Of the scenes: the same seed gives the same frames.
        decorated: Put a few objects on the furniture of living rooms, too; the paper's have none.
        device: cpu or cuda; a GPU if there is one.
    """
    import torch

    from .. import scenes

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    shards = scenes.write(
        out,
        count,
        seed=seed,
        size=size,
        families=families or scenes.FAMILIES,
        shard_size=shard_size,
        decorated=decorated,
        device=where,
    )
    print(f"{count:,} frames in {len(shards)} shards under {out}")


def depth(
    source: str,
    out: Path,
    /,
    model: Path,
    filters: tuple[str, ...] = ("overlay", "no_ground", "outdoor"),
    shard_size: int = 1000,
    batch: int = 8,
    made_up: tuple[float, float] | None = None,
    device: str = "",
) -> None:
    """Lift images to RGB-D with a Depth-Anything-V2 model from a local folder: shards with 16-bit depth in millimetres.

    Run it again to resume; finished shards stay. Many GPUs: accelerate launch -m stringpe.data.depth_lifting …

    Args:
        source: A folder of images, or shards: a path with * or {000..127}. Captions and all else are passed on.
        out: Folder for the shards, provenance.json and summary.json.
        model: Folder of a metric depth model of transformers: config.json and weights.
        filters: What to leave out: overlay, no_ground, outdoor; all by default, none with an empty list.
        shard_size: Images a shard, where the source is a folder.
        batch: Images in the model at a time.
        made_up: NEAR FAR in metres, between which a relative model's disparity is stretched in every image.
        device: cpu or cuda; a GPU if there is one.
    """
    from ..data.depth_lifting import run

    run(source, out, model, filters, shard_size, batch, made_up, device)


def demos(
    task: str,
    options: tuple[str, ...] = (),
    /,
    out: Path | None = None,
    episodes: int = 50,
    size: tuple[int, int] = (128, 128),
    cameras: tuple[str, ...] = (),
    depth: bool = False,
    seed: int = 0,
    noise: float = 1.0,
    quality: int = 90,
    jobs: int = 0,
) -> None:
    """Robot demonstrations by a scripted expert: successes only, each checked by replay; LeRobot-style data set.

    Run it again to resume, or to add episodes.

    Args:
        task: MugOnPlate, HandOverPen, KukaPick, …; a wrong name lists them.
        options: Of the environment, key=value: lighting=dim depth_noise=true "target=red can".
        out: Folder of the data set, with a contact sheet and a video of its first episode; data/TASK by default.
        episodes: That the folder shall hold.
        size: Height and width of the images.
        cameras: All of the robot by default.
        depth: Store depth, too.
        seed: Of the first episode; the others follow.
        noise: Of the way-points and the pace; 0 is none.
        quality: Of JPEG images; 0 is PNG.
        jobs: Processes; 0 is one a core.
    """
    import os

    from rich.progress import Progress

    from ..robots.data import demos
    from ..robots.data.video import show_episode

    out = out or Path("data") / task
    settings = demos.Settings(task, size, cameras, depth, seed, noise, quality, demos.parse_options(options))
    with Progress() as bar:
        row = bar.add_task(task, total=episodes)

        def tell(done: int, failed: int) -> None:
            bar.update(row, completed=done, description=f"{task}, {failed} failed" if failed else task)

        done, failed = demos.write(out, episodes, settings, jobs=jobs or os.cpu_count() or 1, progress=tell)
    sheet, video = show_episode(out)
    print(f"{done} episodes under {out}, {failed} seeds failed; wrote {sheet} and {video}")


def pack(
    folder: Path,
    out: Path,
    /,
    size: int = 128,
    cameras: tuple[str, ...] = (),
    depth: bool = True,
    stride: int = 1,
    quality: int = 80,
    depth_step: int = 1,
) -> None:
    """Put robot demonstrations into one file, small and readable with torch and Pillow alone: data.train=FILE.

    Args:
        folder: A LeRobot-style data set.
        out: The file to write, .safetensors.
        size: Side of the pictures in pixels.
        cameras: All by default.
        depth: Take depth along, where there is any.
        stride: Steps between pictures; actions are kept at every step.
        quality: Of WebP images; 100 keeps pictures of that size as they are.
        depth_step: Millimetres a step of stored depth; coarser is smaller.
    """
    from ..robots.data.dataset import Dataset
    from ..robots.data.pack import pack

    made = Dataset(folder)
    pack(made, out, size=size, cameras=cameras, depth=depth, stride=stride, quality=quality, depth_step=depth_step)
    print(f"{len(made)} episodes in {out}, {out.stat().st_size / 2**20:.1f} MiB")


def hdf5(files: tuple[Path, ...], /, out: Path, task: str, fps: float = 50.0, cameras: tuple[str, ...] = ()) -> None:
    """Import episodes recorded for ACT or ALOHA, one HDF5 file each, into a LeRobot-style data set.

    Args:
        files: episode_0.hdf5 episode_1.hdf5 …
        out: Folder of the data set; run it again to resume.
        task: What the episodes show, in words.
        fps: Steps a second.
        cameras: All by default.
    """
    from ..robots.data.hdf5 import import_hdf5

    added, broken = import_hdf5(files, out, task=task, fps=fps, cameras=cameras)
    print(f"{added} of {len(files)} files added to {out}, {len(broken)} broken")


MAKERS: dict[str, Callable[..., Any]] = {"scenes": scenes, "depth": depth, "demos": demos, "pack": pack, "hdf5": hdf5}


def data(what: str = "", /) -> None:
    """Make data: `stringpe data scenes --help`; likewise depth for images, and demos, pack and hdf5 for robots.

    Args:
        what: scenes, depth, demos, pack or hdf5.
    """
    got = f", not {what!r}" if what else ""
    raise ValueError(f"data makes scenes, depth, demos, pack and hdf5{got}: stringpe data scenes --help, and so on")
