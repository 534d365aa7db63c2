"""What a step of each row of a comparison costs, measured in turns with nothing else running."""

import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ..recipes.schema import Recipe
from .clock import peak_bytes, reset_peak
from .launch import accelerator_for, build

_WARM, _LEAST, _MOST = 3, 7, 25
_SECONDS = 2.0  # per row


def measure_in_turns(recipes: Mapping[str, Recipe], baseline: str) -> dict[str, dict[str, Any]]:
    """By row: median and quartiles of milliseconds per training step and of their ratio to the baseline's step in the
    same turn, parameters of encodings, and on a GPU the peak of memory above what was there before the row's model.
    Rows take turns, one step each, so that a machine that grows slower or faster does so for all of them."""
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
