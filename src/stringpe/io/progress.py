"""How far a long job is: a bar on a terminal if rich is installed, else lines; with the time that is left, and never
silent for longer than ten seconds.

    with progress("scenes", 1000, unit="frames") as advance:
        advance(64)                                  # 64 more are done
    with working("compiling 12 layers"):             # a job of one step, whose end cannot be foretold
        …

Jobs may be nested: on a terminal each has a bar, and without one the innermost job speaks. A thread speaks for a
job that has not said anything for a while, such as a step that takes a minute.
"""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

T = TypeVar("T")

LINE_EVERY = 5.0
"""Seconds between lines of a job that moves."""

SILENCE = 9.0
"""Seconds without a line after which a job that does not move says that it is still there."""

_lock = threading.RLock()
_open: "list[Job]" = []  # the jobs under way, the innermost last
_spoken = 0.0  # when the last line was printed
_bars: "Bars | None" = None
_over = threading.Event()  # set when no job is left, which ends the thread that speaks


class Job:
    """A job under way. Call it with the number of units that were just finished.

    total: units in all, 0 where there is nothing to count. unit: what is counted, "frames". late: say nothing unless
    the job takes longer than `LINE_EVERY`. quiet: say nothing at all."""

    def __init__(self, what: str, total: int, done: int, unit: str, late: bool, quiet: bool):
        self.what, self.total, self.first, self.done, self.unit = what, total, done, done, unit
        self.late, self.quiet, self.text, self.doing = late, quiet, "", ""
        self.start = self.moved = time.monotonic()
        self._first_news = (self.start, done)  # when the first unit was done, and how many were done then
        self._bar: Any = None

    def __call__(self, step: int) -> None:
        """`step` more units are done."""
        self.show(self.done + step)

    def show(self, done: int, text: str = "") -> None:
        """`done` units are done in all. text: what to say of the last of them, "loss 0.25"."""
        now = time.monotonic()
        with _lock:
            if self.done == self.first:
                self._first_news = (now, done)
            self.done, self.text, self.doing, self.moved = done, text or self.text, "", now
            if self._bar is not None and _bars is not None:
                _bars.update(self._bar, completed=done, text=self._remark())
            elif self._may_speak(now) and (now - _spoken > LINE_EVERY or done == self.total):
                _print(self.line())

    def count(self, done: int) -> None:
        """`done` units are done in all: shown once per second at most, for units that take milliseconds."""
        if self.done == self.first or time.monotonic() - self.moved >= 1:
            self.show(done)

    def stage(self, text: str) -> None:
        """Say what the job is doing until its next unit is done, for example "evaluating"."""
        with _lock:
            self.doing, self.moved = text, time.monotonic()
            if self._bar is not None and _bars is not None:
                _bars.update(self._bar, text=self._remark())

    def note(self, text: str) -> None:
        """Print a line that stays, for example the result of a part of the job."""
        with _lock:
            if self.quiet:
                return
            if _bars is not None:
                _bars.console.print(text, highlight=False, markup=False)
            else:
                _print(text)

    def line(self) -> str:
        """The job in a line: "scenes: 300 / 1000 frames (25.0 per s), 28 s left"."""
        if not self.total:
            doing = f", {self.doing}" if self.doing else ""
            return f"{self.what}{doing}: {duration(time.monotonic() - self.start)} so far"
        made, seconds = self._pace()
        parts = [f"{self.what}: {self.done:,} / {self.total:,} {self.unit}"]
        if made and seconds > 0.1:
            rate = made / seconds
            parts[0] += f" ({rate:.1f} per s)" if rate >= 1 else f" ({duration(1 / rate)} each)"
        parts += [self.text] if self.text else []
        if made and self.done < self.total:
            parts.append(f"{duration(seconds * (self.total - self.done) / made)} left")
        return ", ".join(parts)

    def _pace(self) -> tuple[int, float]:
        """Units, and the seconds that they took. The first news is left out once there is enough after it: what comes
        before it, such as compilation, comes once."""
        now, (since, done) = time.monotonic(), self._first_news
        if self.done > done and now - since > 1:
            return self.done - done, now - since
        return self.done - self.first, now - self.start

    def beat(self) -> str:
        """The line of a job that has not moved for a while."""
        if not self.total:
            return self.line()
        waited = duration(time.monotonic() - self.moved)
        quiet_since = f"started {waited} ago" if self.done == self.first else f"last news {waited} ago"
        news = f"{self.doing} has taken {waited} so far" if self.doing else quiet_since
        return f"{self.line()}; {news}"

    def _may_speak(self, now: float) -> bool:
        return not self.quiet and not (self.late and now - self.start < LINE_EVERY)

    def _remark(self) -> str:
        return ", ".join(filter(None, [self.text, self.doing]))


