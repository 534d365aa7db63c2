"""Which part of a global batch a process works on, and on which device."""

import os
from dataclasses import dataclass, field

import torch
from torch import Tensor

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
    and the process within it (srun). Alone, where there is none."""

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

    def gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all processes one after the other; every process must have equally many."""
        if self.world == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.world)]
        torch.distributed.all_gather(parts, rows.contiguous())
        return torch.cat(parts)
