"""The command line: `stringpe --help`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXTRA = "the command line needs the extra packages of stringpe[cli]: pip install 'stringpe[cli]'"


def compare(
    recipe: str = "scenes",
    overrides: tuple[str, ...] = (),
    /,
    encodings: tuple[str, ...] = (),
    seeds: int = 2,
    out: Path = Path("runs/compare"),
    baseline: str = "",
    jobs: int = 0,
) -> None:
    """Train every encoding under one recipe and the same seeds; a table with intervals, curves, an HTML report.

    `stringpe compare properties` is the other comparison: invariance, exactness and cost, without training.

    Args:
        recipe: scenes (runs anywhere), scenes_objects, tiny_imagenet100, imagenet2012 or places365.
        overrides: Changes of the recipe, key=value: optim.lr=3e-4 data.train=train.tar.
        encodings: Rows: names, with options or changes after a colon: circulant:block_size=8 cayley:model.depth=none.
        seeds: Runs of every row.
        out: Folder of the runs, the table and report.html; run it again to resume.
        baseline: Row that differences are taken to; absolute if it is there, else the first.
        jobs: Runs side by side; 0 is one on a GPU and one a core on a CPU.
    """
    from .training.commands import run_compare

    run_compare(recipe, overrides, encodings, seeds, out, baseline, jobs)


def train(recipe: str, overrides: tuple[str, ...] = (), /, out: Path = Path("runs/train")) -> None:
    """Train a recipe; run it again to resume. Many GPUs: accelerate launch -m stringpe.training train …

    Args:
        recipe: scenes, scenes_objects, tiny_imagenet100, imagenet2012 or places365.
        overrides: Changes of the recipe, key=value: model.encoding=cayley optim.lr=3e-4.
        out: Folder of the run: checkpoints, metrics.jsonl, summary.csv.
    """
    from .training.commands import run_train

    run_train(recipe, overrides, out)


def evaluate(
    words: tuple[str, ...],
    /,
    env: str = "",
    trials: int = 50,
    out: Path | None = None,
    jobs: int = 0,
    videos: int = 3,
) -> None:
    """Evaluate a checkpoint on its validation set; or, with --env, try policies in simulation, all on the same states.

    Args:
        words: Folder of a run, or of one of its checkpoints; several with --env. Then changes, key=value: of the
            recipe, for example data.val=elsewhere.tar, or with --env of the environment.
        env: A task to simulate, for example KukaPick: every policy meets the same initial states.
        trials: How many; below 50 intervals are wide.
        out: Folder of trials, videos, eval_info.json and table.md; by default each run's own folder eval/.
        jobs: Simulations side by side; 0 for one a core.
        videos: Kept of successes, and of failures.
    """
    from .training.commands import run_eval, run_simulate, split_words

    if env:
        run_simulate(words, env, trials, out, jobs, videos)
    else:
        run_eval(*split_words(words))


def compare_properties(
    head_dim: int = 64, num_heads: int = 12, coord_dim: int = 3, tokens: int = 196, shift: float = 1000.0, seed: int = 0
) -> None:
    """Compare all encodings: invariance under a shift, distance to the matrix exponential, parameters and cost.

    Args:
        head_dim: Channels of a head.
        num_heads: Heads of the layer.
        coord_dim: Coordinates of a token.
        tokens: Tokens that are encoded for the cost column.
        shift: Units by which all coordinates move for the invariance column.
        seed: Of the random queries, keys, coordinates and parameters.
    """
    import torch
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from . import __version__, properties

    console = Console()
    table = Table(title=f"q and k of {num_heads} heads × {head_dim}, {tokens} tokens, {coord_dim} coordinates")
    for column in (
        "encoding",
        f"score error, shift of {shift:g}",
        "against expm (float64)",
        "parameters",
        "ms (quartiles)",
    ):
        table.add_column(column, justify="left" if column == "encoding" else "right")
    count = len(properties.builders(head_dim, num_heads, coord_dim))
    rows = properties.measure(
        head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim, tokens=tokens, shift=shift, seed=seed
    )
    for row in track(rows, "measuring", total=count, console=console, transient=True):
        table.add_row(
            row.name,
            f"{row.shift_error:.1e}",
            "–" if row.dense_error is None else f"{row.dense_error:.1e}",
            f"{row.parameters:,}",
            f"{row.milliseconds:.2f} ({row.quartiles[0]:.2f}–{row.quartiles[1]:.2f})",
        )
    console.print(table)
    console.print(
        f"stringpe {__version__}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, seed {seed}"
    )


def inspect(
    name: str,
    /,
    out: Path = Path("encoding.png"),
    head_dim: int = 64,
    num_heads: int = 4,
    coord_dim: int = 2,
    extent: float = 16.0,
    noise: float = 0.1,
    seed: int = 0,
) -> None:
    """Draw an encoding: wavelengths, basis, and score maps over displacement.

    Args:
        name: rope, rope_mixed, cayley, circulant or general.
        out: The picture to write; .png, .svg or .pdf.
        head_dim: Channels of a head.
        num_heads: Heads of the layer; up to four are drawn.
        coord_dim: Coordinates of a token; the first two are drawn.
        extent: Half the width of the score maps, in units of the coordinates.
        noise: Spread of the random basis parameters, which a model would learn; 0 draws the start, where P = I.
        seed: Of the encoding, its noise and the token.
    """
    import torch

    from . import create
    from .picture import draw

    torch.manual_seed(seed)
    encoding = create(name, head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim)
    for parameter in encoding.basis.parameters():
        torch.nn.init.normal_(parameter, std=noise)
    print(encoding)
    print(f"wrote {draw(encoding, out, extent=extent, seed=seed)}")


def data_scenes(
    out: Path,
    count: int = 10_000,
    size: tuple[int, int] = (128, 128),
    families: tuple[str, ...] = (),
    shard_size: int = 1000,
    seed: int = 0,
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
        device: cpu or cuda; a GPU if there is one.
    """
    import torch

    from . import scenes

    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    shards = scenes.write(
        out, count, seed=seed, size=size, families=families or scenes.FAMILIES, shard_size=shard_size, device=where
    )
    print(f"{count:,} frames in {len(shards)} shards under {out}")


