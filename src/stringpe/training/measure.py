"""What a step of a recipe costs, measured with nothing else running."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ..recipes.schema import Recipe
from .clock import peak_bytes, reset_peak
from .launch import accelerator_for, build, device_name

_SECONDS = 2.0
_WARM, _MOST = 5, 25


def measure(recipe: Recipe) -> dict[str, Any]:
    """Median milliseconds of a training step, peak memory, and parameters (all, and the encodings' own)."""
    from ..encoding import PositionEncoding
    from .loop import Run

    accelerator = accelerator_for(recipe)
    device = accelerator.device
    task = build(recipe)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(recipe, task, Path(folder), accelerator, quiet=True)
    own = {id(p): p.numel() for m in run.bare.modules() if isinstance(m, PositionEncoding) for p in m.parameters()}
    batches = task.batches(0, run.place)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _WARM or (len(times) < _MOST and time.perf_counter() - began < _SECONDS):
        if len(times) == 1:
            reset_peak(device)
        start = time.perf_counter()
        run.step(len(times), next(batches))
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return {
        "step_ms": statistics.median(times[_WARM:] or times[1:]),
        "peak_bytes": peak_bytes(device),
        "parameters": run.parameters,
        "encoding_parameters": sum(own.values()),
        "device": device_name(device),
    }
