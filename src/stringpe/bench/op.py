"""The operation alone: rotate q and k, forward, and forward with backward to everything that learns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..rotate import backend, rotate_pair
from .timing import LeftOut, Timing, attempt, graph, measure
from .ways import WAYS, peers

CALLS = 10  # in a row, so that the host prepares one while the device does another

Rotation = Callable[..., tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Shape:
    """Batch, heads, tokens, head dim, coordinates; coordinates per sample unless shared."""

    b: int
    h: int
    n: int
    d: int
    c: int = 3
    shared: bool = False

    def __str__(self) -> str:
        return f"({self.b}, {self.h}, {self.n}, {self.d}), {self.c} coordinates{' shared' if self.shared else ''}"


@dataclass(frozen=True)
class OpRow:
    """One way on one shape: forward, forward + backward (None where it gives no gradient), and the floor of forward.
    On a GPU these are replays of a graph, which is what the device does; forward_call and both_call are calls from
    Python, the host's share included. A way that cannot be captured has its calls in both places."""

    way: str
    shape: str
    forward: Timing
    both: Timing | None
    floor: float
    backend: str = ""
    forward_call: Timing | None = None
    both_call: Timing | None = None


class OpInputs:
    """Random q and k as views of a packed projection, coordinates, frequencies and S, and the copy for the floor."""

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device):
        b, h, n, d, c = shape.b, shape.h, shape.n, shape.d, shape.c
        random = torch.Generator(device).manual_seed(0)
        packed = torch.randn(b, n, 2, h, d, generator=random, device=device, dtype=dtype)
        self.q, self.k = (t.transpose(1, 2) for t in packed.unbind(2))
        self.coords = torch.rand(1 if shape.shared else b, n, c, generator=random, device=device) * 16
        self.frequencies = torch.randn(h, c, d // 2, generator=random, device=device)
        lower = torch.randn(h, d, d, generator=random, device=device).tril(-1) * 0.1
        self.skew = lower - lower.mT
        self.grad_q, self.grad_k = (torch.randn_like(self.q) for _ in range(2))
        self.packed, self.device, self.shape = packed, device, shape

    def floor(self) -> float:
        """Milliseconds to read and write q and k once. On a GPU the faster of a call and a replay: a small copy costs
        the host more, and a large one is slower as a node of a graph (2.8 against 4.2 TB/s on an H200)."""
        target = torch.empty_like(self.packed)
        return min(timing.median for timing in self._time(lambda: target.copy_(self.packed)))

    def row(self, name: str, way: Rotation, floor: float, *, gradient: bool = True, backend: str = "") -> OpRow:
        forward, forward_call = self._time(partial(self.forward, way))
        both, both_call = self._time(self.both(way)) if gradient else (None, None)
        return OpRow(name, str(self.shape), forward, both, floor, backend, forward_call, both_call)

    def _time(self, run: Callable[[], Any]) -> tuple[Timing, Timing]:
        """The device's share, and a call."""
        call = measure(run, self.device, calls=CALLS)
        replay = graph(run, self.device)  # gone with its memory when this returns
        return call if replay is None else measure(replay, self.device, calls=CALLS), call

    @torch.no_grad()
    def forward(self, way: Rotation) -> tuple[Tensor, Tensor]:
        return way(self.q, self.k, self.coords, self.frequencies, self.skew)

    def both(self, way: Rotation) -> Callable[[], Any]:
        """Forward and backward, with gradients to q, k, frequencies and S."""
        leaves = [t.detach().requires_grad_() for t in (self.q, self.k, self.frequencies, self.skew)]
        q, k, frequencies, skew = leaves

        def run() -> Any:
            turned = way(q, k, self.coords, frequencies, skew)
            return torch.autograd.grad(turned, leaves, (self.grad_q, self.grad_k), allow_unused=True)

        return run


def ours(q: Tensor, k: Tensor, coords: Tensor, frequencies: Tensor, skew: Tensor) -> tuple[Tensor, Tensor]:
    """What is left of any STRING encoding once the basis is folded."""
    return rotate_pair(q, k, coords, frequencies)


def rows(shape: Shape, dtype: torch.dtype, device: torch.device, *, compiled: bool = True) -> Iterator[OpRow | LeftOut]:
    """Ours, the ways written out (eager and compiled) and the peers, on one shape."""
    ready = attempt("every way", str(shape), device, partial(_prepare, shape, dtype, device))
    if isinstance(ready, LeftOut):
        yield ready
        return
    job, floor = ready

    def row(name: str, way: Rotation, **options: Any) -> OpRow | LeftOut:
        return attempt(name, str(shape), device, partial(job.row, name, way, floor, **options))

    yield row("ours", ours, backend=backend(job.q))
    for name, way in WAYS.items():
        yield row(name, way)
        if compiled and way.__name__ in ("rotate_half", "cayley_matmul"):  # Inductor takes no complex numbers or solves
            torch.compiler.reset()
            yield row(f"{name}, compiled", torch.compile(way, dynamic=False))
    for name, way in peers().items():
        yield row(name, way, gradient=False)


def _prepare(shape: Shape, dtype: torch.dtype, device: torch.device) -> tuple[OpInputs, float]:
    job = OpInputs(shape, dtype, device)
    return job, job.floor()


def growth(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[str, int, OpRow | LeftOut]]:
    """Ours against tokens, coordinates, heads and head dim, one at a time around (8, 12, 4096, 64) with 3."""
    large = device.type == "cuda"
    start = Shape(8 if large else 1, 12, 4096 if large else 256, 64)
    sweeps: dict[str, list[int]] = {
        "n": [256, 1024, 4096, 16384, 65536] if large else [64, 256, 1024, 4096],
        "c": [1, 2, 3, 4, 6],
        "h": [1, 4, 12, 32],
        "d": [16, 24, 32, 48, 64, 80, 96, 128, 160, 192, 256],
    }
    for axis, values in sweeps.items():
        for value in values:
            shape = Shape(**{**start.__dict__, axis: value})
            yield axis, value, attempt("ours", str(shape), device, partial(_own_row, shape, dtype, device))


def _own_row(shape: Shape, dtype: torch.dtype, device: torch.device) -> OpRow:
    job, floor = _prepare(shape, dtype, device)
    return job.row("ours", ours, floor, backend=backend(job.q))
