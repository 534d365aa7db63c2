"""Runs that share a GPU: the service that lets them, and how many runs stand side by side unless told."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import torch
from training_toy import TOY

from stringpe.recipes.design import Tuning
from stringpe.training import comparison, gpu_sharing
from stringpe.training.gpu_sharing import share_gpu

FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
SERVICE = f"""#!{sys.executable}
import os, signal, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if "-f" in sys.argv:
    open("{{seen}}", "w").write(f"{{os.getpid()}} {{folder}}")
    while not os.path.exists(folder + "/quit"):
        time.sleep(0.01)
elif sys.stdin.read() == "quit\\n":
    open(folder + "/quit", "w")
else:
    sys.exit(not os.path.exists("{{seen}}"))
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for NVIDIA's service, on a machine that seems to have a GPU: a file with its number and folder."""
    seen, command = tmp_path / "seen", tmp_path / "bin" / "nvidia-cuda-mps-control"
    command.parent.mkdir()
    command.write_text(SERVICE.replace("{seen}", str(seen)))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in FOLDERS:
        monkeypatch.delenv(name, raising=False)
    return seen


def read(seen: Path) -> tuple[int, str]:
    """The service's process and folder, once it has begun."""
    for _ in range(500):
        if seen.exists() and (words := seen.read_text().split()):
            return int(words[0]), words[1]
        time.sleep(0.02)
    raise AssertionError("the service did not begin")


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_service_lasts_as_long_as_the_block(service: Path) -> None:
    with share_gpu() as shared:
        process, folder = read(service)
        assert shared
        assert [os.environ[name] for name in FOLDERS] == [folder, folder]
        assert is_running(process)
    assert not is_running(process)
    assert not Path(folder).exists()
    assert not any(name in os.environ for name in FOLDERS)


def test_the_service_ends_with_a_process_that_is_killed(service: Path) -> None:
    code = (
        "import time, torch; from stringpe.training.gpu_sharing import share_gpu\n"
        "torch.cuda.is_available = lambda: True\n"
        "with share_gpu(): time.sleep(60)"
    )
    ours = subprocess.Popen([sys.executable, "-c", code])
    process, _ = read(service)
    ours.send_signal(signal.SIGKILL)
    ours.wait()
    for _ in range(500):
        if not is_running(process):
            return
        time.sleep(0.02)
    os.kill(process, signal.SIGKILL)
    raise AssertionError("the service outlived the process")


def test_without_an_answer_the_gpu_is_not_shared(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that looked for a service that is not there would find no GPU."""
    monkeypatch.setattr(gpu_sharing, "_GRACE", 0.5)
    command = Path(gpu_sharing.shutil.which("nvidia-cuda-mps-control"))
    for code in ("import sys; sys.exit(1)", "import sys, time; '-f' in sys.argv and time.sleep(9); sys.exit(1)"):
        command.write_text(f"#!{sys.executable}\n{code}\n")
        with share_gpu() as shared:
            assert not shared
            assert not any(name in os.environ for name in FOLDERS)


def test_a_service_that_is_there_is_used(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    with share_gpu() as shared:
        assert shared
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "/elsewhere"
    assert not service.exists()


@pytest.mark.parametrize(("gpu", "wanted"), [(True, 1), (False, os.cpu_count())])
def test_without_the_service_one_run_has_the_gpu_and_a_core_each_run(
    gpu: bool, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_sharing.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    counts = []
    monkeypatch.setattr(comparison, "WorkerPool", lambda jobs, *rest: counts.append(jobs) or _Nothing())
    with comparison.start_workers(0) as pool:
        assert (pool is None) == (wanted == 1)
    assert counts == ([wanted] if wanted > 1 else [])


def test_runs_that_share_a_gpu_are_four(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    monkeypatch.setattr(comparison, "WorkerPool", lambda jobs, *rest: counts.append(jobs) or _Nothing())
    with comparison.start_workers(0):
        read(service)
    with comparison.start_workers(6):
        pass
    assert counts == [4, 6]


class _Nothing:
    """A pool that is never used."""

    def __enter__(self) -> "_Nothing":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("tuning", [None, Tuning((1e-3,))])
@pytest.mark.parametrize("jobs", [0, 2])
def test_runs_that_find_no_memory_beside_others_are_repeated_alone(jobs, tuning, tmp_path, monkeypatch) -> None:
    """Unless it was the user who wanted them side by side; also those that try learning rates."""
    tried = []

    def run_all(plan, pool, quiet):
        tried.append(pool)
        outcome = torch.OutOfMemoryError("full") if pool == "pool" else {"metrics": {"top1": 0.5}, "metric": "top1"}
        return [(run, outcome) for run in plan]

    monkeypatch.setattr(comparison, "start_workers", lambda jobs: nullcontext(None if jobs == 1 else "pool"))
    monkeypatch.setattr(comparison, "run_all", run_all)
    monkeypatch.setattr(comparison, "_conclude", lambda question, task, out, outcomes, *rest: outcomes)
    start = partial(comparison.compare, TOY, ["rope"], 1, tmp_path, jobs=jobs, tuning=tuning, costs=False, quiet=True)
    if jobs:
        with pytest.raises(ValueError, match=r"run it again to go on with them:\n.*full"):
            start()
        assert tried == ["pool"]
    else:
        ((_, outcome),) = start()
        assert outcome["metrics"] == {"top1": 0.5}
        assert tried == ["pool", None, None][: 3 if tuning else 2]
