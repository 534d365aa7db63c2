"""What the loop trains: data, model, loss and evaluation, behind one abstract class that knows nothing of the loop."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from ..data.place import Batch, Place
from ..recipes.schema import Recipe


@dataclass(frozen=True)
class Sample:
    """A picture of the data for people: uint8 (h, w, 3) and what it shows."""

    image: Tensor
    caption: str


class Task(ABC):
    """One recipe's data, model, loss and evaluation.

    metric: the number that tables show; a share in [0, 1] of `evaluate`'s counts, larger is better.
    """

    metric: ClassVar[str] = "top1"
    metric_name: ClassVar[str] = "top-1 accuracy"
    counted: ClassVar[bool] = True
    """Whether the metric is a share of cases that are right, so that it has Wilson's interval."""
    capturable: bool = False
    """Whether `loss` depends on nothing but the model, the batch and torch's own generator, with shapes that never
    change, so that a step can be captured and replayed."""
    stacks_seeds: ClassVar[bool] = False
    """Whether `loop.seeds` models can be trained in one step. Their metrics are then named "seed3/top1", …, beside the
    means over seeds, and each of them is clipped by its `gradients_by_seed`."""

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
        """This process's share of steps start, start + 1, …, endless. First dimension of every tensor: examples.

        Neither `start` nor the number of processes may change what step s sees."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss of a batch, through `model(…)` and nothing else of it: it may be wrapped."""

    @abstractmethod
    def evaluate(self, model: nn.Module, place: Place) -> dict[str, Tensor]:
        """Sums over this process's share of the validation set, with their "count". All processes must call the model
        equally often: sharded models talk in every forward."""

    @abstractmethod
    def samples(self, count: int) -> list[Sample]:
        """Validation examples to look at."""

    def gradients_by_seed(self, model: nn.Module) -> list[list[Tensor]]:
        """The gradients of each of `loop.seeds` models, as views, for tasks that stack seeds."""
        raise NotImplementedError(f"{type(self).__name__} trains one seed per run")

    def counters(self) -> dict[str, float]:
        """What went wrong so far without stopping the run, for example {"corrupt": 3.0}."""
        return {}

    def figure(self, runs: Mapping[str, Path], out: Path) -> Path | None:
        """A picture of what runs of this task (folders, by row of a comparison) do, written to the folder `out`, for
        its report; None where there is nothing to draw."""
        return None

    def files(self) -> dict[str, str]:
        """Texts that a checkpoint must hold for its weights to be used, by file name, for example a tokeniser."""
        return {}
