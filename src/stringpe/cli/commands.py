"""The commands of `stringpe`, one function each; `parse.py` makes their command lines from these signatures.

In a docstring, RECIPES and ENCODINGS stand for the names that there are.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .parse import Changes, Count, Natural, find_local_modules


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

    Changes of the recipe are key=value words anywhere: optim.lr=3e-4 data.train=train.tar.
    A row is an encoding, with options or changes after a colon: circulant:block_size=8 cayley:model.depth=none; or a
    function of your own, my_module:factory. A list in braces is a row per value: "circulant:block_size={4,8,16}".
    Encodings: ENCODINGS.
    `stringpe compare properties` is the other comparison: invariance, exactness and cost, without training.

    Args:
        recipe: RECIPES. Those in _small suit a CPU; relations, the default, takes minutes.
        encodings: Rows; by default those of the recipe's design.
        seeds: Runs per row; 0 is what the recipe's design says, 5 for relations.
        out: Folder of the runs, the table and report.html; run the command again to resume.
        baseline: Row that differences are taken to; absolute if it is among the rows, else the first.
        jobs: Runs side by side; 0 is one on a GPU, and one per core on a CPU.
        rates: Learning rates to choose from for every row, on a seed of its own, before the runs that are reported.
        rates_share: Length of the runs that choose, as a share of the recipe's.
        costs: Measure step time and memory of all rows in turns, after training.
        metrics: What the task measures, a column each, in place of the recipe's columns: iou iou_monte_carlo.
        best: Show the maximum over seeds, too, as the paper does for detection in 3D.
    """
    from .. import recipes
    from ..training import comparison
    from ..training.tuning import Tuning

    find_local_modules(*encodings, *changes)
    chosen = recipes.load(recipe, changes)
    tuning = Tuning(tuple(rates), rates_share) if rates else None
    comparison.compare(
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


def train(recipe: str, /, out: Path = Path("runs/train"), changes: Changes = ()) -> None:
    """Train a recipe; run the command again to resume.

    Changes of the recipe are key=value words anywhere: model.encoding=cayley optim.lr=3e-4.
    Many GPUs: accelerate launch -m stringpe train …
    Encodings: ENCODINGS; or a function of your own, model.encoding=my_module:factory.

    Args:
        recipe: RECIPES.
        out: Folder of the run: checkpoints, metrics.jsonl, summary.csv.
    """
    from .. import recipes
    from ..training.launch import train as run
    from ..training.signals import Stopped

    find_local_modules(*changes)
    try:
        outcome = run(recipes.load(recipe, changes), out)
    except Stopped as stop:
        print(f"stringpe: {stop}", file=sys.stderr)
        raise
    print(", ".join(f"{name} {value:.4g}" for name, value in outcome["metrics"].items()), f"in {out}")


def evaluate(
    runs: tuple[str, ...],
    /,
    out: Path | None = None,
    zero_shot: Path | None = None,
    env: tuple[str, ...] = (),
    shifts: bool = False,
    trials: Count | None = None,
    jobs: Natural | None = None,
    videos: Natural | None = None,
    html: bool = False,
    rrd: bool = False,
    changes: Changes = (),
) -> None:
    """Evaluate a checkpoint on its validation set; or, with --env, try policies in simulation, all on the same states.

    Changes are key=value words anywhere: of the recipe, for example data.val=elsewhere.tar, or with --env of the
    environment, for example lighting=dim.

    Args:
        runs: Folder of a run, or of one of its checkpoints; several with --env.
        out: Folder to write to. Without --env: metrics.json, and of detection results.json with the boxes; nothing is
            written by default. With --env: trials, videos, eval_info.json, table.md and success.svg; each run's own
            folder eval/ by default.
        zero_shot: Of a run of retrieval: a folder with one folder of pictures per class, named after the class; each
            picture is given the class whose name, as a text, is nearest to it.
        env: One or more tasks to simulate, for example KukaPick: every policy meets the same initial states.
        shifts: Also simulate under every shift that the task has: KukaPick has light, distractors and table height.
        trials: Trials per policy and setting, 50 by default; fewer leave the intervals wide.
        jobs: Simulations side by side; one per core by default.
        videos: How many to keep of successes, and of failures; 3 each by default.
        html: Write a page to look at. Of detection3d scenes.html, validation frames with true and predicted boxes to
            turn, in --out or the run's folder eval/. With --env one page per video, beside it, to step through.
        rrd: Of detection3d scenes.rrd as well, the same for rerun.
    """
    if env:
        how = {"count": trials, "jobs": jobs, "videos": videos, "html": html}
        _simulate(runs, env, shifts, out, how, changes)
        return
    for_policies = {"--shifts": shifts or None, "--trials": trials, "--jobs": jobs, "--videos": videos}
    if lost := [name for name, value in for_policies.items() if value is not None]:
        raise ValueError(f"{lost[0]} is for policies in simulation: name the task with --env")
    if len(runs) != 1:
        raise ValueError(f"eval takes one checkpoint, got {len(runs)}; several need --env, to be tried in simulation")
    if zero_shot is not None:
        _classify_zero_shot(runs[0], zero_shot)
        return
    from ..training.launch import evaluate as measure

    find_local_modules(*changes)
    found = measure(runs[0], changes, out)
    name = found["metric"]
    low, high = found.get("interval", (0.0, 0.0))
    bounds = f"95 % interval {100 * low:.2f} to {100 * high:.2f}, " if "interval" in found else ""
    print(f"{name} {100 * found[name]:.2f} % ({bounds}{found['count']:.0f} cases)")
    print(", ".join(f"{key} {found[key]:.4g}" for key in found if isinstance(found[key], float)))
    if html or rrd:
        _show_predictions(runs[0], (out or Path(runs[0]) / "eval") / "scenes", html, rrd, changes)


def _show_predictions(run: str, path: Path, html: bool, rrd: bool, changes: Changes) -> None:
    """A page, and a file for rerun, with what a run of detection in 3D finds."""
    from .. import viewer
    from ..tasks.page3d import predict_val_frames

    frames = predict_val_frames(run, changes)
    if html:
        print(
            f"wrote {viewer.save(viewer.show_frames(frames, title=f'Boxes found by {run}'), path.with_suffix('.html'))}"
        )
    if rrd:
        print(f"wrote {viewer.record_frames(frames, path.with_suffix('.rrd'))}")


def _simulate(
    runs: Sequence[str], env: Sequence[str], shifts: bool, out: Path | None, how: dict[str, Any], changes: Changes
) -> None:
    """Try policies in simulation. What is None in `how` is left to `simulate`."""
    from ..robots.data.demos import parse_options
    from ..training.simulate import simulate

    given = {name: value for name, value in how.items() if value is not None}
    print(simulate(runs, env, options=parse_options(changes), shifts=shifts, out=out, **given))


def _classify_zero_shot(run: str, folder: Path) -> None:
    """Name the pictures of a folder with a run of retrieval, and print how many names are right."""
    from ..data.labelled import image_set
    from ..metrics.statistics import wilson
    from ..models.contrastive import Contrastive
    from ..tasks.build import load_run
    from ..tasks.zero_shot import zero_shot

    model, recipe, parts = load_run(run, "retrieval")
    assert isinstance(model, Contrastive)
    assert parts.tokenizer is not None
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    texts = [name.replace("_", " ") for name in names]
    images = image_set("folder", str(folder))
    found = zero_shot(model, parts.tokenizer, images, texts, size=recipe.data.image_size)
    share = wilson(found["top1"] * found["count"], found["count"])
    low, high = share.bounds
    print(
        f"top1 {100 * found['top1']:.2f} % (95 % interval {100 * low:.2f} to {100 * high:.2f}, "
        f"{found['count']} pictures of {len(names)} classes, {found['corrupt']} corrupt), "
        f"top5 {100 * found['top5']:.2f} %"
    )


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
    html: bool = False,
    rrd: bool = False,
) -> None:
    """Find what texts name, or what a query image shows, in a picture: a JSON file, and the picture with boxes.

    Args:
        checkpoint: Folder of a detection run or one of its checkpoints, or an OWL-ViT or OWLv2 folder of transformers.
        image: The picture to look at.
        text: What to find: "a mug" "a lamp".
        query_image: A picture of what to find, in place of texts.
        query_box: Corners x0 y0 x1 y1, in pixels, of what to find in the query image.
        depth: The picture's depth map, 16-bit, for models that take one.
        depth_step: Metres per step of the map; by default what the JSON file beside the map says, or the run's recipe.
        out: Where to write, without suffix: out.json and out.png.
        threshold: The lowest score that is kept.
        top: How many are kept at most.
        nms: Of two boxes of one query that overlap by more than this IoU, only the better is kept; 1 keeps both.
        intrinsics: Of the camera, fx fy cx cy in pixels, to draw boxes in 3D with.
        html: Write out.html as well, a page to turn the scene in; for boxes in 3D, with --depth.
        rrd: Write out.rrd as well, the same for rerun.
    """
    from ..tasks import predict as prediction

    query = prediction.Query(text, query_image, query_box, depth, depth_step, threshold, top, nms, intrinsics)
    written, found = prediction.predict(checkpoint, image, query, out, html=html, rrd=rrd)
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
    """Draw what runs of detection3d predict on the same validation frames, beside each other: the paper's figure.

    Args:
        runs: Folders of runs, each with a name to show before it if you like: absolute=runs/a cayley=runs/b.
        out: The picture to write.
        rows: Frames to show.
        frames: Which frames, by number; by default some of every family.
        threshold: Draw everything with at least this score; 0 draws the predictions matched to the objects.
        overrides: Changes of the runs' recipes, key=value, for data that has moved.
    """
    from ..tasks.figure3d import draw_figure, name_run

    columns = dict(name_run(text) for text in runs)
    path = draw_figure(columns, out, frames=frames, rows=rows, threshold=threshold, changes=overrides)
    print(f"wrote {path}")


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
    from ..pretrained import from_pretrained
    from ..tasks.build import load_vit

    if to not in FORMATS:
        raise ValueError(f"--to is {' or '.join(FORMATS)}, got {to!r}")
    config = checkpoint / "config.json"
    model, trained = (
        (from_pretrained(checkpoint), None)
        if config.exists() and "calls" in read_json(config)
        else load_vit(checkpoint)
    )
    path = out or checkpoint / ("model.onnx" if to == "onnx" else "model.pt2")
    done = write(model, path, to=to, size=size or trained)
    sizes = "any size in whole patches" if done.any_size else "this size only"
    print(f"wrote {done.path}: any batch, {sizes}; differs from the model by {done.difference:.1e} at most")
