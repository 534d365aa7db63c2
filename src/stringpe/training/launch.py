"""One run in a folder: train it, alone or in every process of `accelerate launch`, or read the result that it left.

A finished run leaves result.json and summary.csv. Digests in result.json tie the numbers to the weights, the recipe and
the data that made them."""

import atexit
import csv
import gc
import io
import platform
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..data.fingerprints import check_files, digest_data_and_files, digest_files, digest_json, digest_paths
from ..io import checkpoint as checkpoints
from ..io.files import hold_lock, read_record, write_json, write_text
from ..recipes.overrides import differences, from_dict
from ..recipes.schema import Recipe
from ..tasks import check, check_data, create, task_class
from ..tasks.warm_start import start_files, start_folder, start_recipe
from .costs import peak_bytes, reset_peak
from .log import check_tracker

_RESULT = {"metric": str, "metrics": {str: float}, "parameters": int, "seconds": float}


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


def read_result(recipe: Recipe, out: Path, files: str | None = None) -> dict[str, Any] | None:
    """The result that `train` left in `out`, or None if the run is not finished. Refuses the result of another recipe,
    or of data that has changed since. files: `digest_files` of the recipe's data, for callers that know it."""
    if not (out / "result.json").exists():
        return None
    try:
        earlier = from_dict(read_record(out / "recipe.json", dict))
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{out / 'recipe.json'} is not the recipe of the run ({error}): restore it") from None
    changed = differences(earlier, recipe)
    if changed:
        raise ValueError(f"{out} holds the result of another recipe ({'; '.join(changed)}): choose another folder")
    result: dict[str, Any] = read_record(out / "result.json", _RESULT, "restore it, or remove it to repeat the run")
    if result.get("digest"):
        check_files(result["digest"], digest_files(recipe.data) if files is None else files, out)
        start = digest_start(recipe)
        if start and result["digest"].get("start", start) != start:  # as with files that are gone: "" says nothing
            raise ValueError(
                f"{out} holds a run that started from other weights: the files that model.start, policy.encoder or "
                f"text.tokenizer names have changed since. Choose another folder, or remove this one to repeat the run"
            )
    return result


def write_result(recipe: Recipe, out: Path, result: Mapping[str, Any]) -> None:
    """Write summary.csv, one line with the main numbers, and then result.json, which says that the run is finished."""
    line = {"recipe": recipe.name, "encoding": recipe.model.encoding, "seed": recipe.seed, "step": result["step"]}
    line |= result["metrics"]
    line |= {key: result[key] for key in ("parameters", "step_ms", "peak_bytes", "seconds", "device")}
    text = io.StringIO()
    writer = csv.DictWriter(text, line, lineterminator="\n")
    writer.writeheader()
    writer.writerow(line)
    write_text(out / "summary.csv", text.getvalue())
    write_json(out / "result.json", result)


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    import accelerate

    return {
        "stringpe": __version__,
        "torch": torch.__version__,
        "accelerate": accelerate.__version__,
        "python": platform.python_version(),
    }


def device_name(device: torch.device) -> str:
    """The device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type}, {torch.get_num_threads()} threads"


def digests(recipe: Recipe, weights: str) -> dict[str, str]:
    """Digests of what makes a number: the weights (given), the recipe and the data, and of the data's files, where it
    has any, alone."""
    return {"weights": weights, "recipe": digest_recipe(recipe)} | digest_data_and_files(recipe.data)


def digest_recipe(recipe: Recipe) -> str:
    """A digest of all settings of a run, 32 hexadecimal digits."""
    return digest_json(recipe.to_dict())


def digest_start(recipe: Recipe) -> str:
    """A digest of the files that training starts from; "" where there are none."""
    return digest_paths(start_files(recipe))
