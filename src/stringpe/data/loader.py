"""How examples reach the device, once for all tasks: from memory, through worker processes, or as a stream.

A set of examples knows how to read example i (`Examples`). `Memory` holds all of it, decoded, on the device; `Workers`
reads what a step needs; a `stream.Stream` takes samples in the order of their tars. All three hand the examples of a
step to one function, `prepare`, on the device or in the worker, so that a recipe means the same in all of them.

`Memory` and `Workers` give equal batches as long as every example can be read. A stream of at most `stream.BUFFER`
samples is read once and then served by `Workers`, so it gives these batches too. A larger stream has an order of its
own, because each of its workers reads its own tars from end to end; but what it makes of an example at a place in the
run is what the others would make of it there.
"""

import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..io.pictures import BadSample
from ..io.problems import Problems
from ..io.progress import progress
from .images import Ragged
from .order import Batch, MixedOrder, Order, Place

_TRIES = 100  # bad examples in a row after which reading is given up
PATIENCE = 600.0
"""Seconds after which a worker that delivers nothing is given up."""

Row = dict[str, Tensor]
"""One example as it was read."""

Columns = Mapping[str, Tensor | Ragged]
"""Several examples, one entry per example in every column."""

Prepare = Callable[[Columns, int], Batch]
"""From the examples of this process's share of a step, and the step, to tensors with one entry per example."""

T = TypeVar("T")


class Examples(ABC):
    """A set of examples that can be read one by one, in any order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, i: int) -> Row:
        """Example i; BadSample, which names it, if it cannot be used."""

    def stack(self, rows: Sequence[Row]) -> Columns:
        """Examples side by side."""
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Request(NamedTuple):
    """The numbers (b,) of the examples that a step wants."""

    numbers: Tensor
    step: int


class Loaded(NamedTuple):
    """A batch on the device; the numbers (b,) of the examples in it, on the CPU; and which of them (b,) are those that
    were asked for: an example that cannot be read is replaced by the next that can."""

    batch: Batch
    numbers: Tensor
    wanted: Tensor


def tensors(columns: Columns, step: int = 0) -> Batch:
    """The columns as a batch: a `Prepare` that changes nothing, for columns without images of different sizes."""
    return {name: column for name, column in columns.items() if isinstance(column, Tensor)}


def training_requests(order: Order | MixedOrder, start: int, place: Place) -> Iterator[Request]:
    """The examples of this process's share of steps start, start + 1, …, without end."""
    place.share(order.batch)  # refuses what does not divide
    for step in itertools.count(start):
        yield Request(order(step, place.rank, place.world), step)


def training_batches(
    loader: "Memory | Workers", order: Order | MixedOrder, start: int, place: Place, prepare: Prepare
) -> Iterator[Batch]:
    """This process's share of steps start, start + 1, …, without end, on its device."""
    for loaded in loader.batches(training_requests(order, start, place), place, prepare):
        yield loaded.batch


