"""The commands `stringpe data …`, which make, lift, pack or import data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from .commands import check_device
from .parse import Changes, Count, Least, Natural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..scenes import Frames

_FRAMES_SHOWN = 8  # on a page

Quality = Annotated[int, Least(0)]


def scenes(
    out: Path,
    count: Count = 10_000,
    size: tuple[Count, Count] = (128, 128),
    families: tuple[str, ...] = (),
    views: Count = 1,
    shard_size: Count = 1000,
    seed: int = 0,
    decorated: bool = False,
    device: str = "",
    html: bool = False,
    rrd: bool = False,
) -> None:
    """Render procedural RGB-D scenes to WebDataset shards, with boxes, segmentation and captions, and a contact sheet.

    Run it again to resume where it stopped.

    Args:
        out: Folder for the shards, dataset.json and the contact sheet.
        count: Frames in all.
        size: Height and width in pixels.
        families: Any of living, tabletop, tables and trays; all by default.
        views: Cameras per scene: that many consecutive frames show the same room, with poses in the room's frame.
        shard_size: Frames per shard.
        seed: Seed of the scenes; the same seed gives the same frames.
        decorated: Also put a few objects on the furniture of living rooms; the paper's have none.
        device: cpu or cuda; a GPU if there is one.
        html: Also write scene.html, a page on which the first frames and their boxes can be turned.
        rrd: Also write scene.rrd, the same for rerun.
    """
    from .. import scenes
    from ..devices import find_device

    where = check_device(device) or str(find_device())
    shards = scenes.write(
        out,
        count,
        seed=seed,
        size=size,
        families=families or scenes.FAMILIES,
        views=views,
        shard_size=shard_size,
        decorated=decorated,
        device=where,
    )
    print(f"{count:,} frames in {_shards(len(shards))} under {out}, and a look at them: {out / 'contact_sheet.png'}")
    if html or rrd:
        first, kinds = range(min(count, _FRAMES_SHOWN)), families or scenes.FAMILIES
        chosen = scenes.sample(seed, first, families=kinds, views=views, decorated=decorated, device=where)
        for path in _show_frames(scenes.render(chosen, size), out / "scene", html, rrd):
            print(f"wrote {path}")


def _shards(count: int) -> str:
    return "1 shard" if count == 1 else f"{count:,} shards"


def _show_frames(frames: "Frames", path: Path, html: bool, rrd: bool) -> "Iterator[Path]":
    """Write a page, or a file for rerun, with frames and the objects that are seen in them; yields their paths."""
    import torch

    from .. import scenes, viewer

    shown = [
        viewer.Frame(
            (rgb * 255).round().to(torch.uint8),
            depth,
            intrinsics,
            [viewer.Box(boxes[thing.slot], f"{thing.colour} {thing.kind}") for thing in seen],
            ". ".join(captions),
        )
        for rgb, depth, intrinsics, boxes, seen, captions in zip(
            frames.rgb,
            frames.depth,
            frames.intrinsics,
            frames.box3d,
            scenes.seen(frames),
            scenes.captions(frames, count=1),
            strict=True,
        )
    ]
    if html:
        yield viewer.save(viewer.show_frames(shown, title="Procedural scenes"), path.with_suffix(".html"))
    if rrd:
        yield viewer.record_frames(shown, path.with_suffix(".rrd"))


def depth(
    source: str,
    out: Path,
    /,
    model: Path,
    filters: tuple[str, ...] = ("overlay", "no_ground", "outdoor"),
    shard_size: Count = 1000,
    batch: Count = 8,
    made_up: tuple[float, float] | None = None,
    classifier: Path | None = None,
    classes: Path | None = None,
    device: str = "",
) -> None:
    """Lift images to RGB-D with a Depth-Anything-V2 model from a local folder: shards with 16-bit depth in millimetres.

    Run it again to resume; finished shards stay. `accelerate launch -m stringpe data depth SOURCE OUT` takes all GPUs
    of a machine, and the tasks of a SLURM array share the work of several machines: docs/scale.md.

    Args:
        source: A folder of images, or shards: a path with * or {000..127}. Captions and everything else are passed on.
        out: Folder for the shards, provenance.json and summary.json.
        model: Folder of a metric depth model of transformers: config.json and weights.
        filters: What to leave out: by default overlay, no_ground and outdoor, by pixels and depth; illusion (optical
            illusions and pictures of pictures) needs --classifier; an empty list leaves nothing out.
        shard_size: Images per shard, where the source is a folder.
        batch: Images in the model at a time.
        made_up: NEAR FAR in metres, to which the disparity of a relative model is stretched in every image.
        classifier: Folder of a CLIP or SigLIP model of transformers, for the filter illusion.
        classes: JSON file with texts by class, in place of the filter's own; only images of the class "keep" stay.
        device: cpu or cuda; a GPU if there is one.
    """
    from ..data.depth_lifting import run

    run(source, out, model, filters, shard_size, batch, made_up, classifier, classes, check_device(device))


def shards(
    source: Path,
    out: Path,
    /,
    captions: bool = False,
    shard_size: Count = 1000,
    seed: int = 0,
) -> None:
    """Write a folder of images as shards for data.source=stream or shards: shuffled, each with an index of offsets.

    Run it again to resume; finished shards stay. The processes of accelerate launch, and the tasks of a SLURM array,
    share the work.

    Args:
        source: A folder with one folder of images per class.
        out: Folder for the shards, their indices and dataset.json.
        captions: The folder holds captioned images: captions.json, captions.csv, or a .txt file beside each image.
        shard_size: Images per shard.
        seed: Seed of the order.
    """
    from ..data.order import read_launch
    from ..data.sharding import write_shards

    made = write_shards(source, out, captions=captions, shard_size=shard_size, seed=seed, launch=read_launch())
    rest = f"; other processes have {made.missing} to make" if made.missing else ""
    print(f"{made.samples:,} images in {_shards(made.shards)} under {out}{rest}: data.train_size={made.samples}")


def index(pattern: tuple[str, ...], /) -> None:
    """Write an index beside every shard, with the offsets of its samples, so that a stream can resume in the middle.

    A stream over a network needs the index to resume without reading what came before; of local tars it can read the
    headers instead, which is slower. The format is that of NVIDIA DALI's wds2idx.

    Args:
        pattern: Shards: paths with * or {000..127}, without compression.
    """
    from concurrent.futures import ThreadPoolExecutor

    from ..data.addresses import find_shards
    from ..data.tars import count_samples, write_index
    from ..io.progress import progress

    paths = [path for one in pattern for path in find_shards(one)]
    with progress("index", len(paths), unit="shards") as advance, ThreadPoolExecutor() as pool:
        for _ in pool.map(write_index, paths):
            advance(1)
    total = sum(count_samples(str(path)) or 0 for path in paths)
    print(f"{total:,} samples in {_shards(len(paths))}, each with its .idx: data.train_size={total}")


def demos(
    task: str,
    /,
    out: Path | None = None,
    episodes: Count = 50,
    size: tuple[Count, Count] = (128, 128),
    cameras: tuple[str, ...] = (),
    depth: bool = False,
    seed: int = 0,
    noise: float = 1.0,
    quality: Quality = 90,
    jobs: Natural = 0,
    changes: Changes = (),
) -> None:
    """Record robot demonstrations by a scripted expert, as a LeRobot v3.0 data set: successes only, checked by replay.

    Settings of the environment are key=value words anywhere: lighting=dim depth_noise=true "target=red can".
    Run it again to resume, or to add episodes.

    Args:
        task: MugOnPlate, HandOverPen, KukaPick, …; a wrong name lists all of them.
        out: Folder of the data set, with a contact sheet and a video of its first episode; data/TASK by default.
        episodes: How many episodes the folder is to hold.
        size: Height and width of the images.
        cameras: Which cameras; all of the robot by default.
        depth: Also store depth.
        seed: Seed of the first episode; the others follow.
        noise: Noise of the way-points and the pace, relative to the usual; 0 for none.
        quality: Quality of JPEG images; 0 for PNG.
        jobs: Processes; 0 for one per core.
    """
    import os

    from ..io.progress import progress
    from ..robots.data import demos
    from ..robots.data.dataset import Dataset
    from ..robots.data.video import show_episode

    out = out or Path("data") / task
    settings = demos.DemoSettings(task, size, cameras, depth, seed, noise, quality, demos.parse_options(changes))
    with progress(task, episodes, unit="episodes") as advance:
        shown = 0

        def tell(done: int, failed: int) -> None:
            nonlocal shown
            advance(done - shown)
            shown = done

        done, failed = demos.write(out, episodes, settings, jobs=jobs or os.cpu_count() or 1, progress=tell)
    sheet, video = show_episode(Dataset(out))
    print(f"{done} episodes under {out}, {failed} seeds failed; wrote {sheet} and {video}")


def pack(
    folder: Path,
    out: Path,
    /,
    size: Count = 128,
    cameras: tuple[str, ...] = (),
    depth: bool = True,
    stride: Count = 1,
    quality: Quality = 80,
    depth_step: Count = 1,
) -> None:
    """Pack robot demonstrations into one small file for data.train, which needs torch and Pillow alone to be read.

    Args:
        folder: A LeRobot data set, v2.0 to v3.0, with pictures or videos.
        out: The file to write, .safetensors.
        size: Side of the pictures in pixels.
        cameras: Which cameras; all by default.
        depth: Keep depth, where there is any.
        stride: Steps between pictures; actions are kept at every step.
        quality: Quality of WebP images; at 100, pictures of that size are kept as they are.
        depth_step: Millimetres per step of stored depth; coarser steps make a smaller file.
    """
    from ..robots.data.dataset import Dataset
    from ..robots.data.pack import pack

    made = Dataset(folder)
    pack(made, out, size=size, cameras=cameras, depth=depth, stride=stride, quality=quality, depth_step=depth_step)
    print(f"{len(made)} episodes in {out}, {out.stat().st_size / 2**20:.1f} MiB")


def hdf5(files: tuple[Path, ...], /, out: Path, task: str, fps: float = 50.0, cameras: tuple[str, ...] = ()) -> None:
    """Import episodes recorded for ACT or ALOHA, one HDF5 file each, into a LeRobot v3.0 data set.

    Args:
        files: episode_0.hdf5 episode_1.hdf5 …
        out: Folder of the data set; run it again to resume.
        task: What the episodes show, in words.
        fps: Steps per second.
        cameras: Which cameras; all by default.
    """
    from ..robots.data.hdf5 import import_hdf5

    added, broken = import_hdf5(files, out, task=task, fps=fps, cameras=cameras)
    print(f"{added} of {len(files)} files added to {out}, {len(broken)} broken")


def migrate(source: Path, out: Path, /, quality: Quality = 95) -> None:
    """Copy a robot data set of any LeRobot format into one of format v3.0, with pictures in place of videos.

    Data sets that stringpe wrote in v2.1 get LeRobot's keys and units of depth, and right statistics. Pictures are
    copied as they are, seeds are kept, and stringpe data demos goes on in the new folder. Run it again to resume.

    Args:
        source: A LeRobot data set: v2.0, v2.1 or v3.0.
        out: Folder of the new data set.
        quality: Quality of JPEG images made from videos; 0 for PNG.
    """
    from ..robots.data.migrate import migrate

    copied, broken = migrate(source, out, quality=quality)
    print(f"{copied} episodes under {out}, {broken} broken ones left out")
