"""Runs that are killed, told to stop, or spread over processes end as one that was left alone."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stringpe.io import checkpoint as checkpoints
from stringpe.training import train

pytestmark = pytest.mark.slow

WORDS = """
import dataclasses, json, sys, torch
from stringpe.training import train
from stringpe.recipes.overrides import from_dict
torch.set_num_threads(1)
recipe = from_dict(json.loads(sys.argv[1]))
print("ready", flush=True)
try:
    train(recipe, sys.argv[2], quiet=True)
except SystemExit as stop:
    print(stop, flush=True)
    raise
"""


CALM = {"ema": 0.9, "eps": 1e-4}  # with 1e-8, Adam blows rounding up to whole steps while the head is still near zero
SHARDED = """
# Accelerate shards only on GPUs. Here its prepare is replaced by what it does there: shard, and repoint the optimiser.
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from torch.distributed.fsdp import fully_shard

def prepare(self, model, optimizer):
    names = {id(p): n for n, p in model.named_parameters()}
    fully_shard(model)
    new = dict(model.named_parameters())
    for group in optimizer.param_groups:
        group["params"] = [new[names[id(p)]] for p in group["params"]]
    return model, AcceleratedOptimizer(optimizer)

Accelerator.prepare = prepare
"""


def start(recipe, out, launcher=(), environment=None):
    words = [sys.executable, *launcher] if launcher else [sys.executable, "-c", WORDS]
    return subprocess.Popen(
        [*words, json.dumps(recipe.to_dict()), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | (environment or {}),
    )


def curve(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_run_killed_at_random_moments_ends_the_same(changed, tmp_path):
    recipe = changed(loop={"steps": 60, "save_every": 4, "log_every": 3, "eval_every": 14}, optim={"ema": 0.9})
    whole = train(recipe, tmp_path / "whole", quiet=True)
    dice, killed = random.Random(), 0
    for _ in range(4):
        process = start(recipe, tmp_path / "killed")
        process.stdout.readline()
        before = len(checkpoints.list_checkpoints(tmp_path / "killed"))
        while process.poll() is None and not before and not checkpoints.list_checkpoints(tmp_path / "killed"):
            time.sleep(0.01)  # the first time, wait until there is something to lose
        time.sleep(dice.uniform(0, 0.6))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
    assert killed
    resumed = train(recipe, tmp_path / "killed", quiet=True)
    assert resumed["metrics"] == whole["metrics"]
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")


@pytest.mark.parametrize("moment", ["optimizer.safetensors", "progress.json"])
def test_a_kill_while_a_checkpoint_is_written_costs_only_that_checkpoint(changed, tmp_path, monkeypatch, moment):
    recipe = changed(loop={"steps": 12, "save_every": 4})
    whole = train(recipe, tmp_path / "whole", quiet=True)
    kept = os.rename

    def dies(source, target):
        if Path(target).name == "000008":
            (Path(source) / "training_state" / moment).unlink()  # as if the disk had not got that far
            raise KeyboardInterrupt
        kept(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, tmp_path / "killed", quiet=True)
    assert [p.name for p in checkpoints.list_checkpoints(tmp_path / "killed")] == ["000004"]
    assert train(recipe, tmp_path / "killed", quiet=True)["metrics"] == whole["metrics"]
    assert not list((tmp_path / "killed" / "checkpoints").glob(".0*8.*"))


def test_sigterm_saves_and_says_so(changed, tmp_path):
    recipe = changed(loop={"steps": 100_000, "save_every": 100_000, "log_every": 1, "eval_every": 0})
    process = start(recipe, tmp_path)
    while not (tmp_path / "metrics.jsonl").exists() or not (tmp_path / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.terminate()
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    (saved,) = checkpoints.list_checkpoints(tmp_path)
    assert f"stopped by SIGTERM after step {int(saved.name)}, which is saved" in out


def test_a_folder_with_another_recipes_checkpoint_is_refused(changed, tmp_path):
    train(changed(), tmp_path, quiet=True)
    (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match=r"holds a run of another recipe \(loop.steps: 12, 20\)"):
        train(changed(loop={"steps": 20}), tmp_path, quiet=True)


def test_no_pickle_is_read(toy, tmp_path, monkeypatch):
    """Resume with every unpickler disarmed."""
    import pickle

    import torch

    train(toy, tmp_path, quiet=True)
    (tmp_path / "result.json").unlink()

    def refuse(*args, **kwargs):
        raise AssertionError("a checkpoint was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    assert train(toy, tmp_path, quiet=True)["step"] == 12


@pytest.mark.parametrize(("encoding", "sharded"), [("cayley", False), ("cayley", True)])
def test_two_processes_follow_the_curve_of_one(changed, tmp_path, encoding, sharded):
    recipe = changed(
        model={"encoding": encoding, "dropout": 0.0, "drop_path": 0.0},  # every process has its own dropout
        augment={"mixup": 0.5, "crop": 0.5, "flip": True},
        optim=CALM,
        loop={"accumulate": 2},
    )
    train(recipe, tmp_path / "one", quiet=True)
    spread(recipe, tmp_path / "two", tmp_path / "run.py", sharded)
    assert json.loads((tmp_path / "two" / "result.json").read_text())["processes"] == 2
    follows(tmp_path / "two", tmp_path / "one")


@pytest.mark.parametrize("sharded", [False, True])
def test_two_processes_resume_and_may_become_one(changed, tmp_path, sharded):
    recipe = changed(model={"dropout": 0.0, "drop_path": 0.0}, optim=CALM)
    train(recipe, tmp_path / "one", quiet=True)
    spread(recipe, tmp_path / "two", tmp_path / "run.py", sharded)
    follows(tmp_path / "two", tmp_path / "one")
    for processes in (2, 1):  # go on from step 10
        (tmp_path / "two" / "result.json").unlink()
        shutil.rmtree(checkpoints.list_checkpoints(tmp_path / "two")[-1])
        assert checkpoints.list_checkpoints(tmp_path / "two")[-1].name == "000010"
        if processes == 2:
            spread(recipe, tmp_path / "two", tmp_path / "run.py", sharded)
        else:
            train(recipe, tmp_path / "two", quiet=True)
        follows(tmp_path / "two", tmp_path / "one")


def spread(recipe, out, script, sharded):
    """Train in two processes with gloo."""
    script.write_text((SHARDED if sharded else "") + WORDS)
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--rdzv_backend=c10d"]
    launcher += ["--rdzv_endpoint=localhost:0", str(script)]
    process = start(recipe, out, launcher, {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"})
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]


def follows(two, one):
    """The same curve up to rounding, and weights of the same shapes."""
    ours, theirs = curve(two), curve(one)
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert a == pytest.approx(b, rel=2e-4, abs=1e-6)
    _, weights = checkpoints.read_model(one)
    _, sharded = checkpoints.read_model(two)
    assert {k: v.shape for k, v in sharded.items()} == {k: v.shape for k, v in weights.items()}
