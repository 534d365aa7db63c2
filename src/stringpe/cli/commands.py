"""The commands of `stringpe`, one function each; `parse.py` makes their command lines from these signatures.

In a docstring, RECIPES, ENCODINGS and ROTARY stand for lists of names, which `main.py` fills in.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from .parse import Changes, Count, Least, Natural


def compare(
    recipe: str = "relations",
    /,
    encodings: tuple[str, ...] = (),
    seeds: Natural = 0,
    out: Path = Path("runs/compare"),
    baseline: str = "",
    jobs: Natural = 0,
    rates: tuple[float, ...] = (),
    rates_share: float = 1.0,
    costs: bool = True,
    metrics: tuple[str, ...] = (),
    best: bool = False,
    changes: Changes = (),
) -> None:
    """Train every encoding under one recipe and the same seeds: a table with intervals, curves, an HTML report.

    Written to the folder: report.html, table.md, table.csv, results.json (scores of every run), metrics.jsonl (curves),
    contrasts.svg, scores.svg and curves.svg, design.json (what was asked), costs.json, and one folder per run.
    Changes of the recipe are key=value words anywhere: optim.lr=3e-4 data.train=train.tar.
    A row is an encoding, with options or changes after a colon: circulant:block_size=8 cayley:model.depth=none; or a
    function of your own, my_module:factory. A list in braces is one row per value: "circulant:block_size={4,8,16}".
    Encodings: ENCODINGS.
    `stringpe compare properties` compares without training: invariance, exactness and cost.

    Args:
        recipe: RECIPES. `stringpe recipes` says what they are. The default, relations, takes about a minute on two
            CPU cores.
        encodings: The rows; by default those that the recipe names.
        seeds: Seeds per row; 0 takes as many as the recipe says, 5 for relations.
        out: Folder to write to; run the command again to resume.
        baseline: The row that all others are compared with; by default absolute if it is a row, else the first.
        jobs: Runs side by side; 0 is one per core on a CPU, and on a GPU four where they can share it (NVIDIA's MPS),
            else one.
        rates: Learning rates to choose from for every row, on a seed that is not reported, before all other runs.
        rates_share: Length of the runs that choose a rate, as a share of the recipe's steps.
        costs: Measure step time and memory of all rows in turns, after training.
        metrics: Metrics of the task to show, one column each, in place of the recipe's columns, for
            example iou iou_monte_carlo.
        best: Also show the maximum over seeds, as the paper does for detection in 3D.
    """
    from .. import recipes
    from ..recipes.design import Tuning
    from ..training.comparison import compare as run

    find_local_modules(*encodings, *changes)
    chosen = recipes.load(recipe, changes)
    tuning = Tuning(tuple(rates), rates_share) if rates else None
    run(
        chosen,
        encodings,
        seeds,
        out,
        baseline=baseline,
        jobs=jobs,
        tuning=tuning,
        costs=costs,
        metrics=metrics,
        best=best,
    )


def list_recipes(name: str = "", /) -> None:
    """List the recipes, one per line; or show one in full: commands, data, time, expected number, settings.

    Args:
        name: RECIPES.
    """
    from .. import recipes
    from ..recipes.overrides import flatten

    if not name:
        width = max(map(len, recipes.names()))
        for each in recipes.names():
            print(f"{each.ljust(width)}  {recipes.describe(each).partition(chr(10))[0]}")
        print("\nstringpe recipes NAME says more about one.")
        return
    settings = flatten(recipes.load(name).to_dict())
    print(recipes.describe(name).strip(), "\nSettings, which key=value words change:\n", sep="\n")
    print("\n".join(f"  {key}={value}" for key, value in settings.items()))


def train(recipe: str, /, out: Path = Path("runs/train"), changes: Changes = ()) -> None:
    """Train a recipe: checkpoints, curves and the metrics of its validation set. Run the command again to resume.

    Written to the folder: recipe.json, checkpoints/, metrics.jsonl (curves), summary.csv and result.json.
    Changes of the recipe are key=value words anywhere: model.encoding=cayley optim.lr=3e-4.
    Several GPUs: `accelerate launch -m stringpe train RECIPE`, docs/howto/many-gpus.md.
    Encodings: ENCODINGS; or a function of your own, model.encoding=my_module:factory.

    Args:
        recipe: RECIPES. `stringpe recipes` says what they are.
        out: Folder to write to.
    """
    from .. import recipes
    from ..training.launch import train as run
    from ..training.loop import Stopped

    find_local_modules(*changes)
    try:
        outcome = run(recipes.load(recipe, changes), out)
    except Stopped as stop:
        print(f"stringpe: {stop}", file=sys.stderr)
        raise
    print(", ".join(f"{name} {value:.4g}" for name, value in outcome["metrics"].items()), f"in {out}")


def predict(
    checkpoint: Path,
    image: Path,
    /,
    text: tuple[str, ...] = (),
    query_image: Path | None = None,
    query_box: tuple[float, float, float, float] | None = None,
    depth: Path | None = None,
    depth_step: float = 0.0,
    out: Path = Path("prediction"),
    threshold: float = 0.1,
    top: int = 100,
    nms: float = 0.5,
    intrinsics: tuple[float, float, float, float] | None = None,
    at: tuple[float, ...] = (),
    html: bool = False,
    rrd: bool = False,
) -> None:
    """Find in a picture what texts name or a query image shows, or name what is seen at places: a JSON file, and the
    picture with the answer.

    Args:
        checkpoint: Folder of a detection or objects run, or of one of its checkpoints, or an OWL-ViT or OWLv2 folder of
            transformers.
        image: The picture to look at.
        text: What to find: "a mug" "a lamp".
        query_image: A picture of what to find, in place of texts.
        query_box: Corners x0 y0 x1 y1, in pixels, of what to find in the query image.
        depth: The picture's depth map, 16-bit, for models that take one.
        depth_step: Metres per step of the map; by default what the JSON file beside the map says, or the run's recipe.
        out: The files to write, without suffix: prediction.json has the boxes, prediction.png shows them.
        threshold: The lowest score of a box that is kept.
        top: How many boxes are kept at most.
        nms: If two boxes of one query overlap by more than this IoU, only the better one is kept; 1 keeps both.
        intrinsics: fx fy cx cy of the camera, in pixels, to place and draw boxes in 3D.
        at: Pixels x y x y … at which a run of objects names what it sees; by default a grid of nine.
        html: Also write a page on which the scene can be turned (.html); for boxes in 3D, with --depth.
        rrd: Also write the same for rerun (.rrd).
    """
    from ..tasks.predict import predict as answer
    from ..tasks.predictor import Query

    if len(at) % 2:
        raise ValueError(f"--at takes pairs x y, got {len(at)} numbers")
    places = list(zip(at[::2], at[1::2], strict=True))
    query = Query(text, query_image, query_box, depth, depth_step, threshold, top, nms, intrinsics, places)
    written, found = answer(checkpoint, image, query, out, html=html, rrd=rrd)
    print(f"{len(found)} found; wrote {', '.join(map(str, written))}")
    for one in found[:10]:
        print(f"{one['score']:.3f} {one['text']}")


def figure(
    runs: tuple[str, ...],
    /,
    out: Path = Path("figure.png"),
    rows: Count = 4,
    frames: tuple[int, ...] = (),
    threshold: float = 0.0,
    overrides: tuple[str, ...] = (),
) -> None:
    """Draw what runs of detection3d predict on the same validation frames, side by side: the paper's figure.

    Args:
        runs: Folders of runs; a name to show may stand before each: absolute=runs/a cayley=runs/b.
        out: The picture to write.
        rows: Frames to show.
        frames: Which frames, by number; by default some of every family.
        threshold: Draw all predictions with at least this score; 0 draws those that are matched to the objects.
        overrides: key=value changes of the runs' recipes, for data that lies elsewhere now.
    """
    from ..tasks.detection3d_figures import draw_figure, name_runs

    path = draw_figure(name_runs(runs), out, frames=frames, rows=rows, threshold=threshold, changes=overrides)
    print(f"wrote {path}")


def compare_properties(
    head_dim: Annotated[int, Least(2)] = 64,
    num_heads: Count = 12,
    coord_dim: Count = 3,
    tokens: Count = 196,
    shift: float = 1000.0,
    seed: int = 0,
) -> None:
    """Compare all encodings without training: invariance under a shift, exactness, parameters and cost.

    Args:
        head_dim: Channels per head.
        num_heads: Heads of the layer.
        coord_dim: Coordinates per token.
        tokens: Tokens that are encoded for the cost column.
        shift: Units by which all coordinates move for the invariance column.
        seed: Seed of the random queries, keys, coordinates and parameters.
    """
    import torch

    from .. import __version__
    from ..io.progress import track
    from ..io.table import markdown_table
    from . import properties

    head = ["encoding", f"score error, shift of {shift:g}", "against expm (float64)", "parameters", "ms (quartiles)"]
    sizes = {"head_dim": head_dim, "num_heads": num_heads, "coord_dim": coord_dim}
    measured = properties.measure(**sizes, tokens=tokens, shift=shift, seed=seed)
    total = len(properties.builders(**sizes))
    rows = [
        [
            row.name,
            f"{row.shift_error:.1e}",
            "–" if row.dense_error is None else f"{row.dense_error:.1e}",
            f"{row.parameters:,}",
            f"{row.milliseconds:.2f} ({row.quartiles[0]:.2f}–{row.quartiles[1]:.2f})",
        ]
        for row in track(measured, "measuring encodings", total, "encodings")
    ]
    print(f"q and k of {num_heads} heads × {head_dim}, {tokens} tokens, {coord_dim} coordinates\n")
    print(markdown_table(head, rows))
    print(f"\nstringpe {__version__}, torch {torch.__version__}, {torch.get_num_threads()} CPU threads, seed {seed}")


def inspect(
    name: str,
    /,
    out: Path = Path("encoding.png"),
    head_dim: Annotated[int, Least(2)] = 64,
    num_heads: Count = 4,
    coord_dim: Count = 2,
    extent: float = 16.0,
    noise: float = 0.1,
    seed: int = 0,
    beside: tuple[str, ...] = ("sincos", "rope"),
    image: Path | None = None,
    html: bool = False,
) -> None:
    """Draw an encoding: wavelengths, basis, and score maps over displacement.

    With --out FILE.gif or --html it shows instead where the patches of a picture look, under this encoding and others,
    while all coordinates move: weights under absolute embeddings change, those under relative encodings do not.

    Args:
        name: ROTARY; or a function of your own, my_module:factory.
        out: The picture to write: .png, .svg or .pdf, or .gif for the animation.
        head_dim: Channels per head.
        num_heads: Heads of the layer; up to four are drawn.
        coord_dim: Coordinates per token; the first two are drawn.
        extent: Half the width of the score maps, in units of the coordinates.
        noise: Standard deviation of random basis parameters, which a model would learn; at 0, their start, P = I.
        seed: Seed of the encoding, its noise and the token.
        beside: Encodings to show beside it in the animation and on the page.
        image: The picture of the animation and the page; one of the procedural world by default.
        html: Write a page (.html) in place of the picture, on which patches and displacements can be chosen.
    """
    import torch

    from ..catalogue import create, names
    from ..encoding import Encoding
    from .drawing import draw

    find_local_modules(name, *beside)
    if html or out.suffix == ".gif":
        _show_patch_attention((*beside, name), out, image, html, noise, seed)
        return
    torch.manual_seed(seed)
    encoding = create(name, head_dim=head_dim, num_heads=num_heads, coord_dim=coord_dim)
    if not isinstance(encoding, Encoding):
        raise ValueError(f"{name!r} has no basis and frequencies to draw: take one of {', '.join(names())}")
    for parameter in encoding.basis.parameters():
        torch.nn.init.normal_(parameter, std=noise)
    print(encoding)
    print(f"wrote {draw(encoding, out, extent=extent, seed=seed)}")


def _show_patch_attention(
    names: Sequence[str], out: Path, image: Path | None, html: bool, noise: float, seed: int
) -> None:
    """The animation, or the page, of patches that look at each other under several encodings."""
    from .. import viewer
    from . import patch_attention as patches

    picture = patches.render_picture() if image is None else patches.read_picture(image)
    names = list(dict.fromkeys(names))
    if html:
        page = patches.attention_page(names, picture, noise=noise, seed=seed)
        print(f"wrote {viewer.save(page, out.with_suffix('.html'))}")
    if out.suffix == ".gif":
        print(f"wrote {patches.animate(names, picture, out, noise=noise, seed=seed)}")


def bench(
    parts: tuple[str, ...] = (),
    /,
    out: Path = Path("bench"),
    device: str = "",
    ways: tuple[str, ...] = (),
    modes: tuple[str, ...] = ("eager", "compiled"),
    check: Path | None = None,
) -> None:
    """Measure what encodings cost, beside the usual ways and the memory floor: a table, a JSON file and a plot.

    Args:
        parts: Any of op (the rotation alone), block (one attention layer), vit, growth (of the rotation's time with its
            sizes) train (the training loop) and
            pairs (ours and what it replaces, where it is used); all by default.
        out: Folder for bench.json, bench.md and bench.png; new results are added to those that it holds.
        device: cuda or cpu; a GPU if there is one.
        ways: Names of rows of the parts vit and train; all by default.
        modes: How the part vit runs: eager, compiled.
        check: A bench.json of an earlier run on the same kind of device. Ratios that grew by more than 5 % are listed,
            and the exit status is 1 if there are any.
    """
    from ..bench import run
    from ..bench.regressions import compare_runs, describe, read_earlier
    from ..bench.results import PARTS

    if wrong := [mode for mode in modes if mode not in ("eager", "compiled")]:
        raise ValueError(f"there is no mode {wrong[0]!r}: modes are eager and compiled")
    earlier = None if check is None else read_earlier(check)
    results = run(parts or PARTS, out=out, device=check_device(device) or None, ways=ways or None, modes=modes)
    if earlier is not None:
        outcome = compare_runs(results, earlier)
        print(describe(outcome))
        if outcome.worse():
            raise SystemExit(1)


def export(checkpoint: Path, /, to: str = "onnx", out: Path | None = None, size: Natural = 0) -> None:
    """Write a checkpoint as ONNX or a torch.export program, folded, and check it against the model.

    Args:
        checkpoint: Folder of a run, or of an attached model that stringpe.pretrained saved.
        to: onnx or torch-export.
        out: The file to write; by default model.onnx or model.pt2 in the folder.
        size: Height and width of the images, in pixels; by default those that the model was made for.
    """
    from ..export import FORMATS
    from ..export import export as write
    from ..io.files import read_json
    from ..io.progress import working
    from ..pretrained import from_pretrained
    from ..tasks.load import load_vit

    if to not in FORMATS:
        raise ValueError(f"--to is {' or '.join(FORMATS)}, got {to!r}")
    config = checkpoint / "config.json"
    model, trained = (
        (from_pretrained(checkpoint), None)
        if config.exists() and "calls" in read_json(config)
        else load_vit(checkpoint)
    )
    path = out or checkpoint / ("model.onnx" if to == "onnx" else "model.pt2")
    with working(f"writing {path}", late=True):
        done = write(model, path, to=to, size=size or trained)
    sizes = "any size in whole patches" if done.any_size else "this size only"
    print(f"wrote {done.path}: any batch, {sizes}; differs from the model by {done.difference:.1e} at most")


def check_device(name: str) -> str:
    """The name of a device; refuses one that this machine does not have."""
    import torch

    try:
        torch.empty(0, device=name or "cpu")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"--device {name} cannot be used on this machine: {reason}") from None
    return name


def find_local_modules(*words: str) -> None:
    """Let my_module:factory name a file of the current folder, as `python -m` does."""
    if any(":" in word for word in words) and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
