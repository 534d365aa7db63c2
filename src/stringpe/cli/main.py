"""The command line: `stringpe --help`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import data as data_cli

EXTRA = "the command line needs the extra packages of stringpe[cli]: pip install 'stringpe[cli]'"


def compare(
    recipe: str = "relations",
    overrides: tuple[str, ...] = (),
    /,
    encodings: tuple[str, ...] = (),
    seeds: int = 0,
    out: Path = Path("runs/compare"),
    baseline: str = "",
    jobs: int = 0,
    rates: tuple[float, ...] = (),
    rates_share: float = 1.0,
    costs: bool = True,
) -> None:
    """Train every encoding under one recipe and the same seeds; a table with intervals, curves, an HTML report.

    `stringpe compare properties` is the other comparison: invariance, exactness and cost, without training.

    Args:
        recipe: relations (runs anywhere), scenes, scenes_objects, tiny_imagenet100, imagenet2012, flickr8k,
            scenes_retrieval, voc2007, scenes_detection3d, kuka_small, …; a wrong name lists all of them. Those in
            _small suit a CPU.
        overrides: Changes of the recipe, key=value: optim.lr=3e-4 data.train=train.tar.
        encodings: Rows: names, with options or changes after a colon: circulant:block_size=8 cayley:model.depth=none.
        seeds: Runs of every row; 0 is what the recipe's design says, 5 for relations.
        out: Folder of the runs, the table and report.html; run it again to resume.
        baseline: Row that differences are taken to; absolute if it is there, else the first.
        jobs: Runs side by side; 0 is one on a GPU and one per core on a CPU.
        rates: Learning rates to choose from for every row, on a seed of its own, before the runs that are reported.
        rates_share: Length of the runs that choose, as a share of the recipe's.
        costs: Measure step time and memory of all rows in turns, after training.
    """
    from .commands import run_compare

    run_compare(recipe, overrides, encodings, seeds, out, baseline, jobs, rates, rates_share, costs)


def train(recipe: str, overrides: tuple[str, ...] = (), /, out: Path = Path("runs/train")) -> None:
    """Train a recipe; run it again to resume. Many GPUs: accelerate launch -m stringpe.training train …

    Args:
        recipe: scenes, imagenet2012, webli3d, owlvit_coco, kuka, …; a wrong name lists all of them.
        overrides: Changes of the recipe, key=value: model.encoding=cayley optim.lr=3e-4.
        out: Folder of the run: checkpoints, metrics.jsonl, summary.csv.
    """
    from .commands import run_train

    run_train(recipe, overrides, out)


def evaluate(
    words: tuple[str, ...],
    /,
    env: tuple[str, ...] = (),
    shifts: bool = False,
    trials: int | None = None,
    out: Path | None = None,
    jobs: int | None = None,
    videos: int | None = None,
) -> None:
    """Evaluate a checkpoint on its validation set; or, with --env, try policies in simulation, all on the same states.

    Args:
        words: Folder of a run, or of one of its checkpoints; several with --env. Then changes, key=value: of the
            recipe, for example data.val=elsewhere.tar, or with --env of the environment.
        env: A task to simulate, or several, for example KukaPick: every policy meets the same initial states.
        shifts: Also under every shift that the task has: KukaPick has light, distractors and the table's height.
        trials: How many, by default 50; below that intervals are wide.
        out: Folder of trials, videos, eval_info.json, table.md and success.svg; by default each run's own folder eval/.
        jobs: Simulations side by side, by default one a core.
        videos: Kept of successes, and of failures; by default 3 each.
    """
    from .commands import run_eval

    run_eval(words, env, shifts, trials, out, jobs, videos)


def predict(
    checkpoint: Path,
    image: Path,
    /,
    text: tuple[str, ...] = (),
    query_image: Path | None = None,
    query_box: tuple[float, float, float, float] | None = None,
    depth: Path | None = None,
    out: Path = Path("prediction"),
    threshold: float = 0.1,
    top: int = 100,
    nms: float = 0.5,
    intrinsics: tuple[float, float, float, float] | None = None,
) -> None:
    """Find what texts name, or what a query image shows, in a picture: a JSON file and the picture with boxes.

    Args:
        checkpoint: Folder of a detection run or one of its checkpoints, or an OWL-ViT or OWLv2 folder of transformers.
        image: The picture to look at.
        text: What to find: "a mug" "a lamp".
        query_image: A picture of what to find, in place of texts.
        query_box: Corners x0 y0 x1 y1, in pixels, of what to find in the query image.
        depth: The picture's depth map, for models that take one.
        out: Where to write, without suffix: out.json and out.png.
        threshold: The lowest score that is kept.
        top: The most that is kept.
        nms: Of two boxes of one query that overlap by more than this IoU, the better one is kept; 1 keeps both.
        intrinsics: Of the camera, fx fy cx cy in pixels, to draw boxes in 3D with.
    """
    from ..tasks import predict as tasks_predict

    asked = tasks_predict.Asked(text, query_image, query_box, depth, threshold, top, nms, intrinsics)
    written, drawn, found = tasks_predict.predict(checkpoint, image, asked, out)
    print(f"{len(found)} found; wrote {written} and {drawn}")
    for one in found[:10]:
        print(f"{one['score']:.3f} {one['text']}")


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

    from .. import __version__
    from . import properties

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

    from .. import create
    from .drawing import draw

    torch.manual_seed(seed)
    encoding = create(name, head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim)
    for parameter in encoding.basis.parameters():
        torch.nn.init.normal_(parameter, std=noise)
    print(encoding)
    print(f"wrote {draw(encoding, out, extent=extent, seed=seed)}")


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
        parts: Of op, block, vit, growth and train; all by default.
        out: Folder for bench.json, bench.md and bench.png; results that are there are added to.
        device: cuda or cpu; a GPU if there is one.
        ways: Rows of the parts vit and train, by name; all by default.
        modes: Of the vit part.
    """
    from ..bench import run
    from ..bench.report import PARTS

    run(parts or PARTS, out=out, device=device or None, ways=ways or None, modes=modes)


def export(checkpoint: Path, /, to: str = "onnx", out: Path | None = None, size: int = 0) -> None:
    """Write a checkpoint as ONNX or a torch.export program, folded, and check it against the model.

    Args:
        checkpoint: Folder of a run, or of an attached model that stringpe.pretrained saved.
        to: onnx or torch-export.
        out: The file to write; by default model.onnx or model.pt2 in the folder.
        size: Height and width of the images, in pixels; by default those that the model was made for.
    """
    from ..export import export as write
    from ..export import load

    model, trained = load(checkpoint)
    path = out or checkpoint / ("model.onnx" if to == "onnx" else "model.pt2")
    done = write(model, path, to=to, size=size or trained)
    sizes = "any size in whole patches" if done.any_size else "this size only"
    print(f"wrote {done.path}: any batch, {sizes}; differs from the model by {done.difference:.1e} at most")


COMMANDS: dict[str, Callable[..., Any]] = {
    "compare": compare,
    "train": train,
    "eval": evaluate,
    "predict": predict,
    "data": data_cli.data,
    "bench": bench,
    "inspect": inspect,
    "export": export,
}
TWO_WORDS: dict[str, Callable[..., Any]] = {
    "compare properties": compare_properties,
    **{f"data {name}": make for name, make in data_cli.MAKERS.items()},
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
