"""How many steps per second a GPU makes in all when runs of a recipe stand side by side, with and without NVIDIA's MPS.

    python benchmarks/side_by_side.py tiny_imagenet100 data.source=synthetic data.in_memory=true --jobs 1 2 4 8

Without MPS (the multi-process service) processes take turns on the GPU; with it their kernels run at the same time.
Every process trains as `stringpe train` does, and is timed once all are warm. Prints a Markdown table.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM = 30  # steps, with which layers are compiled and steps captured


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("recipe")
    words.add_argument("changes", nargs="*", metavar="key=value")
    words.add_argument("--jobs", nargs="+", type=int, default=[1, 2, 4, 8])
    words.add_argument("--steps", type=int, default=100)
    words.add_argument("--one", metavar="FOLDER", help=argparse.SUPPRESS)
    given = words.parse_args()
    if given.one:
        train_one(given.recipe, given.changes, given.steps, Path(given.one))
        return
    from stringpe.io.table import markdown_table
    from stringpe.training.gpu_sharing import share_gpu

    rows = []
    for mps in (False, True):
        with share_gpu() if mps else contextlib.nullcontext() as shared:
            for jobs in given.jobs if shared or not mps else ():
                rate = measure(given.recipe, given.changes, given.steps, jobs)
                rows.append(("with" if mps else "without", str(jobs), f"{rate:.1f}"))
                print(" ".join(rows[-1]), flush=True)
    print(markdown_table(("MPS", "runs side by side", "steps per second, in all"), rows))


def measure(recipe: str, changes: list[str], steps: int, jobs: int) -> float:
    """Steps per second of all runs together."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, recipe, *changes, "--steps", str(steps), "--one", folder]
        runs = [subprocess.Popen(command) for _ in range(jobs)]
        wait_for(folder, "warm", runs)
        Path(folder, "go").touch()
        began = time.perf_counter()
        for run in runs:
            if run.wait():
                raise SystemExit(f"a run failed with status {run.returncode}")
        last = max(float(path.read_text()) for path in Path(folder).glob("ended-*"))
        return jobs * steps / (last - began)


def train_one(recipe: str, changes: list[str], steps: int, folder: Path) -> None:
    """Train until warm, wait for the others, and train on."""
    from stringpe import recipes
    from stringpe.bench.train import loop_step
    from stringpe.tasks import create
    from stringpe.training.launch import create_accelerator

    made = recipes.load(recipe, changes)
    accelerator = create_accelerator(made)
    step = loop_step(made, create(made), folder / f"run-{os.getpid()}", accelerator)
    for _ in range(WARM):
        step()
    wait_for_device(accelerator.device)
    (folder / f"warm-{os.getpid()}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    for _ in range(steps):
        step()
    wait_for_device(accelerator.device)
    (folder / f"ended-{os.getpid()}").write_text(str(time.perf_counter()))


def wait_for_device(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def wait_for(folder: str, what: str, runs: list[subprocess.Popen[bytes]]) -> None:
    """Wait until every run has left a file with that name."""
    while len(list(Path(folder).glob(f"{what}-*"))) < len(runs):
        if any(run.poll() for run in runs):
            raise SystemExit("a run failed before it was warm")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
