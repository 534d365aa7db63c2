"""Several runs on one GPU at the same time, through NVIDIA's multi-process service (MPS).

Without it, processes take turns on a GPU, so that small models leave most of it idle and switching between them costs
time.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import torch

RUNS = 4
"""Runs side by side that share a GPU unless another number is asked for: benchmarks/README.md has the measurement."""

_CONTROL = "nvidia-cuda-mps-control"
_FOLDERS = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
_ENDS_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # PR_SET_PDEATHSIG
    "if os.getppid() == int(sys.argv[1]):\n"
    "    os.execv(sys.argv[2], sys.argv[2:])"
)
"""Python code that asks the kernel for SIGTERM when the process with the given number ends, and then becomes the
command that follows."""

_GRACE = 10.0  # seconds that the service has to begin, to answer, and to end


@contextmanager
def share_gpu() -> Iterator[bool]:
    """Whether processes that are started inside share the GPU: through a service of our own, which ends with the block
    or with this process, or through one that the environment names."""
    control = shutil.which(_CONTROL)
    if _FOLDERS[0] in os.environ:
        yield torch.cuda.is_available()
    elif control is None or not torch.cuda.is_available():
        yield False
    else:
        with tempfile.TemporaryDirectory(prefix="stringpe-mps-") as folder, _serve(control, folder) as serves:
            own = dict.fromkeys(_FOLDERS, folder) if serves else {}
            os.environ.update(own)
            try:
                yield serves
            finally:
                for name in own:
                    del os.environ[name]


@contextmanager
def _serve(control: str, folder: str) -> Iterator[bool]:
    """The service in a process of its own, which finds its clients through the folder; whether it answers."""
    environment = {**os.environ, **dict.fromkeys(_FOLDERS, folder)}
    service = subprocess.Popen(
        [sys.executable, "-c", _ENDS_WITH_PARENT, str(os.getpid()), control, "-f"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the runs
    )

    def tell(words: str) -> bool:
        """Give the service an order; whether it was taken."""
        order = partial(subprocess.run, [control], env=environment, capture_output=True, timeout=_GRACE, check=False)
        with suppress(subprocess.TimeoutExpired):
            return order(input=words.encode()).returncode == 0 and service.poll() is None
        return False

    try:
        end = time.monotonic() + _GRACE
        while not (serves := tell("get_server_list\n")) and service.poll() is None and time.monotonic() < end:
            time.sleep(0.1)
        yield serves
    finally:
        tell("quit\n")
        with suppress(subprocess.TimeoutExpired):
            service.wait(_GRACE)
        service.kill()
        service.wait()
