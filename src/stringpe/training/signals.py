"""SIGTERM, as schedulers send it: finish the step, save, leave."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(SystemExit):
    """The run was asked to stop and has saved; the exit status is 143 (128 + SIGTERM), as a shell reports it."""

    def __init__(self, message: str):
        super().__init__(143)
        self.message = message

    def __str__(self) -> str:
        return self.message


@contextmanager
def sigterm() -> Iterator[Callable[[], bool]]:
    """Inside, SIGTERM does not kill; the yielded function tells whether it came."""
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        yield lambda: False
        return
    came = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGTERM, before)