@contextmanager
def progress(
    what: str, total: int, done: int = 0, unit: str = "frames", *, late: bool = False, quiet: bool = False
) -> Iterator[Job]:
    """A job of `total` units, of which `done` were finished before. late: say nothing of it unless it takes longer than
    a few seconds. quiet: say nothing at all, because nobody watches."""
    job = Job(what, total, done, unit, late, quiet)
    if quiet:
        yield job
        return
    _enter(job)
    try:
        yield job
    finally:
        _leave(job)


@contextmanager
def working(what: str, *, late: bool = False, quiet: bool = False) -> Iterator[Job]:
    """A job whose steps cannot be counted: it is named at once (unless `late`), and again while it lasts."""
    with progress(what, 0, late=late, quiet=quiet) as job:
        if not (late or quiet) and _bars is None:
            _print(f"{what} …")
        yield job


def track(items: Iterable[T], what: str, total: int = 0, unit: str = "") -> Iterator[T]:
    """The items, with progress: of `total` units, or, where their number is not known, of a job that is working."""
    with progress(what, total, unit=unit) if total else working(what) as job:
        for item in items:
            yield item
            job(1) if total else job.stage("")


def duration(seconds: float) -> str:
    """Seconds as people say them: "12 s", "3 min", "2 h 5 min"."""
    if seconds < 99.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _print(line: str) -> None:
    global _spoken
    with _lock:
        _spoken = time.monotonic()
        print(line, file=sys.stderr, flush=True)


def _enter(job: Job) -> None:
    global _bars, _over, _spoken
    with _lock:
        if not _open:
            _spoken = time.monotonic() - LINE_EVERY  # the first unit is announced at once
            _bars = _start_bars()
            if _bars is None:
                _over = threading.Event()
                threading.Thread(target=_speak, args=(_over,), name="stringpe progress", daemon=True).start()
        _open.append(job)
        if _bars is not None:
            job._bar = _bars.add_task(job.what, total=job.total or None, completed=job.done, text="")


def _leave(job: Job) -> None:
    global _bars
    with _lock:
        _open.remove(job)
        if _bars is not None:
            _bars.update(job._bar, refresh=True)
            if _open:
                _bars.remove_task(job._bar)
        if not _open:
            _over.set()
            if _bars is not None:
                _bars.stop()
                _bars = None


def _start_bars() -> "Bars | None":
    """rich's display, if rich is installed and somebody looks: one for all jobs."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars
    except ImportError:
        return None
    left = (TextColumn("left"), TimeRemainingColumn(), TextColumn("[dim]{task.fields[text]}"))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), *left)
    bars = Bars(*columns, console=Console(stderr=True), redirect_stdout=False)
    bars.start()
    return bars


def _speak(over: threading.Event) -> None:
    """Print a line for the innermost job whenever nothing was printed for a while."""
    while not over.wait(min(1.0, SILENCE / 4)):
        with _lock:
            now = time.monotonic()
            if _open and now - _spoken >= SILENCE and _open[-1]._may_speak(now):
                _print(_open[-1].beat())
