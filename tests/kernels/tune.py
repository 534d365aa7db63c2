"""Times the fused rotation on a GPU against moving its bytes once, and searches better tiles.

    python tests/kernels/tune.py                  every shape, as the heuristic of `fused_rotation.tile` cuts it
    python tests/kernels/tune.py --search 0 3     the best tiles for shapes 0 and 3

The floor is the time of a plain copy of as many bytes: forward reads and writes q and k, backward reads g and y and
writes dx. Wanted: at most 1.25 times the floor forward, and 1.5 times forward and backward together. Launch time of a
whole call, which small shapes are bound by, is in the last two columns (Python, autograd and all, in microseconds).
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from triton.testing import do_bench_cudagraph

from stringpe import kernels
from stringpe.kernels import fused_rotation, operator


@dataclass(frozen=True)
class Shape:
    """Bfloat16 views of a packed projection, unless `dtype` says otherwise; the batch shares coords if `shared`."""

    b: int
    h: int
    n: int
    d: int
    c: int = 3
    groups: int = 1
    shared: bool = True
    dtype: torch.dtype = torch.bfloat16

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        heads = self.groups * self.h
        qkv = torch.randn(self.b, self.n, heads + 2 * self.h, self.d, device="cuda", dtype=self.dtype).transpose(1, 2)
        coords = 14 * torch.rand(1 if self.shared else self.b, self.n, self.c, device="cuda")
        theta = torch.randn(self.h, self.c, self.d // 2, device="cuda")
        return qkv[:, :heads], qkv[:, heads : heads + self.h], coords, theta

    def tile(self, backward: bool) -> fused_rotation.Tile:
        return fused_rotation.tile(self.d // 2, self.n, self.b, self.h, self.shared, self.c, backward=backward)


SHAPES = [
    Shape(128, 12, 256, 64, shared=False),
    Shape(256, 12, 197, 64, c=2),
    Shape(256, 12, 197, 64, shared=False),
    Shape(64, 16, 1024, 64, c=2),
    Shape(64, 16, 1024, 64, shared=False),
    Shape(16, 16, 4096, 128, shared=False),
    Shape(1, 16, 65536, 64),
    Shape(32, 8, 1024, 128, groups=4, shared=False),
    Shape(32, 16, 1024, 80, shared=False),
    Shape(32, 8, 1024, 256, shared=False),
    Shape(8, 12, 4096, 16, shared=False),
    Shape(8, 12, 4096, 32, shared=False),
    *(Shape(8, 12, 4096, d, shared=False) for d in (24, 48, 64, 80, 128, 160, 192, 256)),
    Shape(8, 12, 4096, 64, c=6, shared=False),
    Shape(8, 12, 4096, 128, c=6, shared=False),
    Shape(8, 16, 16384, 128, shared=False),
    Shape(16, 12, 256, 64, shared=False),
    Shape(64, 16, 1024, 64, shared=False, dtype=torch.float32),
    Shape(8, 6, 64, 64, c=2),
    Shape(1, 12, 1, 64, c=2),
]


class Runs:
    """The two launches for one shape, on tensors made once."""

    def __init__(self, shape: Shape):
        self.q, self.k, self.coords, self.theta = shape.inputs()
        self.groups = shape.groups
        self.rotated = operator.dense_like(self.q), operator.dense_like(self.k)
        self.slopes = torch.randn_like(self.rotated[0]), torch.randn_like(self.rotated[1])
        self.results = torch.empty_like(self.rotated[0]), torch.empty_like(self.rotated[1])
        self.bytes = self.q.element_size() * (self.q.numel() + self.k.numel())

    def forward(self, tile: fused_rotation.Tile | None = None) -> None:
        fused_rotation.forward(self.q, self.k, *self.rotated, self.coords, self.theta, self.groups, tile)

    def backward(self, tile: fused_rotation.Tile | None = None) -> None:
        places = (self.coords, self.theta, self.groups)
        fused_rotation.backward(*self.slopes, *self.rotated, *self.results, *places, True, True, tile)

    def call(self, train: bool) -> None:
        inputs = [t.detach().requires_grad_(train) for t in (self.q, self.k, self.coords, self.theta)]
        rotated = kernels.rotate_pair(*inputs, self.groups)
        if train:
            torch.autograd.grad(rotated, inputs, self.slopes)


def milliseconds(function: Callable[[], None]) -> float:
    """Of replays of a graph: without the host's time, which small shapes are bound by."""
    return do_bench_cudagraph(function, rep=20, return_mode="median")


def microseconds_of_call(runs: Runs, train: bool, repeats: int = 200) -> float:
    for _ in range(20):
        runs.call(train)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        runs.call(train)
    end.record()
    torch.cuda.synchronize()
    return 1e3 * start.elapsed_time(end) / repeats


def floor(size: int) -> float:
    """Milliseconds to copy so many bytes in all, half of them read and half written."""
    source = torch.empty(size // 2, dtype=torch.uint8, device="cuda")
    return milliseconds(partial(torch.empty_like(source).copy_, source))


def report() -> None:
    print(" forward ms ×floor  backward ms ×floor  both ×floor  call μs  trained μs  shape")
    for shape in SHAPES:
        runs = Runs(shape)
        forward, backward = milliseconds(runs.forward), milliseconds(runs.backward)
        least_forward, least_backward = floor(2 * runs.bytes), floor(3 * runs.bytes)
        both = (forward + backward) / (least_forward + least_backward)
        calls = [microseconds_of_call(runs, train) for train in (False, True)]
        print(
            f"{forward:11.4f} {forward / least_forward:6.2f} {backward:12.4f} {backward / least_backward:6.2f}"
            f" {both:12.2f} {calls[0]:8.1f} {calls[1]:11.1f}  {shape}"
        )


def search(shape: Shape, best: int = 5) -> None:
    """Time every tile that fits, and print the best beside the heuristic's choice."""
    runs = Runs(shape)
    entries = [1, 2, 4, 8, 16] if shape.shared else [1]
    tiles = [fused_rotation.Tile(*t) for t in itertools.product([4, 8, 16, 32, 64, 128], entries, [1, 2, 4, 8])]
    tiles = [t for t in tiles if t.batch <= shape.b and 2 <= t.tokens * shape.d / 2 / (32 * t.warps) <= 32]
    print(shape)
    for name, run, moves in (("forward", runs.forward, 2), ("backward", runs.backward, 3)):
        least, choice = floor(moves * runs.bytes), shape.tile(name == "backward")
        print(f"  {name}: chosen {choice}, {milliseconds(partial(run, choice)) / least:.2f} × floor")
        times = sorted((milliseconds(partial(run, t)), t) for t in tiles)
        for time, tile in times[:best]:
            print(f"    {time / least:6.2f}  {tile}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", type=int, nargs="+", metavar="SHAPE", help="search tiles for these shapes")
    chosen = parser.parse_args().search
    if chosen is None:
        report()
    for index in chosen or []:
        search(SHAPES[index])
