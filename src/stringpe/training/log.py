"""What a run leaves to read: metrics.jsonl, TensorBoard, and a bar or sparse lines for whoever watches."""

import json
import math
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

_LINE_EVERY = 10.0  # seconds between plain lines


class Log:
    """Metrics of one run. Silent where `quiet`; only the main process has one that writes."""

    def __init__(self, out: Path, title: str, total: int, *, tensorboard: bool, quiet: bool, position: int = 0):
        """position: bytes of metrics.jsonl that belong to the checkpoint this run resumes from; the rest is dropped."""
        out.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = _opened_at(out / "metrics.jsonl", position)
        self._board = _board(out / "tensorboard") if tensorboard else None
        self._watch = _Silence() if quiet else _watch(title, total)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """One line of metrics.jsonl, and a point on every curve."""
        finite = {k: (v if math.isfinite(v) else None) for k, v in values.items()}
        self._file.write(json.dumps({"step": step, **finite}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)

    def show(self, step: int, values: Mapping[str, float]) -> None:
        """Tell the watcher."""
        self._watch.show(step, ", ".join(f"{k} {v:.4g}" for k, v in values.items()))

    def position(self) -> int:
        """Bytes of metrics.jsonl so far."""
        return self._file.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._watch.close()
        if self._board is not None:
            self._board.close()


class _Silence:
    """Nobody watches."""

    def show(self, step: int, text: str) -> None: ...

    def close(self) -> None: ...


class _Lines(_Silence):
    """A line now and then, for log files and plain terminals."""

    def __init__(self, title: str, total: int):
        self.title, self.total, self.told = title, total, -math.inf

    def show(self, step: int, text: str) -> None:
        now = time.monotonic()
        if now - self.told >= _LINE_EVERY or step == self.total:
            self.told = now
            print(f"{self.title}: step {step} / {self.total}, {text}", file=sys.stderr, flush=True)


class _Bar(_Silence):
    """A bar of rich's."""

    def __init__(self, title: str, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[text]}"), console=Console(stderr=True))
        self._task = self._progress.add_task(title, total=total, text="")
        self._progress.start()

    def show(self, step: int, text: str) -> None:
        self._progress.update(self._task, completed=step, text=text)

    def close(self) -> None:
        self._progress.stop()


def _watch(title: str, total: int) -> _Silence:
    try:
        import rich  # noqa: F401
    except ImportError:
        return _Lines(title, total)
    return _Bar(title, total) if sys.stderr.isatty() else _Lines(title, total)


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        warnings.warn(
            "tensorboard is not installed, so none is written: metrics.jsonl has everything", RuntimeWarning, 3
        )
        return None
    return SummaryWriter(str(folder))


def _opened_at(path: Path, position: int) -> TextIO:
    path.touch()
    file = path.open("r+", encoding="utf-8")
    file.seek(min(position, path.stat().st_size))
    file.truncate()
    return file
