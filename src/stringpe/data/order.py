"""The order of the data is a function of (seed, step) alone: to resume, a run needs only its step."""

import hashlib

import torch
from torch import Tensor


def derive(*parts: int | str) -> int:
    """One seed from several numbers and words; close inputs give unrelated seeds."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # fits an int64


def generator(*parts: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """A random generator for one purpose, for example (seed, "flip", step)."""
    return torch.Generator(device).manual_seed(derive(*parts))


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
        numbers = torch.arange(share) + step * self.batch + rank * share
        epochs, places = numbers // self.size, numbers % self.size
        rows = [self._epoch(int(e))[places[epochs == e]] for e in epochs.unique()]
        return torch.cat(rows)

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            self._epochs = {e: p for e, p in self._epochs.items() if e >= epoch - 1}  # a batch may span two
            self._epochs[epoch] = torch.randperm(self.size, generator=generator(self.seed, "order", epoch))
        return self._epochs[epoch]
