"""What a run costs while it trains: milliseconds per step and the peak of memory."""

import statistics
import time
from pathlib import Path

import torch

_MEMORY = ("VmHWM", "RssFile", "RssShmem")


class Clock:
    """Milliseconds per step, over windows that end where the device has caught up. Pauses do not count."""

    def __init__(self) -> None:
        self._windows: list[float] = []
        self.resume()

    def tick(self) -> None:
        """Count one step, which was issued."""
        self._steps += 1

    def mark(self) -> None:
        """End a window; call it after something that waits for the device."""
        if self._steps:
            self._windows.append(1e3 * (time.perf_counter() - self._start) / self._steps)
        self.resume()

    def resume(self) -> None:
        """Begin a window, for example after a pause for evaluation or saving."""
        self._start, self._steps = time.perf_counter(), 0

    def milliseconds(self) -> float | None:
        """The median window; the first, in which the machine warms up, counts only if there is no other."""
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
    """The largest memory since `reset_peak`: of tensors on a GPU, of the process itself on a CPU; None where it cannot
    be known.

    On a CPU, pages of files (torch's libraries are hundreds of megabytes of them) are left out: the kernel drops them
    and reads them again as it likes, so that a peak with them would depend on what else the machine does."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    fields = (line.partition(":") for line in lines)
    kilobytes = {name: int(value.split()[0]) for name, _, value in fields if name in _MEMORY}
    if "VmHWM" not in kilobytes:
        return None
    return 1024 * (kilobytes["VmHWM"] - kilobytes.get("RssFile", 0) - kilobytes.get("RssShmem", 0))