def shares(size: int, batch: int, place: Place) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices (batch,) and weights of this process's share of 0 … size − 1; the last batch is padded with weight 0."""
    batch = min(batch, -(-size // place.world))
    for first in range(0, size, batch * place.world):
        numbers = torch.arange(batch) + first + place.rank * batch
        yield numbers.clamp(max=size - 1), (numbers < size).double()


def read_all(count: int, read: Callable[[int], T], problems: Problems) -> dict[int, T]:
    """read(0) … read(count − 1) by number, without those that raise BadSample, which one warning counts and names. If
    none is left, ValueError."""

    def one(i: int) -> T | BadSample:
        try:
            return read(i)
        except BadSample as error:
            return error

    found: list[T | BadSample] = []
    where = f"reading {problems.where}".strip()
    with progress(where, count, unit=problems.what, late=True) as advance, ThreadPoolExecutor() as pool:
        for item in pool.map(one, range(count)):  # Pillow lets go of the interpreter while it decodes
            found.append(item)
            advance(1)
    total = None if problems.reasons else count  # what was wrong before is not one of `count`
    problems.extend(str(item) for item in found if isinstance(item, BadSample))
    good = {i: item for i, item in enumerate(found) if not isinstance(item, BadSample)}
    if not good:
        place = f"in {problems.where}" if problems.where else "at all"
        why = problems.describe(total) if problems.reasons else f"there are no {problems.what} {place}"
        raise ValueError(f"nothing can be read ({why}): check data.train and data.val")
    problems.warn(total)
    return good


class Memory:
    """All examples of a set, read once, on the device."""

    def __init__(self, columns: Columns):
        self.columns = columns

    def __len__(self) -> int:
        column = next(iter(self.columns.values()))
        return len(column.first if isinstance(column, Ragged) else column)

    def batches(self, requests: Iterable[Request], place: Place, prepare: Prepare) -> Iterator[Loaded]:
        """A batch per request. The set is copied to the device once."""
        columns = {name: column.to(place.device) for name, column in self.columns.items()}
        for request in requests:
            index = request.numbers.to(place.device, non_blocking=True)
            chosen = {name: _select(column, index) for name, column in columns.items()}
            batch = {name: t.to(place.device) for name, t in prepare(chosen, request.step).items()}
            yield Loaded(batch, request.numbers, torch.ones(len(request.numbers), dtype=torch.bool))


class Workers:
    """`workers` processes (none: this one) read and prepare the examples that a step wants."""

    def __init__(self, examples: Examples, workers: int, problems: Problems):
        self.examples, self.workers, self.problems = examples, workers, problems

    def __len__(self) -> int:
        return len(self.examples)

    def batches(self, requests: Iterable[Request], place: Place, prepare: Prepare) -> Iterator[Loaded]:
        """A batch per request."""
        loader: DataLoader[_Read] = DataLoader(
            _Requested(self.examples, prepare),
            sampler=requests,
            batch_size=None,  # a request is a batch
            num_workers=self.workers,
            timeout=PATIENCE if self.workers else 0,
            pin_memory=place.device.type == "cuda",
        )
        for batch, index, wanted, problems, error in deliver(loader):
            self.problems.report(problems)
            if error:
                raise ValueError(error)
            yield Loaded({name: t.to(place.device, non_blocking=True) for name, t in batch.items()}, index, wanted)


_Read = tuple[Batch, Tensor, Tensor, list[str], str]
"""A batch, the numbers of its examples, which of them were wanted, problems, and an error that ends the run: as a text,
because an exception of a worker arrives with the worker's traceback in its words."""


class _Requested(Dataset[_Read]):
    """Whole requests, read and prepared."""

    def __init__(self, examples: Examples, prepare: Prepare):
        self.examples, self.prepare = examples, prepare

    def __getitem__(self, request: Request) -> _Read:
        problems: list[str] = []
        try:
            found = [self._read(number, problems) for number in request.numbers.tolist()]
            batch = self.prepare(self.examples.stack([row for _, row in found]), request.step)
        except ValueError as error:
            return {}, torch.zeros(0), torch.zeros(0), [], str(error)
        index = torch.tensor([place for place, _ in found])
        return batch, index, index == request.numbers, problems, ""

    def _read(self, number: int, problems: list[str]) -> tuple[int, Row]:
        for attempt in range(_TRIES):
            place = (number + attempt) % len(self.examples)
            try:
                return place, self.examples.read(place)
            except BadSample as error:
                problems.append(str(error))
        raise ValueError(
            f"{_TRIES} examples in a row cannot be read, the last: {problems[-1]}: check data.train and data.val"
        )


def deliver(loader: DataLoader[T]) -> Iterator[T]:
    """What the loader's workers deliver; ValueError if they die or fall silent."""
    try:
        with warnings.catch_warnings():
            # Workers only decode and read; they use no lock that a thread of this process may hold.
            warnings.filterwarnings("ignore", message=".*multi-threaded", category=DeprecationWarning)
            delivered = iter(loader)  # forks
        yield from delivered
    except RuntimeError as error:
        if "DataLoader" not in str(error):
            raise
        raise ValueError(
            f"the processes that read the data stopped ({error}): check the storage of data.train, lower data.workers"
        ) from None


def _select(column: Tensor | Ragged, index: Tensor) -> Tensor | Ragged:
    return column.select(index) if isinstance(column, Ragged) else column[index]
