"""How long something takes: warm up, repeat, and give the median with its quartiles; or say why it cannot be
measured."""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """Milliseconds: median and quartiles of `repeats` runs, and peak memory above what was there before, in MiB. ratio:
    lower quartile, median and upper quartile of the ratio to what was timed in turns with it."""

    median: float
    low: float
    high: float
    repeats: int
    memory: float | None = None
    ratio: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class LeftOut:
    """A way that could not be measured, where (a shape, or eager or compiled), and why."""

    way: str
    where: str
    why: str


def attempt(way: str, where: str, device: torch.device, measured: Callable[[], T]) -> T | LeftOut:
    """The result of `measured`, on a device that holds nothing of earlier ways; or why there is none: too little
    memory, a library that is installed but cannot be imported, a compiler that gives up. The other ways go on."""
    release(device)
    try:
        return measured()
    except Exception as failure:  # whatever it is that others' code fails with
        said = str(failure).strip().partition("\n")[0]
        return LeftOut(way, where, f"{type(failure).__name__}: {said}" if said else type(failure).__name__)


def release(device: torch.device) -> None:
    """Give unused memory back to the GPU. Otherwise torch keeps it, that of a graph for this graph alone."""
    if device.type == "cuda":
        gc.collect()
        with suppress(RuntimeError):  # torch 2.11 refuses after a capture that failed, and is as it was
            torch.cuda.empty_cache()


def measure(
    run: Callable[[], Any], device: torch.device, *, seconds: float = 0.5, least: int = 7, calls: int = 1
) -> Timing:
    """Time `run`, on a GPU with events around each sample, for about `seconds` and at least `least` samples. A sample
    is `calls` calls in a row, given per call: a training loop does not wait for the device between its steps."""

    for _ in range(3):
        run()
    clock = _clock(device, calls)
    repeats = max(least, min(200, int(1e3 * seconds / max(clock(run) * calls, 1e-3))))
    memory = _peak(run, device)
    return _timing([clock(run) for _ in range(repeats)], memory)


def measure_in_turns(
    base: Callable[[], Any], run: Callable[[], Any], device: torch.device, *, seconds: float = 3.0, calls: int = 5
) -> Timing:
    """Time `run` in turns with `base`, both warm, for about `seconds`: a GPU's clock drifts with its heat, and the
    ratio of neighbours does not."""
    clock = _clock(device, calls)
    rounds = max(7, min(200, int(1e3 * seconds / max((clock(base) + clock(run)) * calls, 1e-3))))
    memory = _peak(run, device)
    pairs = [(clock(base), clock(run)) for _ in range(rounds)]
    low, median, high = statistics.quantiles([own / other for other, own in pairs], n=4)
    return replace(_timing([own for _, own in pairs], memory), ratio=(low, median, high))


def capture(run: Callable[[], Any], device: torch.device) -> Callable[[], Any] | None:
    """Capture what `run` launches, once it is warm, and return its replay, in which the host has no share. None without
    a GPU, or where the host waits for the GPU in `run`. The graph keeps its memory until the replay is dropped and
    `release` is called."""
    if device.type != "cuda" or _waits(run):
        return None
    release(device)
    try:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(3):
                run()
        torch.cuda.current_stream(device).wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        torch.cuda.synchronize(device)
        return None
    return captured.replay


def _waits(run: Callable[[], Any]) -> bool:
    """Whether the host waits for the GPU in `run`, as a solver that checks its errors does. This must be known before
    anything is captured: after a capture that failed, torch 2.11 behaves as if it were still under way, and gives no
    memory back."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return False


def _clock(device: torch.device, calls: int) -> Callable[[Callable[[], Any]], float]:
    timed = _cuda_milliseconds if device.type == "cuda" else _cpu_milliseconds
    return lambda run: timed(lambda: [run() for _ in range(calls)]) / calls


def _timing(times: Sequence[float], memory: float | None) -> Timing:
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, len(times), memory)


def _peak(run: Callable[[], Any], device: torch.device) -> float | None:
    """MiB that one call takes at most, above what was there."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def _cuda_milliseconds(run: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def _cpu_milliseconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)
