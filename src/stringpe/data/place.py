"""Which part of a global batch a process works on, and on which device."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

Batch = dict[str, Tensor]


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
