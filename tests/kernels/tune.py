"""Times the fused rotation on a GPU against moving its bytes once, and searches better tiles.

    python tests/kernels/tune.py                  every shape, as the heuristic of `fused_rotation.tile` cuts it
    python tests/kernels/tune.py --only 14 17     these shapes alone
    python tests/kernels/tune.py --dims           every head dim from 16 to 256, or those that follow
    python tests/kernels/tune.py --search 0 3     the best tiles for shapes 0 and 3
    python tests/kernels/tune.py --best-dims 24   the best tiles for these head dims

The floor is the time of a plain copy of as many bytes: forward reads and writes q and k, backward reads g and y and
writes dx. Wanted: at most 1.15 times the floor forward, and 1.4 times forward and backward together. Of the time of
backward, "sums" goes into the second launch. Time of a whole call, which small shapes are bound by, is in the last two
columns (Python, autograd and all, in microseconds). Kernels are compiled by other processes before.
"""

import argparse
import itertools
import multiprocessing
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from triton.testing import do_bench_cudagraph

from stringpe import kernels
from stringpe.kernels import fused_rotation, operator, row_sums
from stringpe.kernels.fused_rotation import Tile
from stringpe.kernels.kernel_launch import power_of_two


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

    def tile(self, backward: bool) -> Tile:
        return fused_rotation.tile(
            self.d // 2, self.n, self.b, self.h, self.shared, self.c, wide=self.dtype.itemsize > 2, backward=backward
        )

    def candidates(self, backward: bool) -> set[Tile]:
        """Blocks of different shapes, dense and, where heads end inside of 32 bytes, of whole heads."""
        chosen, planes = self.tile(backward), self.d // 2
        tiles = set()
        for width, (elements, warps, stages) in itertools.product((32, 64, 128), _BACKWARD if backward else _FORWARD):
            whole = width // planes * planes
            for columns in {width, whole} if planes % 16 and whole * 5 >= width * 3 else {width}:
                tokens = elements // width
                work = chosen.steps * chosen.tokens * chosen.columns
                steps = power_of_two(max(work // (tokens * columns), 1)) if backward else 1
                tiles.add(Tile(tokens, width, columns, chosen.batch, warps, steps, stages, chosen.registers))
        return tiles


_FORWARD = ((256, 1, 1), (512, 1, 1), (512, 2, 1))  # elements, warps, stages
_BACKWARD = ((256, 1, 1), (256, 1, 2), (512, 2, 1))


def variants(tile: Tile, shape: Shape, backward: bool) -> set[Tile]:
    """The same block, with more or less to do per program."""
    steps = {max(int(tile.steps * factor), 1) for factor in (0.25, 0.5, 2, 4)} if backward else {1}
    entries = {max(int(tile.batch * factor), 1) for factor in (0.5, 1, 2)} if shape.shared else {1}
    return {tile._replace(steps=s, batch=e) for s in steps for e in entries if e <= shape.b}


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

    def forward(self, tile: Tile | None = None) -> None:
        fused_rotation.forward(self.q, self.k, *self.rotated, self.coords, self.theta, self.groups, tile)

    def backward(self, tile: Tile | None = None) -> None:
        places = (self.coords, self.theta, self.groups)
        fused_rotation.backward(*self.slopes, *self.rotated, *self.results, *places, True, True, tile)

    def sums(self) -> None:
        """The second launch of backward, on numbers that do not matter."""
        row_sums.sum_rows(*self.partial)

    @cached_property
    def partial(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        tensors = *self.slopes, *self.rotated, *self.results, self.coords, self.theta
        layouts = [(t.shape, t.stride()) for t in tensors]
        _, *shapes = fused_rotation._backward_launch(*layouts, self.groups, self.q.itemsize > 2, True, True, None)
        rows, columns = (torch.randn(s, device="cuda") for s in shapes)
        return rows, torch.empty_like(self.coords), columns, torch.empty_like(self.theta)

    def call(self, train: bool) -> None:
        inputs = [t.detach().requires_grad_(train) for t in (self.q, self.k, self.coords, self.theta)]
        rotated = kernels.rotate_pair(*inputs, self.groups)
        if train:
            torch.autograd.grad(rotated, inputs, self.slopes)


def milliseconds(function: Callable[[], None], rep: int = 20) -> float:
    """Of replays of a graph: without the host's time, which small shapes are bound by."""
    return do_bench_cudagraph(function, rep=rep, return_mode="median")


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


def report(shapes: Iterable[Shape], calls: bool) -> None:
    print("    forward ms ×floor  backward ms ×floor  of it sums  both ×floor  call μs  trained μs  shape")
    for number, shape in enumerate(shapes):
        runs = Runs(shape)
        forward, backward, sums = (milliseconds(f) for f in (runs.forward, runs.backward, runs.sums))
        least_forward, least_backward = floor(2 * runs.bytes), floor(3 * runs.bytes)
        both = (forward + backward) / (least_forward + least_backward)
        called = [microseconds_of_call(runs, train) if calls else float("nan") for train in (False, True)]
        ratios = forward / least_forward, backward / least_backward
        print(
            f"{number:2} {forward:11.4f} {ratios[0]:6.2f} {backward:12.4f} {ratios[1]:6.2f} {sums:11.4f}"
            f" {both:12.2f} {called[0]:8.1f} {called[1]:11.1f}  {shape}",
            flush=True,
        )


def compile_for(shape: Shape, tile: Tile, backward: bool) -> None:
    """Run it once on a short input: what is compiled depends on nothing that this changes."""
    runs = Runs(replace(shape, b=2, n=64))
    (runs.backward if backward else runs.forward)(tile)
    torch.cuda.synchronize()


def compile_together(pool: ProcessPoolExecutor, shape: Shape, tiles: Iterable[Tile], backward: bool) -> None:
    for done in [pool.submit(compile_for, shape, tile, backward) for tile in tiles]:
        done.result()


def search(pool: ProcessPoolExecutor, shape: Shape, best: int = 4) -> None:
    """Time the candidates, then the best with more and fewer steps, and print the best beside the choice."""
    runs = Runs(shape)
    print(shape)
    for name, run, moves in (("forward", runs.forward, 2), ("backward", runs.backward, 3)):
        backward = name == "backward"
        least, chosen, times = floor(moves * runs.bytes), shape.tile(backward), dict[Tile, float]()
        fresh = shape.candidates(backward) | {chosen}
        while fresh:
            compile_together(pool, shape, fresh, backward)
            times |= {tile: milliseconds(partial(run, tile), rep=5) for tile in fresh}
            ranked = sorted(times, key=times.__getitem__)
            done = len(times) > len(fresh)
            fresh = set() if done else {v for t in ranked[:1] for v in variants(t, shape, backward)} - set(times)
        print(f"  {name}: chosen {tuple(chosen)}, {times[chosen] / least:.2f} × floor")
        for tile in ranked[:best]:
            print(f"    {times[tile] / least:6.2f}  {tile}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", type=int, nargs="+", metavar="SHAPE", help="search tiles for these shapes")
    parser.add_argument("--only", type=int, nargs="+", metavar="SHAPE", help="report these shapes")
    parser.add_argument("--dims", type=int, nargs="*", metavar="DIM", help="report these head dims, kernels alone")
    parser.add_argument("--best-dims", type=int, nargs="+", metavar="DIM", help="search tiles for these head dims")
    parser.add_argument(
        "--compile-only", action="store_true", help="fill Triton's cache for a search, and time nothing"
    )
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    options = parser.parse_args()
    if options.dims is None:
        shapes = [SHAPES[i] for i in options.only or range(len(SHAPES))]
    else:
        shapes = [Shape(8, 12, 4096, d, shared=False) for d in options.dims or range(16, 257, 8)]
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        searched = [SHAPES[i] for i in options.search or []]
        searched += [Shape(8, 12, 4096, d, shared=False) for d in options.best_dims or []]
        if options.compile_only:
            tiles = [(s, tile, b) for s in searched for b in (False, True) for tile in s.candidates(b) | {s.tile(b)}]
            for task in [pool.submit(compile_for, *one) for one in tiles]:
                task.result()
            return
        for shape in searched:
            search(pool, shape)
        if not searched:
            tasks = [pool.submit(compile_for, s, s.tile(b), b) for s in shapes for b in (False, True)]
            for task in tasks:
                task.result()
            report(shapes, calls=options.dims is None)


if __name__ == "__main__":
    main()
