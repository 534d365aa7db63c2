"""The processes that runs share end with the process that started them."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import sys, os
from pathlib import Path
from stringpe import recipes
from stringpe.training import compare

if __name__ == "__main__":
    endless = ["loop.steps=100000", "loop.log_every=1", "loop.batch_size=2", "data.val_size=4"]
    recipe = recipes.load("relations", endless)
    compare(recipe, ["rope", "cayley"], seeds=1, out=sys.argv[1], jobs=2, quiet=True, costs=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [9, 15])
def test_workers_end_with_their_parent_whatever_ended_it(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "out")], stderr=subprocess.DEVNULL)
    logs = [tmp_path / f"out/runs/{row}/seed0/metrics.jsonl" for row in ("rope", "cayley")]
    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs))
    workers = children(parent.pid)
    assert len(workers) >= 2
    parent.send_signal(number)
    parent.wait(timeout=20)
    wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))


def children(process):
    return [int(p.name) for p in Path("/proc").glob("[0-9]*") if _parent(p) == process]


def _parent(folder):
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def wait_until(holds, seconds=90):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
