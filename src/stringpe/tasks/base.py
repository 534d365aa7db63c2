"""What the loop trains: data, model, loss and evaluation, behind one abstract class that knows nothing of the loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ..data.place import Batch, Place
from ..recipes.schema import Recipe

Value = TypeVar("Value")


@dataclass(frozen=True)
class Sample:
    """A picture of the data for people to look at: uint8 (h, w, 3), and what it shows."""

    image: Tensor
    caption: str


class Task(ABC):
    """The data, model, loss and evaluation of one recipe.

    metric: the entry of `evaluate` that tables show; a share in [0, 1], larger is better.
    """

    metric: ClassVar[str] = "top1"
    metric_name: ClassVar[str] = "top-1 accuracy"
    counted: ClassVar[bool] = True
    """Whether the metric is the share of right cases among the "count" of `evaluate`, so that it has a Wilson
    interval."""
    results: Path | None = None
    """The file that `evaluate` writes its predictions to, for tasks that have a format for them; None writes nothing.
    Only the caller sets it: a recipe, which may come from somebody else, names no file to be written."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    @property
    @abstractmethod
    def examples(self) -> int:
        """Size of the training set."""

    @abstractmethod
    def model(self) -> nn.Module:
        """A new model, with random parameters from the global generator."""

    @abstractmethod
    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        """This process's share of steps start, start + 1, …, endlessly. First dimension of every tensor: examples.

        Neither `start` nor the number of processes may change what step s sees."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss of a batch. Only call `model(…)`: it may be wrapped, and then has no other methods."""

    @abstractmethod
    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        """Metrics of the whole validation set, equal in every process, and the "count" of cases they are taken over.

        All processes must call the model equally often: sharded models communicate in every forward pass."""

    @abstractmethod
    def samples(self, count: int) -> list[Sample]:
        """Validation examples to look at."""

    def counters(self) -> dict[str, float]:
        """What went wrong so far without stopping the run, for example {"corrupt": 3.0}."""
        return {}

    def figure(self, runs: Mapping[str, Path], out: Path) -> Path | None:
        """Draw what runs of this task (folders, by row of a comparison) predict, as a file in the folder `out`, for the
        report of a comparison; None where there is nothing to draw."""
        return None

    def files(self) -> dict[str, str]:
        """Texts that a checkpoint must hold for its weights to be used, by file name, for example a tokeniser."""
        return {}


def add_up(sums: Mapping[str, Tensor], place: Place) -> dict[str, float]:
    """Sums over all processes, from those of each process; every process must have the same names."""
    totals = {}
    for name, value in sums.items():
        if place.world > 1:
            value = value.clone()
            torch.distributed.all_reduce(value)
        totals[name] = float(value)
    return totals


def average(sums: Mapping[str, Tensor], place: Place) -> dict[str, float]:
    """Means over the cases of all processes, from sums and their "count", which is kept."""
    totals = add_up(sums, place)
    count = totals.pop("count")
    return {name: value / max(count, 1) for name, value in totals.items()} | {"count": count}


def broadcast(value: Value, place: Place) -> Value:
    """The value that process 0 has, in every process."""
    if place.world == 1:
        return value
    box = [value]
    torch.distributed.broadcast_object_list(box, src=0)
    return box[0]
