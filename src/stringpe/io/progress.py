"""How far a long job is: a bar on a terminal if rich is installed, else a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINE_EVERY = 5.0


@contextmanager
def progress(what: str, total: int, done: int = 0, unit: str = "frames") -> Iterator[Callable[[int], None]]:
    """A function to call with the number of units that were just finished. `done`: units finished before."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        Progress = None  # type: ignore[assignment,misc]
    if Progress is not None and sys.stderr.isatty():
        from rich.console import Console

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(what, total=total, completed=done)
            yield lambda step: bar.advance(task, step)
        return
    state = {"made": 0, "printed": time.monotonic()}
    start = time.monotonic()

    def advance(step: int) -> None:
        state["made"] += step
        now = time.monotonic()
        if now - state["printed"] > _LINE_EVERY or done + state["made"] == total:
            state["printed"] = now
            rate = state["made"] / max(now - start, 1e-9)
            line = f"{what}: {done + state['made']:.0f} / {total} ({rate:.1f} {unit}/s)"
            print(line, file=sys.stderr, flush=True)

    yield advance
