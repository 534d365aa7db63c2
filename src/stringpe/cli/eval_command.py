"""The command `stringpe eval`: runs on their validation sets, zero-shot classification, policies in simulation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .commands import find_local_modules
from .parse import Changes, Count, Natural


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
    """Evaluate a checkpoint on its validation set; or, with --env, policies in simulation, all on the same states.

    Written without --env: metrics.json, report.html and, of detection, results.json with the boxes.
    Written with --env: trials.jsonl, eval_info.json and videos/ per policy and task; and table.md, report.html and
    success.svg.
    Changes are key=value words anywhere: of the recipe, for example data.val=elsewhere.tar, or with --env of the
    environment, for example lighting=dim.

    Args:
        runs: Folder of a run, or of one of its checkpoints; several with --env.
        out: Folder to write to; by default eval/STEP in the folder of each run, and for the table of one policy
            eval/STEP/simulation. The table of several policies is written only with --out.
        zero_shot: For a run of retrieval, a folder with one folder of pictures per class, named after the class: every
            picture is given the class whose name, as a text, is nearest to it. Nothing is written.
        env: Tasks to simulate, for example KukaPick; every policy starts from the same initial states.
        shifts: Also simulate under every shift that the task has: KukaPick has light, distractors and table height.
        trials: Trials per policy and setting, 50 by default; fewer leave the intervals wide.
        jobs: Simulations side by side; one per core by default.
        videos: How many videos to keep of successes, and of failures; 3 each by default.
        html: Also write pages: for detection3d scenes.html, validation frames with true and predicted boxes that can be
            turned; with --env one page beside every video, to step through.
        rrd: For detection3d, also write scenes.rrd, the same for rerun.
    """
    if env:
        options = {"count": trials, "jobs": jobs, "videos": videos, "html": html}
        _simulate(runs, env, shifts, out, options, changes)
        return
    for_policies = {"--shifts": shifts or None, "--trials": trials, "--jobs": jobs, "--videos": videos}
    if given := [name for name, value in for_policies.items() if value is not None]:
        raise ValueError(f"{given[0]} is for policies in simulation: name the task with --env")
    if len(runs) != 1:
        raise ValueError(f"eval takes one checkpoint, got {len(runs)}; several need --env, to be tried in simulation")
    if zero_shot is not None:
        _classify_zero_shot(runs[0], zero_shot)
        return
    _measure(runs[0], out, html, rrd, changes)


def _measure(run: str, out: Path | None, html: bool, rrd: bool, changes: Changes) -> None:
    """Evaluate a run on its validation set; print the numbers and where the rest is."""
    from ..io.checkpoint import model_folder
    from ..training.evaluation import evaluate as measure
    from ..training.evaluation import evaluation_folder

    find_local_modules(*changes)
    folder = model_folder(Path(run))  # the newest checkpoint, for all that follows: a run may still be training
    out = out or evaluation_folder(folder)
    result = measure(folder, changes, out)
    name = result["metric"]
    low, high = result.get("interval", (0.0, 0.0))
    bounds = f"95 % interval {100 * low:.2f} to {100 * high:.2f}, " if "interval" in result else ""
    print(f"{name} {100 * result[name]:.2f} % ({bounds}{result['count']:.0f} cases)")
    print(", ".join(f"{key} {value:.4g}" for key, value in result.items() if isinstance(value, float)))
    print(f"report: {out / 'report.html'}")
    if html or rrd:
        _show_predictions(folder, out / "scenes", html, rrd, changes)


def _show_predictions(run: Path, path: Path, html: bool, rrd: bool, changes: Changes) -> None:
    """Write a page, or a file for rerun, with what a run of detection in 3D predicts."""
    from .. import viewer
    from ..tasks.detection3d_figures import predict_val_frames

    frames = predict_val_frames(run, changes)
    step = run.parent  # runs/demo/checkpoints/003000/pretrained_model is the run runs/demo after 3,000 steps
    label = f"{step.parent.parent} after {int(step.name):,} steps" if step.parent.name == "checkpoints" else str(run)
    if html:
        page = viewer.show_frames(frames, title=f"Boxes found by {label}")
        print(f"wrote {viewer.save(page, path.with_suffix('.html'))}")
    if rrd:
        print(f"wrote {viewer.record_frames(frames, path.with_suffix('.rrd'))}")


def _simulate(
    runs: Sequence[str], env: Sequence[str], shifts: bool, out: Path | None, options: dict[str, Any], changes: Changes
) -> None:
    """Evaluate policies in simulation. Options that are None take the defaults of `simulate`."""
    from ..robots.data.demos import parse_options
    from ..training.simulation import simulate

    given = {name: value for name, value in options.items() if value is not None}
    print(simulate(runs, env, options=parse_options(changes), shifts=shifts, out=out, **given))


def _classify_zero_shot(run: str, folder: Path) -> None:
    """Name the pictures of a folder with a run of retrieval, and print how many names are right."""
    from ..data.labelled_images import open_image_set
    from ..io.progress import working
    from ..metrics.statistics import wilson
    from ..models.contrastive import Contrastive
    from ..tasks.load import load_run
    from ..tasks.retrieval import zero_shot

    model, recipe, parts = load_run(run, "retrieval")
    assert isinstance(model, Contrastive)
    assert parts.tokenizer is not None
    names = sorted(path.name for path in folder.glob("*") if path.is_dir())
    texts = [name.replace("_", " ") for name in names]
    images = open_image_set("folder", str(folder))
    with working(f"naming {len(images)} pictures", late=True):
        found = zero_shot(model, parts.tokenizer, images, texts, size=recipe.data.image_size)
    share = wilson(found["top1"] * found["count"], found["count"])
    low, high = share.bounds
    print(
        f"top1 {100 * found['top1']:.2f} % (95 % interval {100 * low:.2f} to {100 * high:.2f}, "
        f"{found['count']} pictures of {len(names)} classes, {found['corrupt']} corrupt), "
        f"top5 {100 * found['top5']:.2f} %"
    )
