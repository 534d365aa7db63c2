"""What Ctrl-C does to a pool of processes, as a terminal sends it: to all of them at once."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, time
from pathlib import Path
from stringpe.io.processes import WorkerPool

def prepare(folder):
    (folder / f"ready-{os.getpid()}").touch()

def work(folder, seconds):
    (folder / f"working-{os.getpid()}").touch()
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        (folder / f"cleaned-{os.getpid()}").touch()
        raise

if __name__ == "__main__":
    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    try:
        with WorkerPool(2, prepare, (folder,)) as pool:
            (folder / "started").touch()
            calls = [pool.submit(work, folder, seconds) for _ in range(6)]
            time.sleep(60) if seconds == 0 else [call.result() for call in calls]
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
"""


def interrupt(folder, seconds, ready, *, alone=False):
    """Exit status and error text of the program, to which Ctrl-C comes as soon as `ready()`. alone: its workers do not
    get it."""
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM)
    work = subprocess.Popen(
        [sys.executable, folder / "program.py", folder, str(seconds)],
        stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not ready():
        assert work.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    os.kill(work.pid, signal.SIGINT) if alone else os.killpg(work.pid, signal.SIGINT)
    _, said = work.communicate(timeout=30)
    return work.returncode, said


def test_a_call_under_way_cleans_up(tmp_path):
    assert interrupt(tmp_path, 60, lambda: len(list(tmp_path.glob("working-*"))) == 2) == (130, "stopped\n")
    assert len(list(tmp_path.glob("cleaned-*"))) == 2


def test_processes_without_a_call_leave_in_silence(tmp_path):
    assert interrupt(tmp_path, 0, lambda: any(tmp_path.glob("working-*"))) == (130, "stopped\n")


@pytest.mark.parametrize("wait", [0.0, 0.1, 0.2])
def test_processes_that_are_still_importing_leave_in_silence(tmp_path, wait):
    def started():
        if not (tmp_path / "started").exists():
            return False
        time.sleep(wait)
        return True

    assert interrupt(tmp_path, 60, started) == (130, "stopped\n")


def test_workers_that_do_not_get_the_signal_are_ended(tmp_path):
    begun = time.monotonic()
    assert interrupt(tmp_path, 60, lambda: any(tmp_path.glob("working-*")), alone=True) == (130, "stopped\n")
    assert time.monotonic() - begun < 30
