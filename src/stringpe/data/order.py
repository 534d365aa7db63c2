"""Which examples a step takes, and which of them belong to this process.

The order of the data is a function of (seed, step) alone: to resume, a run needs only its step.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..seeds import derive, generator


class Order:
    """Which example is number i = step · batch + j of a run: epoch i // size takes every example once, shuffled."""

    def __init__(self, size: int, batch: int, seed: int):
        if size < 1:
            raise ValueError("the training set is empty: check data.train")
        self.size, self.batch, self.seed = size, batch, seed
        self._epochs: dict[int, Tensor] = {}

    def __call__(self, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """Numbers (batch / world,) of the examples in this process's share of a step."""
        share = self.batch // world
        return self.at(torch.arange(share) + step * self.batch + rank * share)

    def at(self, numbers: Tensor) -> Tensor:
        """Numbers (n,) of the examples at these places of the run."""
        epochs, places = numbers // self.size, numbers % self.size
        rows = [self._epoch(int(e))[places[epochs == e]] for e in epochs.unique()]
        return torch.cat(rows)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs = {e: p for e, p in self._epochs.items() if e >= epoch - 1}  # a batch may span two
            self._epochs[epoch] = torch.randperm(self.size, generator=generator(self.seed, "order", epoch))
        return self._epochs[epoch]


class MixedOrder:
    """An `Order` over several data sets, each with its share of every stretch of the run and with epochs of its own.

    Examples are numbered through, those of the second set after those of the first. Before step t, ⌊t · batch · share +
    ½⌋ examples of a set have been seen, of the one with the largest share what is left: the shares are met to within
    one example at every step, and a set of any size is gone through in full before it repeats."""

    def __init__(self, sizes: Sequence[int], shares: Sequence[float], batch: int, seed: int):
        self.size, self.batch, self.seed = sum(sizes), batch, seed
        self._shares, self._main = list(shares), max(range(len(shares)), key=lambda s: shares[s])
        self._orders = [Order(size, batch, derive(seed, "set", s)) for s, size in enumerate(sizes)]
        self._starts = [sum(sizes[:s]) for s in range(len(sizes))]
        if batch * max(shares) < len(sizes):
            raise ValueError(f"loop.batch_size={batch} is too small to mix {len(sizes)} data sets: take a larger one")

    def __call__(self, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """Numbers (batch / world,) of the examples in this process's share of a step."""
        before, after = self._seen(step), self._seen(step + 1)
        parts = [
            start + order.at(torch.arange(first, last))
            for start, order, first, last in zip(self._starts, self._orders, before, after, strict=True)
            if last > first
        ]
        mixed = torch.cat(parts)[torch.randperm(self.batch, generator=generator(self.seed, "mix", step))]
        return mixed.chunk(world)[rank]

    def _seen(self, step: int) -> list[int]:
        """How many examples of each set have been seen before a step."""
        seen = [int(step * self.batch * share + 0.5) for share in self._shares]
        seen[self._main] += step * self.batch - sum(seen)
        return seen


Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Launch:
    """This process among those that do parts of one job without talking to each other: number `rank` of `world`, and
    number `local` on its machine."""

    rank: int = 0
    world: int = 1
    local: int = 0


def read_launch() -> Launch:
    """What the launcher says: accelerate and torchrun by RANK, WORLD_SIZE and LOCAL_RANK; SLURM by the task of an array
    and the process within it (srun). Without a launcher, this process is the only one."""

    def number(name: str, default: int) -> int:
        text = os.environ.get(name, "")
        return int(text) if text.isdigit() else default

    if "WORLD_SIZE" in os.environ:
        return Launch(number("RANK", 0), number("WORLD_SIZE", 1), number("LOCAL_RANK", 0))
    task = number("SLURM_ARRAY_TASK_ID", 0) - number("SLURM_ARRAY_TASK_MIN", 0)
    tasks = number("SLURM_ARRAY_TASK_COUNT", 1)
    inside, processes = number("SLURM_PROCID", 0), number("SLURM_NTASKS", 1)
    return Launch(task * processes + inside, tasks * processes, number("SLURM_LOCALID", 0))


@dataclass(frozen=True)
class Place:
    """The place of a process: its rank among `world` processes, and its device."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def share(self, total: int) -> int:
        """The size of this process's part of a global batch of `total`."""
        if total % self.world:
            raise ValueError(
                f"a batch of {total} cannot be divided among {self.world} processes: change loop.batch_size"
            )
        return total // self.world

    def part(self, rows: Tensor) -> Tensor:
        """This process's part of the rows of a global batch, on its device."""
        return rows.chunk(self.world)[self.rank].to(self.device, non_blocking=True)

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all processes one after the other; every process must have equally many."""
        if self.world == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        torch.distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)
