"""How long a step takes and how much memory it needs."""

import statistics
import time
from pathlib import Path

import torch


class Clock:
    """Milliseconds a step, over windows that end where the device has caught up. Pauses do not count."""

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
    """Largest memory since `reset_peak`: of tensors on a GPU, of the whole process on a CPU; None if nobody knows."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)
