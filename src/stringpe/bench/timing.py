"""How long something takes: warm up, repeat, and give the median with its quartiles."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Timing:
    """Milliseconds: median and quartiles of `repeats` runs, and peak memory above what was there before, in MiB."""

    median: float
    low: float
    high: float
    repeats: int
    memory: float | None = None


def measure(
    run: Callable[[], Any], device: torch.device, *, seconds: float = 0.5, least: int = 7, calls: int = 1
) -> Timing:
    """Time `run`, on a GPU with events around each sample, for about `seconds` and at least `least` samples. A sample
    is `calls` calls in a row, given per call: a training loop does not wait for the device between its steps."""

    def clock(run: Callable[[], Any]) -> float:
        timed = _cuda_milliseconds if device.type == "cuda" else _cpu_milliseconds
        return timed(lambda: [run() for _ in range(calls)]) / calls

    for _ in range(3):
        run()
    once = clock(run) * calls
    repeats = max(least, min(200, int(1e3 * seconds / max(once, 1e-3))))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    times = [clock(run) for _ in range(repeats)]
    memory = None
    if device.type == "cuda":
        memory = (torch.cuda.max_memory_allocated(device) - before) / 2**20
    low, median, high = statistics.quantiles(times, n=4)
    return Timing(median, low, high, repeats, memory)


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
