"""Ctrl-C in every command that works for more than a moment: one line, exit status 130, no process left behind, nothing
half-written under its own name."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

LINE = "stringpe: stopped by Ctrl-C; what was finished is kept, the same command goes on"
SMALL = "data.train_size=64 data.val_size=16 loop.steps=100000 loop.save_every=20 model.layers=1"
DEMOS = "data demos KukaPick --out out --episodes 500 --size 16 16"
COMMANDS = {
    f"train relations {SMALL} --out out": "out/checkpoints/*",
    f"compare relations {SMALL} --jobs 1 --seeds 1 --no-costs --out out": "out/runs/*/*/checkpoints/*",
    f"compare relations {SMALL} --jobs 2 --seeds 1 --no-costs --out out": "out/runs/*/*/checkpoints/*",
    "compare properties": "",
    "data scenes --out out --count 4000 --size 32 32 --shard-size 8": "out/*.tar",
    f"{DEMOS} --jobs 1": "out/data/*/*.parquet",
    f"{DEMOS} --jobs 2": "out/data/*/*.parquet",
    "bench --out out": "",
}
"""Commands, and what each has made once it is at work; "" is nothing until it has ended."""


def members(group):
    """Processes of a group that run; those that ended and wait to be noticed do not count."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, number, *_ = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == group and state not in "ZX":
            found.append(stat.parent.name)
    return found


def interrupt(words, folder, sign):
    """Exit status and error text of a command that gets Ctrl-C, with its children, as a terminal sends it."""
    with open(folder / "said", "w+") as said:
        work = subprocess.Popen(
            [sys.executable, "-m", "stringpe", *words.split()],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache")},
        )  # fmt: skip
        try:
            until = time.monotonic() + (120 if sign else 3)
            while time.monotonic() < until and not (sign and any(folder.glob(sign))):
                assert work.poll() is None, (folder / "said").read_text()
                time.sleep(0.02)
            os.killpg(work.pid, signal.SIGINT)
            status = work.wait(timeout=60)
            until = time.monotonic() + 20
            while members(work.pid) and time.monotonic() < until:
                time.sleep(0.05)
            assert members(work.pid) == []
        finally:
            if members(work.pid):
                os.killpg(work.pid, signal.SIGKILL)
                work.wait()
        said.seek(0)
        return status, said.read()


def check_whole(folder):
    """Every file that bears its own name can be read."""
    for path in folder.rglob("*"):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue  # a draft or a lock, which the next writer removes
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".safetensors":
            load_file(path)
        elif path.suffix == ".tar":
            listed = subprocess.run(["tar", "tf", str(path)], capture_output=True, check=True).stdout.splitlines()
            assert len({name.partition(b".")[0] for name in listed}) == 8
        elif path.suffix == ".parquet":
            import pyarrow.parquet

            pyarrow.parquet.read_table(path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words.split(" --")[0].split(" data.")[0])
def test_ctrl_c_is_one_line_and_leaves_nothing_half_done(words, tmp_path, request):
    if words.startswith(DEMOS):
        pytest.importorskip("mujoco")
    status, said = interrupt(words, tmp_path, COMMANDS[words])
    assert status == 130
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("stringpe:")] == [LINE]
    assert said.rstrip().endswith(LINE)
    check_whole(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_ctrl_c_ends_trials_of_a_policy_in_one_line(tmp_path):
    pytest.importorskip("mujoco")
    small = (
        "data.image_size=16 model.depth=none model.dim=32 model.layers=1 model.heads=2 model.patch_size=8 policy.dim=32"
    )
    small += " policy.heads=2 policy.held_out=0.5 loop.steps=1 loop.batch_size=4 loop.compile=false loop.precision=no"
    for words in (
        "data demos KukaPick --out demos --episodes 2 --size 16 16 --jobs 1",
        f"train kuka_small {small} augment.shift=0 data.train=demos data.cache=cache --out run",
    ):
        subprocess.run(
            [sys.executable, "-m", "stringpe", *words.split()], cwd=tmp_path, check=True, capture_output=True
        )
    folder = "run/eval/*/KukaPick"
    status, said = interrupt("eval run --env KukaPick --trials 5000 --jobs 2", tmp_path, f"{folder}/trials.jsonl")
    assert status == 130
    assert "Traceback" not in said
    assert [line for line in said.splitlines() if line.startswith("stringpe:")] == [LINE]
    check_whole(tmp_path)
    (trials,) = tmp_path.glob(f"{folder}/trials.jsonl")
    assert all(json.loads(line)["steps"] for line in trials.read_text().splitlines())
    assert not list(tmp_path.glob(f"{folder}/eval_info.json"))
