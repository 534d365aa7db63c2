"""What the steps of a comparison's rows cost: time, as a ratio to the baseline's, and memory, measured in turns."""

import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..encoding import PositionEncoding
from ..io.files import find_mismatch, read_json, write_json
from ..io.progress import working
from ..recipes.schema import Recipe
from ..tasks import create
from .costs import peak_bytes, reset_peak
from .launch import create_accelerator

_WARM_UP, _FEWEST, _MOST = 3, 7, 25  # steps per row
_SECONDS = 2.0  # per row, beyond which no row takes more than the fewest steps
_COSTS = {str: {"step_ms": [float], "ratio": [float], "peak_bytes": (int, None), "encoding_parameters": int}}


def load_or_measure_costs(
    path: Path, recipes: Mapping[str, Recipe], baseline: str, *, quiet: bool = False
) -> dict[str, dict[str, Any]]:
    """Costs by row, as `measure_in_turns` gives them: those in the file `path`, or measured and written there."""
    costs: dict[str, dict[str, Any]] = read_json(path) if path.exists() else {}
    damaged = find_mismatch(costs, _COSTS) or any(
        len(cost[name]) != 3 for cost in costs.values() for name in ("step_ms", "ratio")
    )
    # Of other rows, or as ratios to another baseline: that of the baseline itself is 1.
    if damaged or list(costs) != list(recipes) or costs[baseline]["ratio"] != [1.0, 1.0, 1.0]:
        with working(f"measuring the steps of {len(recipes)} rows in turns", quiet=quiet):
            costs = measure_in_turns(recipes, baseline)
        write_json(path, costs)
    return {
        row: {name: tuple(value) if isinstance(value, list) else value for name, value in cost.items()}
        for row, cost in costs.items()
    }


def measure_in_turns(recipes: Mapping[str, Recipe], baseline: str) -> dict[str, dict[str, Any]]:
    """By row: median and quartiles of the milliseconds of a training step and of their ratio to the baseline's step in
    the same turn, the number of parameters of encodings, and on a GPU the peak of memory above what was there before
    the row's model. Rows take turns, one step each, so that a machine that slows down does so for all of them."""
    rows = {label: _TimedRow(recipe) for label, recipe in recipes.items()}
    start = time.perf_counter()
    while _wants_more(rows, time.perf_counter() - start):
        for row in rows.values():
            row.times.append(row.take_step())
    return {label: row.costs(rows[baseline].times) for label, row in rows.items()}


def _wants_more(rows: "Mapping[str, _TimedRow]", seconds: float) -> bool:
    steps = min((len(row.times) for row in rows.values()), default=_MOST)
    return steps < _FEWEST or (steps < _MOST and seconds < _SECONDS * len(rows))


class _TimedRow:
    """A row's run for one seed, warmed up, and the times of its steps in milliseconds."""

    def __init__(self, recipe: Recipe):
        from .loop import Run  # which imports more than a mistake in a command should wait for

        recipe = replace(recipe, loop=replace(recipe.loop, seeds=1))
        accelerator = create_accelerator(recipe)
        self.device = accelerator.device
        reset_peak(self.device)
        before = peak_bytes(self.device)
        task = create(recipe)
        with tempfile.TemporaryDirectory() as folder:
            self.run = Run(recipe, task, Path(folder), accelerator, quiet=True)
        encodings = [m for m in self.run.bare.modules() if isinstance(m, PositionEncoding)]
        self.encoding_parameters = sum({id(p): p.numel() for m in encodings for p in m.parameters()}.values())
        self.batches = task.batches(0, self.run.place)
        self.steps = 0
        self.times: list[float] = []
        for _ in range(_WARM_UP):
            self.take_step()
        after = peak_bytes(self.device)
        # A CPU's allocator reuses what the row before gave back, so the numbers of later rows would mean nothing.
        known = self.device.type != "cpu" and after is not None and before is not None
        self.peak_bytes = after - before if known else None  # type: ignore[operator]

    def take_step(self) -> float:
        """Take one step, its batch included; returns its milliseconds."""
        start = time.perf_counter()
        self.run.step(self.steps % self.run.total, next(self.batches))
        if self.device.type != "cpu":
            torch.get_device_module(self.device).synchronize()
        self.steps += 1
        return 1e3 * (time.perf_counter() - start)

    def costs(self, baseline: list[float]) -> dict[str, Any]:
        """What the row cost, beside the times of the baseline's steps."""
        return {
            "step_ms": _median_and_quartiles(self.times),
            "ratio": _median_and_quartiles([time / other for time, other in zip(self.times, baseline, strict=True)]),
            "peak_bytes": self.peak_bytes,
            "encoding_parameters": self.encoding_parameters,
        }


def _median_and_quartiles(values: list[float]) -> tuple[float, float, float]:
    low, median, high = statistics.quantiles(values, n=4)
    return median, low, high