def data_demos(
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

    from .robots import demos
    from .robots.video import show_episode

    out = out or Path("data") / task
    settings = demos.Settings(task, size, cameras, depth, seed, noise, quality, demos.parse_options(options))
    with Progress() as bar:
        row = bar.add_task(task, total=episodes)

        def tell(done: int, failed: int) -> None:
            bar.update(row, completed=done, description=f"{task}, {failed} failed" if failed else task)

        done, failed = demos.write(out, episodes, settings, jobs=jobs or os.cpu_count() or 1, progress=tell)
    sheet, video = show_episode(out)
    print(f"{done} episodes under {out}, {failed} seeds failed; wrote {sheet} and {video}")


def data_pack(
    folder: Path,
    out: Path,
    /,
    size: int = 128,
    cameras: tuple[str, ...] = (),
    depth: bool = True,
    stride: int = 1,
    quality: int = 90,
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
        quality: Of JPEG images.
        depth_step: Millimetres a step of stored depth; coarser is smaller.
    """
    from .robots.dataset import Dataset
    from .robots.pack import pack

    made = Dataset(folder)
    pack(made, out, size=size, cameras=cameras, depth=depth, stride=stride, quality=quality, depth_step=depth_step)
    print(f"{len(made)} episodes in {out}, {out.stat().st_size / 2**20:.1f} MiB")


def data_hdf5(
    files: tuple[Path, ...], /, out: Path, task: str, fps: float = 50.0, cameras: tuple[str, ...] = ()
) -> None:
    """Import episodes recorded for ACT or ALOHA, one HDF5 file each, into a LeRobot-style data set.

    Args:
        files: episode_0.hdf5 episode_1.hdf5 …
        out: Folder of the data set; run it again to resume.
        task: What the episodes show, in words.
        fps: Steps a second.
        cameras: All by default.
    """
    from .robots.hdf5 import import_hdf5

    added, broken = import_hdf5(files, out, task=task, fps=fps, cameras=cameras)
    print(f"{added} of {len(files)} files added to {out}, {len(broken)} broken")


def data(what: str = "", /) -> None:
    """Make data: `stringpe data scenes --help`, and likewise demos, pack and hdf5 for robots.

    Args:
        what: scenes, demos, pack or hdf5.
    """
    made = "data makes scenes, demos, pack and hdf5"
    raise ValueError(f"{made}, not {what!r}: stringpe data scenes --help" if what else made)


def bench(
    parts: tuple[str, ...] = (),
    /,
    out: Path = Path("bench"),
    device: str = "",
    ways: tuple[str, ...] = (),
    modes: tuple[str, ...] = ("eager", "compiled"),
) -> None:
    """Measure what encodings cost, beside the usual ways and the memory floor: a table, a JSON file and a plot.

    Args:
        parts: Of op, block, vit and growth; all by default.
        out: Folder for bench.json, bench.md and bench.png; results that are there are added to.
        device: cuda or cpu; a GPU if there is one.
        ways: Rows of the vit part, by name; all by default.
        modes: Of the vit part.
    """
    from .bench import run
    from .bench.report import PARTS

    run(parts or PARTS, out=out, device=device or None, ways=ways or None, modes=modes)


COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": compare,
    "train": train,
    "eval": evaluate,
    "data": data,
    "bench": bench,
    "inspect": inspect,
}
TWO_WORDS: dict[str, Callable[..., Any]] = {
    "compare properties": compare_properties,
    "data scenes": data_scenes,
    "data demos": data_demos,
    "data pack": data_pack,
    "data hdf5": data_hdf5,
}


def main() -> None:
    """Entry point. What a user can mend is said in one line; anything else is a bug and keeps its traceback."""
    try:
        import matplotlib  # noqa: F401
        import rich  # noqa: F401
        import tyro
    except ImportError as missing:
        sys.exit(f"{EXTRA} ({missing})")
    try:
        words = " ".join(sys.argv[1:3])
        if words in TWO_WORDS:
            tyro.cli(TWO_WORDS[words], args=sys.argv[3:], prog=f"stringpe {words}")
            return
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="stringpe", description="STRING position encodings")
    except (ValueError, OSError) as error:
        sys.exit(f"stringpe: {error}")
