"""Curves in the tracker of your choice, beside metrics.jsonl: loop.tracker=tensorboard, wandb, mlflow, aim, …

They are Accelerate's: any name that it knows, those registered with `accelerate.tracking.register_tracker_class`
included. TensorBoard writes to the folder `tensorboard` of the run; the others write where their own settings and
environment variables say, for example WANDB_MODE=offline or MLFLOW_TRACKING_URI.
"""

import hashlib
from pathlib import Path
from typing import Any

from ..io.registry import suggest
from ..recipes.overrides import flatten
from ..recipes.schema import Recipe

PROJECT = "stringpe"
"""The project, or experiment, that runs are filed under."""

_EXTRAS = {"tensorboard": "train", "wandb": "wandb", "mlflow": "mlflow", "aim": "aim"}


def check_tracker(name: str) -> None:
    """Refuse a tracker that Accelerate does not know, or whose package is not installed."""
    if not name:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers  # type: ignore[import-untyped]
    from accelerate.utils import LoggerType  # type: ignore[import-untyped]

    known = sorted(LOGGER_TYPE_TO_CLASS)
    if name not in known:
        raise ValueError(f"loop.tracker={name} is not known: {suggest(name, known)}There are {', '.join(known)}")
    if name in LoggerType.list() and name not in map(str, get_available_trackers()):
        what = f"'stringpe[{_EXTRAS[name]}]'" if name in _EXTRAS else name.replace("_", "-")
        raise ValueError(
            f"loop.tracker={name} needs the package {name}, which is not installed: pip install {what}, or leave it "
            f"out: metrics.jsonl has every number"
        )


def start_tracker(recipe: Recipe, out: Path, title: str, step: int) -> Any:
    """The recipe's tracker, begun or (step > 0) gone on with, and told the recipe; None if it wants none.

    Only the main process calls this."""
    name = recipe.loop.tracker
    if not name:
        return None
    check_tracker(name)
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    known: Any = LOGGER_TYPE_TO_CLASS[name]
    project, folder = ("tensorboard", out) if name == "tensorboard" else (PROJECT, Path())
    places = (project, str(folder)) if known.requires_logging_directory else (project,)
    tracker = known(*places, **_options(name, out, title, step))
    tracker.start()
    settings = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in _settings(recipe)}
    tracker.store_init_configuration(settings)
    return tracker


def _options(name: str, out: Path, title: str, step: int) -> dict[str, Any]:
    """What a tracker is told besides the project, so that a resumed run goes on in its own curve."""
    if name == "tensorboard":
        return {"purge_step": step + 1} if step else {}
    if name == "wandb":
        mark = hashlib.blake2b(str(out.resolve()).encode(), digest_size=8).hexdigest()
        return {"name": title, "dir": str(out), "id": mark, "resume": "allow"}
    return {"run_name": title} if name == "mlflow" else {}


def _settings(recipe: Recipe) -> list[tuple[str, Any]]:
    """Every key of the recipe with its value."""
    return list(flatten(recipe.to_dict()).items())
