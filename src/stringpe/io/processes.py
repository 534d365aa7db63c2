"""Processes that work for this one. They end when it ends, whatever ended it, and Ctrl-C stops them without a word of
their own: the process that was started by hand says what happened."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for_calls
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for_ends
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_GRACE = 5.0  # seconds that calls have to clean up
_PR_SET_PDEATHSIG = 1  # of Linux: a signal to this process when its parent ends


class WorkerPool:
    """`jobs` processes for calls side by side. They are spawned, not forked: CUDA, thread pools and rendering contexts
    do not survive a fork.

    prepare: called with `arguments` in every process before its first call.
    """

    def __init__(self, jobs: int, prepare: Callable[..., None], arguments: tuple[Any, ...] = ()):
        context = multiprocessing.get_context("spawn")
        theirs, self._ours = context.Pipe(duplex=False)  # when our end is closed, they end
        self._pool = ProcessPoolExecutor(jobs, context, _begin_worker, (os.getpid(), theirs, prepare, arguments))
        self._calls: set[Future[Any]] = set()

    def submit(self, call: Callable[..., T], *args: Any, **options: Any) -> "Future[T]":
        """The future result of a call; KeyboardInterrupt if Ctrl-C stopped the call. Submit from the main thread."""
        with hold_interrupts():  # it may start a process
            future = self._pool.submit(_call, call, args, options)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the calls under way. After an error, wait a few seconds only, so that interrupted calls can clean
        up; calls that are still running are ended with their processes."""
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
        if kind is not None:
            wait_for_calls(list(self._calls), timeout=_GRACE)
        self._ours.close()
        self._pool.shutdown()


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Let Ctrl-C wait until the end of the block. A process that is started in it waits for `accept_interrupts`, so
    that its imports are not interrupted, which would print a traceback.

    The signal is blocked, which processes inherit, and its handler is replaced, because the kernel may deliver it to
    another thread, and Python runs the handler in the main thread all the same."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # the first process that is spawned starts it, which would unblock the signal
    received: list[int] = []
    handler = None
    if threading.current_thread() is threading.main_thread():
        handler = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
        if received:
            signal.raise_signal(signal.SIGINT)


def accept_interrupts() -> None:
    """End the wait that `hold_interrupts` imposed on this process."""
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def end_with_parent(*pipes: Connection) -> None:
    """Let this process end when its parent does, whatever ended the parent and whatever this process is doing; or when
    the other end of one of the pipes is closed."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait_for_ends([parent.sentinel, *pipes])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_interrupted = False


def _begin_worker(parent: int, pipe: Connection, prepare: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, _leave)
    accept_interrupts()
    end_with_parent(pipe)
    if sys.platform == "linux":  # the kernel ends this process even while a call holds the interpreter
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the signal was asked for
            os._exit(1)
    prepare(*arguments)


def _call(call: Callable[..., T], args: tuple[Any, ...], options: dict[str, Any]) -> T:
    """Make a call. Ctrl-C interrupts it, so that it can clean up, and no other call begins after that. Between calls
    there is nothing to clean up, and Ctrl-C ends the process."""
    global _interrupted
    if _interrupted:
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return call(*args, **options)
    except KeyboardInterrupt:
        _interrupted = True
        raise
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)
