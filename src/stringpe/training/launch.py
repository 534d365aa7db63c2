"""From a recipe to a result: build the task, run the loop in a folder, write down what came out."""

import atexit
import csv
import gc
import io
import math
import platform
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..data.order import Place
from ..io import checkpoint as checkpoints
from ..io.files import hold_lock, read_record, write_json, write_text
from ..io.progress import working
from ..recipes.overrides import differences, from_dict
from ..recipes.schema import Recipe
from ..tasks import check, check_data, task_class
from ..tasks.base import Task
from .costs import peak_bytes, reset_peak
from .identity import digest_data, digest_recipe
from .log import check_tracker


def train(recipe: Recipe, out: str | Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train in the folder `out`, from its newest checkpoint on; the result of a finished run is only read.

    Alone, or in every process of `accelerate launch`. Leaves recipe.json, metrics.jsonl, checkpoints/, summary.csv and
    result.json, in which `digest` ties the numbers to the weights, the recipe and the data that made them.
    """
    out = Path(out)
    done = read_result(recipe, out)
    if done is not None:
        return done
    check(recipe)  # what is wrong with it is said before anything is made
    check_data(recipe)
    check_tracker(recipe.loop.tracker)
    train_start(recipe, quiet=quiet)
    accelerator = accelerator_for(recipe)
    if accelerator.num_processes > 1:
        atexit.unregister(_leave)
        atexit.register(_leave)
    alone = hold_lock(out / ".lock", f"the run in {out}") if accelerator.is_main_process else nullcontext()
    with alone:
        return _train(recipe, out, accelerator, quiet)


def train_start(recipe: Recipe, *, quiet: bool = False) -> None:
    """Train the run that this recipe starts from, where `model.start` is "recipe:NAME" and it is not there yet."""
    from ..tasks.warm_start import start_folder, start_recipe

    if "model.start" not in task_class(recipe.task).keys(recipe):
        return
    before = start_recipe(recipe)
    if before is not None:
        folder = start_folder(recipe)
        assert folder is not None
        train(before, folder, quiet=quiet)


def _train(recipe: Recipe, out: Path, accelerator: Any, quiet: bool) -> dict[str, Any]:
    from .loop import Run

    reset_peak(accelerator.device)
    task = build(recipe)
    if accelerator.is_main_process:
        write_json(out / "recipe.json", recipe.to_dict())
    outcome = Run(recipe, task, out, accelerator, quiet=quiet).train()
    outcome |= {
        "metric": task.metric,
        "peak_bytes": peak_bytes(accelerator.device),
        "device": device_name(accelerator.device),
        "processes": accelerator.num_processes,
        "versions": versions(),
    }
    if accelerator.is_main_process:
        last = checkpoints.found(out)[-1]
        outcome["digest"] = digest(recipe, checkpoints.digest_weights(last))
        write_text(out / "summary.csv", _summary(recipe, outcome))
        write_json(out / "result.json", outcome)
    accelerator.wait_for_everyone()
    return outcome


def digest(recipe: Recipe, weights: str) -> dict[str, str]:
    """What a number is tied to: digests of the weights, the recipe and the data."""
    return {"weights": weights, "recipe": digest_recipe(recipe), "data": digest_data(recipe.data)}


def _leave() -> None:
    """End the processes' group before the interpreter ends: a thread of gloo that drops its last tensor after that
    aborts the process (pytorch#179291), and a run that was finished counts as failed."""
    gc.collect()  # models wrapped for the group hold on to it
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def read_result(recipe: Recipe, out: Path) -> dict[str, Any] | None:
    """What `train` left in `out` if it finished there, else None. Refuses a folder with another recipe's result."""
    if not (out / "result.json").exists():
        return None
    try:
        kept = from_dict(read_record(out / "recipe.json", dict))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{out / 'recipe.json'} is not the recipe of the run ({error}): restore it") from None
    other = differences(kept, recipe)
    if other:
        raise ValueError(f"{out} holds the result of another recipe ({'; '.join(other)}): choose another folder")
    shape = {"metric": str, "metrics": {str: float}, "parameters": int, "seconds": float}
    found: dict[str, Any] = read_record(out / "result.json", shape, "restore it, or remove it to repeat the run")
    return found


def evaluate(path: str | Path, changes: Sequence[str] | None = None, out: str | Path | None = None) -> dict[str, Any]:
    """Metrics of a checkpoint on its validation set, with Wilson's interval for the main one where it is a share, and
    the digest of weights, recipe and data.

    changes: overrides of its recipe, for example data on another machine: ["data.val=…"]. out: folder for metrics.json,
    report.html and, of detection, results.json: the boxes in COCO's or Omni3D's results format.
    """
    from ..metrics.statistics import wilson
    from ..tasks.build import open_run

    task, model = open_run(path, changes or ())
    if out is not None:
        task.results = Path(out) / "results.json"
    accelerator = accelerator_for(task.recipe)
    model = accelerator.prepare_model(model.to(accelerator.device), evaluation_mode=True).eval()
    quiet = not accelerator.is_main_process
    with torch.no_grad(), working(f"evaluating {path}", late=True, quiet=quiet):
        metrics = task.evaluate(model, Place(accelerator.process_index, accelerator.num_processes, accelerator.device))
    bad = [name for name, value in metrics.items() if not math.isfinite(value)]
    if bad:
        raise ValueError(f"{bad[0]} of {path} is {metrics[bad[0]]}: the model's outputs are not finite on this data")
    weights = checkpoints.digest_weights(Path(path))
    found: dict[str, Any] = {**metrics, "metric": task.metric, "digest": digest(task.recipe, weights)}
    share = None
    if task.counted:
        count = metrics["count"]
        share = wilson(min(metrics[task.metric] * count, count), count)
        found["interval"] = [share.low, share.high]
    if out is not None and accelerator.is_main_process:
        from .report import write_evaluation

        write_json(Path(out) / "metrics.json", found)
        write_evaluation(Path(out), path, task, found, share, versions(), figure=not changes)
    return found


def evaluation_folder(path: str | Path) -> Path:
    """Where evaluations of a checkpoint are kept: RUN/eval/STEP, or the folder eval of a model that is not in a run."""
    folder = checkpoints.model_folder(Path(path))
    step = folder.resolve().parent
    return step.parents[1] / "eval" / step.name if step.parent.name == "checkpoints" else folder / "eval"


def build(recipe: Recipe) -> Task:
    """The recipe's task."""
    from .. import tasks

    return tasks.create(recipe)


def versions() -> dict[str, str]:
    """What results depend on besides the recipe."""
    import accelerate  # type: ignore[import-untyped]

    return {
        "stringpe": __version__,
        "torch": torch.__version__,
        "accelerate": accelerate.__version__,
        "python": platform.python_version(),
    }


def accelerator_for(recipe: Recipe) -> Any:
    """Accelerate's view of the machine, at the recipe's precision."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    if recipe.loop.precision not in ("no", "bf16"):
        raise ValueError(f"loop.precision is 'no' or 'bf16', got {recipe.loop.precision!r}")
    # On Hopper, torch 2.11 prefers cuDNN's attention, whose backward gives NaN from finite inputs (64 tokens, head
    # dimension 64, bf16), where on the same batch the other kernels do not: results/2026-11-16-tiny-imagenet-100.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != recipe.loop.precision:
        AcceleratorState._reset_state()  # Accelerate keeps one precision per process; runs come one after another
    return Accelerator(mixed_precision=recipe.loop.precision)


def device_name(device: torch.device) -> str:
    """The device, for people."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def _summary(recipe: Recipe, outcome: dict[str, Any]) -> str:
    row = {"recipe": recipe.name, "encoding": recipe.model.encoding, "seed": recipe.seed, "step": outcome["step"]}
    row |= outcome["metrics"]
    row |= {key: outcome[key] for key in ("parameters", "step_ms", "peak_bytes", "seconds", "device")}
    text = io.StringIO()
    writer = csv.DictWriter(text, row, lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)
    return text.getvalue()
