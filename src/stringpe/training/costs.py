"""What a step costs: time and memory of a run as it trains, and of the rows of a comparison in turns."""

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..recipes.schema import Recipe

_OURS = ("VmHWM", "RssFile", "RssShmem")


class Clock:
    """Milliseconds per step, over windows that end where the device has caught up. Pauses do not count."""

    def __init__(self) -> None:
        self._windows: list[float] = []
        self._begin()

    def _begin(self) -> None:
        self._start, self._steps = time.perf_counter(), 0

    def tick(self) -> None:
        """One step was issued."""
        self._steps += 1

    def mark(self) -> None:
        """End of a window; call it after something that waits for the device."""
        if self._steps:
            self._windows.append(1e3 * (time.perf_counter() - self._start) / self._steps)
        self._begin()

    def resume(self) -> None:
        """Start a window anew after a pause (evaluation, saving)."""
        self._begin()

    def milliseconds(self) -> float | None:
        """The median window; the first, which warms up, counts only where it is alone."""
        windows = self._windows[1:] or self._windows
        return statistics.median(windows) if windows else None


def reset_peak(device: torch.device) -> None:
    """Forget earlier peaks of memory."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: VmHWM starts again from now
    except OSError:
        return


def peak_bytes(device: torch.device) -> int | None:
    """Largest memory since `reset_peak`: of tensors on a GPU, of the process's own memory on a CPU; None where it
    cannot be known.

    On a CPU, pages of files (torch's libraries are hundreds of megabytes of them) are left out: the kernel takes them
    back and reads them again as it likes, so that a peak with them depends on what else the machine does."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {
        name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if name in _OURS
    }
    if "VmHWM" not in kilobytes:
        return None
    return 1024 * (kilobytes["VmHWM"] - kilobytes.get("RssFile", 0) - kilobytes.get("RssShmem", 0))


_WARM, _LEAST, _MOST = 3, 7, 25
_SECONDS = 2.0  # per row


def measure_in_turns(recipes: Mapping[str, Recipe], baseline: str) -> dict[str, dict[str, Any]]:
    """By row: median and quartiles of milliseconds per training step and of their ratio to the baseline's step in the
    same turn, parameters of encodings, and on a GPU the peak of memory above what was there before the row's model.
    Rows take turns, one step each, so that a machine that slows down or speeds up does so for all of them."""
    runs = {label: _Timed(recipe) for label, recipe in recipes.items()}
    began = time.perf_counter()
    while _wants_more(runs, time.perf_counter() - began):
        for run in runs.values():
            run.times.append(run.milliseconds())
    return {label: run.costs(runs[baseline].times) for label, run in runs.items()}


def _wants_more(runs: "Mapping[str, _Timed]", seconds: float) -> bool:
    done = min((len(run.times) for run in runs.values()), default=_MOST)
    return done < _LEAST or (done < _MOST and seconds < _SECONDS * len(runs))


class _Timed:
    """A row's run, warm, with the times of its steps."""

    def __init__(self, recipe: Recipe):
        from ..encoding import PositionEncoding
        from .launch import accelerator_for, build
        from .loop import Run

        accelerator = accelerator_for(recipe)
        self.device = accelerator.device
        reset_peak(self.device)
        before = peak_bytes(self.device)
        task = build(recipe)
        with tempfile.TemporaryDirectory() as folder:
            self.run = Run(recipe, task, Path(folder), accelerator, quiet=True)
        own = {
            id(p): p.numel() for m in self.run.bare.modules() if isinstance(m, PositionEncoding) for p in m.parameters()
        }
        self.encoding_parameters = sum(own.values()) // recipe.loop.seeds
        self.batches = task.batches(0, self.run.place)
        self.done = 0
        self.times: list[float] = []
        for _ in range(_WARM):
            self.milliseconds()
        peak = peak_bytes(self.device)
        # A CPU's allocator hands out again what the row before gave back: the numbers of later rows would mean nothing.
        known = self.device.type != "cpu" and peak is not None and before is not None
        self.peak_bytes = peak - before if known else None  # type: ignore[operator]

    def milliseconds(self) -> float:
        """Take one step, its batch included, and say how long it took."""
        start = time.perf_counter()
        self.run.step(self.done % self.run.total, next(self.batches))
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize()
        self.done += 1
        return 1e3 * (time.perf_counter() - start)

    def costs(self, baseline: list[float]) -> dict[str, Any]:
        return {
            "step_ms": _middle(self.times),
            "ratio": _middle([own / other for own, other in zip(self.times, baseline, strict=True)]),
            "peak_bytes": self.peak_bytes,
            "encoding_parameters": self.encoding_parameters,
        }


def _middle(values: list[float]) -> tuple[float, float, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4)
    return median, low, high
