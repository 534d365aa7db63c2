"""Processes to kill: forked from this one, so that each starts at once with everything imported."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DRAFT = re.compile(r"^\..*\.\d+\.[0-9a-f]{8}")
"""Names of files that are being written; see `stringpe.io.files`."""

PATIENCE = 120.0
"""Seconds after which a process that should have ended counts as hung."""


class Process:
    """A forked process that calls work(), with a file for what it prints. `wait` gives its exit status."""

    def __init__(self, work: Callable[[], Any], log: Path):
        self.log, self.began, self.status = log, time.monotonic(), None
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on, of forks in processes with threads
            self.pid = os.fork()
        if not self.pid:
            _live(work, log)

    def kill(self) -> bool:
        """End it at once, as a power button would; whether it was still at work."""
        if self.status is None and os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            os.kill(self.pid, signal.SIGKILL)
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            return self.status == -signal.SIGKILL
        self.status = 0 if self.status is None else self.status
        return False

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Its exit status: 0 if all went well, 1 after an error, None if it hung and was killed."""
        until = time.monotonic() + seconds
        while self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                self.kill()
                return None
            else:
                time.sleep(0.002)
        return self.status

    def said(self) -> str:
        """The last line that it printed."""
        lines = self.log.read_text(errors="replace").strip().splitlines() if self.log.exists() else []
        return lines[-1] if lines else ""


def _live(work: Callable[[], Any], log: Path) -> None:
    """The life of the forked process; never returns."""
    status = 1
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        # After a fork torch makes its pool of threads anew when it is first wanted, and two threads that want it at
        # once end in "Invalid thread pool": so it is made here. The package spawns its processes, or has no threads
        # in them.
        torch.set_num_threads(torch.get_num_threads())
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
