import io
import os
import pty
import re
import subprocess
import sys
import threading
import time

import pytest

from stringpe.io import progress as display
from stringpe.io.progress import duration, progress, working


def test_without_a_terminal_the_last_line_tells_the_whole(capsys):
    with progress("frames of a scene", 10, done=4) as advance:
        time.sleep(0.11)
        advance(3)
        advance(3)
    first, last = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"frames of a scene: 7 / 10 frames \(\d+\.\d per s\), 0\.1 s left", first)
    assert last.startswith("frames of a scene: 10 / 10 frames (")


def test_the_time_left_follows_the_rate(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    job = display.Job("steps", 100, 20, "steps", late=False, quiet=True)
    clock[0] += 60
    job.show(40, "loss 0.25")
    assert job.line() == "steps: 40 / 100 steps (3.0 s each), loss 0.25, 3 min left"


def test_what_comes_once_does_not_count_in_the_rate(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    job = display.Job("steps", 101, 0, "steps", late=False, quiet=True)
    clock[0] += 500  # compiling
    job.count(1)
    assert "8 min each" in job.line()
    clock[0] += 0.5
    job.count(2)
    assert job.done == 1  # shown once per second at most
    clock[0] += 9.5
    job.count(21)
    assert job.line() == "steps: 21 / 101 steps (2.0 per s), 40 s left"


def test_a_job_that_does_not_move_speaks_before_ten_seconds_are_over(monkeypatch, capsys):
    monkeypatch.setattr(display, "SILENCE", 0.2)
    with progress("runs", 3, unit="runs") as outer, working("compiling 12 layers"):
        outer.show(1)
        time.sleep(0.7)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "compiling 12 layers …"
    beats = [line for line in lines if re.fullmatch(r"compiling 12 layers: 0\.\d s so far", line)]
    assert len(beats) >= 2  # the innermost job speaks, and the outer one is silent
    assert not any("has taken" in line for line in lines)
    speakers = [thread for thread in threading.enumerate() if thread.name == "stringpe progress"]
    for thread in speakers:
        thread.join(1)
    assert not any(thread.is_alive() for thread in speakers)


def test_a_long_step_says_what_it_does(monkeypatch, capsys):
    monkeypatch.setattr(display, "SILENCE", 0.1)
    with progress("training", 3, unit="steps") as job:
        job.show(1, "loss 0.5")
        job.stage("evaluating")
        time.sleep(0.4)
    assert re.search(
        r"training: 1 / 3 steps .*loss 0\.5, .* left; evaluating has taken 0\.\d s so far", capsys.readouterr().err
    )


def test_short_jobs_can_be_silent_and_nobody_is_told_where_nobody_watches(capsys):
    with progress("reading", 5, late=True) as advance:
        advance(5)
    with progress("reading", 5, quiet=True) as job:
        job.note("a line")
        job(5)
    with working("evaluating", late=True):
        pass
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (3.21, "3.2 s"), (59.7, "60 s"), (100, "2 min"), (3000, "50 min"), (7500, "2 h 5 min")],
)
def test_durations_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_on_a_terminal_there_is_a_bar_for_every_job(tmp_path):
    """In a process whose stderr is a terminal: two jobs, a line that stays, and stdout as it was."""
    script = tmp_path / "bars.py"
    script.write_text(
        "import time\nfrom stringpe.io.progress import progress, working\n"
        "with progress('outer job', 2, unit='runs') as job:\n"
        "    with progress('inner job', 4) as inner:\n        inner(2)\n        time.sleep(0.3)\n"
        "    job.note('one is done')\n    job(1)\n    print('result')\n"
    )
    ours, theirs = pty.openpty()
    ran = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=theirs, timeout=60)
    os.close(theirs)
    shown = io.BytesIO()
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # Linux says so at the end of a terminal that was closed
            break
        shown.write(piece)
    os.close(ours)
    text = shown.getvalue().decode()
    assert ran.stdout == b"result\n"
    for part in ("outer job", "inner job", "2/4", "one is done"):
        assert part in text
