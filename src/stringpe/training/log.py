"""What a run leaves to read: metrics.jsonl, a tracker if one was asked for, and progress for whoever watches."""

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from ..io.progress import progress


class Log:
    """Metrics of one run. Silent where `quiet`; only the main process has one."""

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
        """start: the step that this run resumes from, and position: the bytes of metrics.jsonl that belong to it; the
        rest is dropped. tracker: one of Accelerate's, as `trackers.start_tracker` gives it."""
        out.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = _opened_at(out / "metrics.jsonl", position)
        self._tracker = tracker
        self._watched = ExitStack()
        self._job = self._watched.enter_context(progress(title, total, start, "steps", quiet=quiet))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics.jsonl, and a point on every curve."""
        finite = {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        if self._tracker is not None:
            self._tracker.log(dict(values), step=step)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Tell whoever watches."""
        self._job.show(step, ", ".join(f"{k} {v:.4g}" for k, v in values.items()))

    def stage(self, text: str) -> None:
        """Say what the run does besides steps: compiling, evaluating."""
        self._job.stage(text)

    def position(self) -> int:
        """Bytes of metrics.jsonl so far."""
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._watched.close()
        if self._tracker is not None:
            self._tracker.finish()


def _opened_at(path: Path, position: int) -> TextIO:
    path.touch()
    file = path.open("r+", encoding="utf-8")
    file.seek(min(position, path.stat().st_size))
    file.truncate()
    return file
