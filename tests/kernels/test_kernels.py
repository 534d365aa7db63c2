"""What needs no GPU and no interpreter in this process: imports, compilation for Hopper, and the other files here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
HERE_TOO = ("test_kernels.py", "test_kernel_launch.py")  # which need no interpreter
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def run(*arguments: str, **variables: str) -> str:
    """The output of python in a process of its own, which must succeed."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="collected here")
@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("test_*.py") if path.name not in HERE_TOO))
@pytest.mark.slow
def test_in_the_interpreter(file: str) -> None:
    pytest.importorskip("triton")
    run("-m", "pytest", "-p", "no:cacheprovider", str(HERE / file), TRITON_INTERPRET="1")


@pytest.mark.slow
def test_triton_is_neither_imported_early_nor_required() -> None:
    run("-c", "import sys, stringpe, stringpe.kernels; assert 'triton' not in sys.modules")
    without = "import sys; sys.modules['triton'] = None; import torch, stringpe; from stringpe import kernels; "
    assert run("-c", without + "print(kernels.unavailable(torch.zeros(1)))") == "triton is not installed\n"
    assert run("-c", without + "print(stringpe.backend(torch.zeros(1)))") == "torch\n"


@pytest.mark.parametrize(("d", "c"), [(16, 3), (24, 3), (64, 3), (80, 3), (128, 3), (256, 3), (24, 6), (64, 6)])
@pytest.mark.slow
def test_compiled_for_hopper(d: int, c: int) -> None:
    """No block of sines and cosines passes through shared memory, nothing spills to local memory, and queries and keys
    move 16 bytes at a time where the planes of a head allow it; 8 also where c sums leave few registers."""
    pytest.importorskip("triton")
    listing = run(str(HERE / "hopper.py"), str(d), str(c), TRITON_INTERPRET="0")
    forward, backward = listing.split("// backward_kernel")
    for each in (forward, backward):
        assert not re.findall(r"convert_layout.*tensor<\d+x\d+xf", each)
        assert "'STACK': 0, 'LOCAL': 0" in each
        assert re.findall(r"(ld|st)\.global[.\w]*\.(v4|v2)\.b32", each)
        assert not re.findall(r"(ld|st)\.global[.\w]*b16", each)
    assert bool(re.findall(r"st\.global[.\w]*v2\.b32", forward)) == (d % 16 != 0)


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.slow
def test_projection_compiled_for_hopper(d: int) -> None:
    """One loop over tiles and channels together; the float32 tile is turned in the threads that hold it."""
    pytest.importorskip("triton")
    listing = run(str(HERE / "hopper.py"), str(d), "projection", TRITON_INTERPRET="0")
    assert not re.findall(r"convert_layout.*tensor<\d+x\d+xf32", listing)
    assert listing.count("scf.for") == 1
    assert "wgmma.mma_async" in listing


@pytest.mark.parametrize("d", [32, 64, 128])
@pytest.mark.slow
def test_short_attention_compiled_for_hopper(d: int) -> None:
    """Products in the matrix units, 16 bytes at a time, and no array in local memory."""
    pytest.importorskip("triton")
    listing = run(str(HERE / "hopper.py"), str(d), "attention", TRITON_INTERPRET="0")
    assert listing.count("wgmma.wait_group") >= 2
    assert not re.findall(r"mma\.sync", listing)
    assert re.findall(r"ld\.global[.\w]*\.v4\.b32", listing)
    assert re.findall(r"st\.global[.\w]*\.v4\.b32", listing)
    assert not re.findall(r"(ld|st)\.(global[.\w]*b16|local)", listing)
