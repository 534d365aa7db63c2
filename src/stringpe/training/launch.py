"""Training the run of a recipe in a folder, alone or in every process of `accelerate launch`."""

import atexit
import gc
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from ..io import checkpoint as checkpoints
from ..io.files import hold_lock, write_json
from ..recipes.schema import Recipe
from ..tasks import check, check_data, create, task_class
from ..tasks.warm_start import start_folder, start_recipe
from .costs import peak_bytes, reset_peak
from .log import check_tracker
from .run_result import (
    check_files,
    device_name,
    digest_files,
    digest_start,
    digests,
    read_result,
    versions,
    write_result,
)


def train(recipe: Recipe, out: str | Path, *, quiet: bool = False) -> dict[str, Any]:
    """Train in the folder `out`, going on from its newest checkpoint, and return the result; where the run is finished,
    only read it.

    Leaves recipe.json, metrics.jsonl, checkpoints/, summary.csv and result.json, in which `digest` ties the numbers to
    the weights, the recipe and the data that made them.
    """
    out = Path(out)
    result = read_result(recipe, out)
    if result is not None:
        return result
    check(recipe)  # a mistake is reported before anything is made
    check_data(recipe)
    check_tracker(recipe.loop.tracker)
    train_start(recipe, quiet=quiet)
    accelerator = create_accelerator(recipe)
    if accelerator.num_processes > 1:
        atexit.unregister(_end_process_group)
        atexit.register(_end_process_group)
    lock = hold_lock(out / ".lock", f"the run in {out}") if accelerator.is_main_process else nullcontext()
    with lock:
        return _train(recipe, out, accelerator, quiet)


def train_start(recipe: Recipe, *, quiet: bool = False) -> None:
    """Train the run that this recipe starts from, where `model.start` is "recipe:NAME" and that run is not finished
    yet."""
    before = start_recipe(recipe) if "model.start" in task_class(recipe.task).reads else None
    if before is not None:
        folder = start_folder(recipe)
        assert folder is not None
        train(before, folder, quiet=quiet)


def create_accelerator(recipe: Recipe) -> Any:
    """Accelerate's view of the machine, at the recipe's precision."""
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.state import AcceleratorState  # type: ignore[import-untyped]

    # On Hopper, torch 2.11 prefers cuDNN's attention, whose backward pass gives NaN from finite inputs (64 tokens, head
    # dimension 64, bf16), where on the same batch the other kernels do not: results/2026-11-16-tiny-imagenet-100.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != recipe.loop.precision:
        AcceleratorState._reset_state()  # Accelerate keeps one precision per process, but runs come one after another
    return Accelerator(mixed_precision=recipe.loop.precision)


def _train(recipe: Recipe, out: Path, accelerator: Any, quiet: bool) -> dict[str, Any]:
    from .loop import Run

    reset_peak(accelerator.device)
    sums = digests(recipe, "")  # of the data as it is before it is read
    start = digest_start(recipe)
    task = create(recipe)
    if accelerator.is_main_process:
        write_json(out / "recipe.json", recipe.to_dict())
    result = Run(recipe, task, out, accelerator, quiet=quiet).train()
    result |= {
        "metric": task.metric,
        "peak_bytes": peak_bytes(accelerator.device),
        "device": device_name(accelerator.device),
        "processes": accelerator.num_processes,
        "versions": versions(),
    }
    if accelerator.is_main_process:
        check_files(sums, digest_files(recipe.data), out)  # they may have changed while it was read
        weights = checkpoints.digest_weights(checkpoints.list_checkpoints(out)[-1])
        result["digest"] = sums | {"weights": weights} | ({"start": start} if start else {})
        write_result(recipe, out, result)
    accelerator.wait_for_everyone()
    return result


def _end_process_group() -> None:
    """End the processes' group before the interpreter ends. Else a thread of gloo that drops its last tensor later
    aborts the process (pytorch#179291), and a finished run counts as failed."""
    gc.collect()  # models that were wrapped for the group hold on to it
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
