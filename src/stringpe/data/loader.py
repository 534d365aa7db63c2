"""How examples reach the device, once for all tasks: from memory, through worker processes, or as a stream.

A set of examples knows how to read example i (`Examples`). `Memory` holds all of it, decoded, on the device; `Workers`
reads what a step asks for; `Stream` takes samples as they come. All three hand the examples of a step to one function,
`prepare`, on the device or in the worker, so that a recipe means the same in all of them. `Memory` and `Workers` give
equal batches as long as every example can be read. A stream has an order of its own, but what it makes of an example at
a place in the run is what the others would make of it there.
"""

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from ..io.pictures import BadSample
from ..io.problems import Problems
from ..io.progress import progress
from .archives import DAMAGE, stream_samples
from .images import Ragged
from .order import Order, derive
from .place import Batch, Place
from .sources import check_stream, open_shard

_TRIES = 100  # bad examples in a row after which reading is given up
_BUFFER = 2000  # samples that a stream shuffles among
_PATIENCE = 600.0  # seconds after which a worker that delivers nothing is given up

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


def training_requests(order: Order, start: int, place: Place) -> Iterator[Request]:
    """This process's share of steps start, start + 1, …, without end."""
    place.share(order.batch)  # refuses what does not divide
    for step in itertools.count(start):
        yield Request(order(step, place.rank, place.world), step)


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
        why = problems.describe(total) if problems.reasons else f"there are no {problems.what} at all"
        raise ValueError(f"nothing can be read ({why}): check data.train and data.val")
    problems.warn(total)
    return good


class Memory:
    """All examples of a set, read once, on the device."""

    def __init__(self, columns: Columns):
        self.columns = columns

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

    def batches(self, requests: Iterable[Request], place: Place, prepare: Prepare) -> Iterator[Loaded]:
        """A batch per request."""
        loader: DataLoader[_Read] = DataLoader(
            _Requested(self.examples, prepare),
            sampler=requests,
            batch_size=None,  # a request is a batch
            num_workers=self.workers,
            timeout=_PATIENCE if self.workers else 0,
            pin_memory=place.device.type == "cuda",
        )
        for batch, index, wanted, problems, error in _deliver(loader):
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


class Stream:
    """Samples of tars that are read from end to end, epoch after epoch: data.train of data.source=stream.

    parse: from key and files of a sample to an example, or BadSample. The order is a function of seed, step, number of
    processes and number of workers: shards are shuffled by seed and epoch, and samples within a buffer of 2,000.
    Resuming reads past what was seen; a bad sample among it shifts the rest by one."""

    def __init__(
        self,
        pattern: str,
        parse: Callable[[str, Mapping[str, bytes]], Row],
        stack: Callable[[Sequence[Row]], Columns],
        *,
        seed: int,
        batch: int,
        workers: int,
        problems: Problems,
    ):
        self.shards = check_stream(pattern)
        self.parse, self.stack, self.seed, self.batch, self.workers = parse, stack, seed, batch, workers
        self.problems = problems

    def batches(self, start: int, place: Place, prepare: Prepare) -> Iterator[Batch]:
        """This process's share of steps start, start + 1, …, without end."""
        parts = place.world * max(self.workers, 1)
        if len(self.shards) < parts:
            raise ValueError(
                f"{len(self.shards)} shards cannot be shared by {parts} workers over all processes: lower data.workers"
            )
        loader: DataLoader[tuple[Batch, list[str], str]] = DataLoader(
            _Part(self, place.rank, place.world, place.share(self.batch), start, prepare),
            batch_size=None,
            num_workers=self.workers,
            timeout=_PATIENCE if self.workers else 0,
            pin_memory=place.device.type == "cuda",
        )
        for batch, problems, error in _deliver(loader):
            self.problems.report(problems)
            if error:
                raise ValueError(error)
            yield {name: t.to(place.device, non_blocking=True) for name, t in batch.items()}


class _Part(IterableDataset[tuple[Batch, list[str], str]]):
    """One worker's part of a stream: every `workers`-th step of its process, without end; with problems, and an error
    that ends the run."""

    def __init__(self, stream: Stream, rank: int, world: int, share: int, start: int, prepare: Prepare):
        self.stream, self.rank, self.world, self.share = stream, rank, world, share
        self.start, self.prepare = start, prepare

    def __iter__(self) -> Iterator[tuple[Batch, list[str], str]]:
        info = get_worker_info()
        number, workers = (info.id, info.num_workers) if info else (0, 1)
        worker = (self.start + number) % workers  # workers take turns: the one whose turn `start` is comes first
        skip = len(range(worker, self.start, workers)) * self.share
        rows = self._rows(self.rank * workers + worker, self.world * workers, skip)
        try:
            for step in itertools.count(self.start + number, workers):
                some = list(itertools.islice(rows, self.share))
                problems = [text for _, told in some for text in told]
                yield self.prepare(self.stream.stack([row for row, _ in some]), step), problems, ""
        except ValueError as error:
            yield {}, [], str(error)

    def _rows(self, part: int, parts: int, skip: int) -> Iterator[tuple[Row, list[str]]]:
        """Examples without end, each with the problems met since the last; the first `skip` samples are only passed."""
        problems: list[str] = []
        seen = 0
        for epoch in itertools.count():
            good = 0
            for key, files in self._samples(part, parts, epoch, problems):
                seen += 1
                try:
                    row = self.stream.parse(key, files) if seen > skip else None
                except BadSample as error:
                    problems.append(str(error))
                    continue
                good += 1
                if row is not None:
                    yield row, problems
                    problems = []
            if not good:
                names = self.stream.shards[part::parts]
                listed = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
                why = f"; {problems[0]}" if problems else ""
                raise ValueError(f"the stream has no usable sample in {listed}{why}: check data.train")

    def _samples(
        self, part: int, parts: int, epoch: int, problems: list[str]
    ) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        """The samples of this part in an epoch, shuffled by (seed, epoch)."""
        shards = random.Random(derive(self.stream.seed, "shards", epoch)).sample(
            self.stream.shards, len(self.stream.shards)
        )
        dice = random.Random(derive(self.stream.seed, "buffer", epoch, part))
        buffer: list[tuple[str, Mapping[str, bytes]]] = []
        for name in shards[part::parts]:
            try:
                with open_shard(name) as file:
                    for key, files in stream_samples(file):
                        sample: tuple[str, Mapping[str, bytes]] = key, files
                        if len(buffer) < _BUFFER:
                            buffer.append(sample)
                            continue
                        place = dice.randrange(_BUFFER)
                        sample, buffer[place] = buffer[place], sample
                        yield sample
            except DAMAGE as error:
                problems.append(f"{name} is damaged ({error}): only the samples before the damage are used")
        dice.shuffle(buffer)
        yield from buffer


def _deliver(loader: DataLoader[T]) -> Iterator[T]:
    """What the loader's workers deliver; ValueError if they die or fall silent."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader" not in str(error):
            raise
        raise ValueError(
            f"the processes that read the data stopped ({error}): check the storage of data.train, lower data.workers"
        ) from None


def _select(column: Tensor | Ragged, index: Tensor) -> Tensor | Ragged:
    return column.select(index) if isinstance(column, Ragged) else column[index]
