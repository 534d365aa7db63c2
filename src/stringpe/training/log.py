"""The log of a run: metrics.jsonl, progress on the terminal, and curves in a tracker of your choice.

Trackers (loop.tracker=tensorboard, wandb, mlflow, aim, …) are Accelerate's: any name that it knows, those registered
with `accelerate.tracking.register_tracker_class` included. TensorBoard writes to the folder `tensorboard` of the run;
the others write where their own settings and environment variables say, for example WANDB_MODE=offline or
MLFLOW_TRACKING_URI.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from ..io.files import refuse_link
from ..io.progress import progress
from ..io.registry import suggest
from ..recipes.overrides import flatten
from ..recipes.schema import Recipe


class Log:
    """The log of one run, which only the main process has. With `quiet`, it shows no progress."""

    def __init__(
        self,
        out: Path,
        title: str,
        total: int,
        *,
        quiet: bool,
        start: int = 0,
        position: int = 0,
        tracker: Any = None,
    ):
        """start: the step that this run resumes from. position: the bytes of metrics.jsonl that were written until
        then; the rest is dropped. tracker: one of Accelerate's, as `start_tracker` returns it."""
        out.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = _open_at(out / "metrics.jsonl", position)
        self._tracker = tracker
        self._progress = ExitStack()
        self._job = self._progress.enter_context(progress(title, total, start, "steps", quiet=quiet))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics.jsonl, and a point on every curve."""
        finite = {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        if self._tracker is not None:
            self._tracker.log(dict(values), step=step)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Show values on the terminal."""
        self._job.show(step, ", ".join(f"{k} {v:.4g}" for k, v in values.items()))

    def count(self, step: int) -> None:
        """Show that so many steps are done, once per second at most."""
        self._job.count(step)

    def stage(self, text: str) -> None:
        """Show what the run does besides steps, for example "evaluating"."""
        self._job.stage(text)

    def position(self) -> int:
        """The bytes of metrics.jsonl so far."""
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._progress.close()
        if self._tracker is not None:
            self._tracker.finish()


def _open_at(path: Path, position: int) -> TextIO:
    file = open(path, "a+", encoding="utf-8", opener=refuse_link)  # noqa: SIM115, closed by the log
    file.truncate(min(position, path.stat().st_size))
    return file


PROJECT = "stringpe"
"""The project (or experiment) of the runs in trackers."""

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
    """The recipe's tracker, with the settings of the recipe in it, or None if the recipe names no tracker. A run that
    resumes at `step` goes on in its own curve. Only the main process calls this."""
    name = recipe.loop.tracker
    if not name:
        return None
    check_tracker(name)
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    known: Any = LOGGER_TYPE_TO_CLASS[name]
    project = {"tensorboard": "tensorboard", "aim": title}.get(name, PROJECT)  # Aim wants the run's name here
    folder = out if name == "tensorboard" else Path()
    places = (project, str(folder)) if known.requires_logging_directory else (project,)
    try:
        tracker = known(*places, **_options(name, out, title, step))
        tracker.start()
    except Exception as error:  # packages and servers of others, each with exceptions of its own
        raise ValueError(f"loop.tracker={name} could not start: {error}") from error
    settings = flatten(recipe.to_dict())
    plain = {key: value if isinstance(value, bool | int | float) else str(value) for key, value in settings.items()}
    tracker.store_init_configuration(plain)
    return tracker


def _options(name: str, out: Path, title: str, step: int) -> dict[str, Any]:
    """Arguments of a tracker besides the project, which let a resumed run go on in its own curve."""
    if name == "tensorboard":
        return {"purge_step": step + 1} if step else {}
    if name == "wandb":
        mark = hashlib.blake2b(str(out.resolve()).encode(), digest_size=8).hexdigest()
        return {"name": title, "dir": str(out), "id": mark, "resume": "allow"}
    return {"mlflow": {"run_name": title}, "aim": {"experiment": PROJECT}}.get(name, {})
