"""Samples of tars that are read from end to end: data.train of data.source=stream.

A stream of at most `BUFFER` samples, by data.train_size, is read once and kept as encoded bytes (`read_shards`).
Its samples then have numbers, and are served in the same order as those of data.source=shards.

A larger one (`is_large_stream`) is read anew in every epoch (`Stream`). Its order is a function of seed, step, number
of processes and number of workers: shards are shuffled by seed and epoch, and samples within a buffer of 2,000. So it
can be replayed without reading the samples: to continue at step k, the numbers of the samples go through the buffer,
and only what step k and later ones need is read, by its offset in the tar.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..io.pictures import BadSample
from ..io.problems import Problems
from ..recipes.schema import Data, Recipe
from ..seeds import derive
from .addresses import find_shards, find_stream_shards, is_local, open_shard
from .loader import PATIENCE, Columns, Prepare, Row, deliver
from .order import Batch, Place
from .tars import (
    DAMAGE,
    Member,
    Sample,
    ShardReader,
    StaleIndex,
    TarEntry,
    count_samples,
    find_entries,
    read_samples,
    stream_samples,
)

BUFFER = 2000
"""Samples that a stream shuffles among, and the size of the largest stream that is kept in memory instead."""


def is_large_stream(data: Data) -> bool:
    """Whether the training set is a stream of more than `BUFFER` samples, or of a number that the recipe does not say.
    A smaller one is read once and kept."""
    return data.source == "stream" and not 0 < data.train_size <= BUFFER


def read_shards(pattern: str, problems: Problems, *, stream: bool = False) -> Iterator[tuple[str, Sample]]:
    """Name and files of the samples of shards, in the order of the pattern.

    The files of a plain local tar are read when they are wanted. A compressed tar, and in a stream what comes from an
    address or a command, is kept as encoded bytes."""
    for shard in find_stream_shards(pattern) if stream else map(str, find_shards(pattern)):
        short = shard.rpartition("/")[2]
        if is_local(shard):
            for key, kinds in read_samples(Path(shard), problems).items():
                yield f"{short}/{key}", kinds
            continue
        try:
            with open_shard(shard) as file:
                for key, files in stream_samples(file):
                    kept = {kind: Member(Path(short), 0, len(content), content) for kind, content in files.items()}
                    yield f"{short}/{key}", kept
        except DAMAGE as error:
            problems.add(f"{shard} is damaged ({error}): only the samples before the damage are used")


class Stream:
    """Batches of a stream that is too large to be kept.

    recipe: names the shards, data.train, and how many samples they hold, data.train_size. parse: from key and files of
    a sample to an example, or BadSample. stack: examples side by side. Resuming at step k skips as many samples as the
    steps before had examples: each bad sample among them shifts the rest by one."""

    def __init__(
        self,
        recipe: Recipe,
        parse: Callable[[str, Mapping[str, bytes]], Row],
        stack: Callable[[Sequence[Row]], Columns],
        problems: Problems,
    ):
        if recipe.data.train_size < 1:
            raise ValueError("a stream cannot be counted: set data.train_size to the number of its samples")
        self.shards = find_stream_shards(recipe.data.train)
        self.seed, self.batch, self.workers = recipe.seed, recipe.loop.batch_size, recipe.data.workers
        self.parse, self.stack, self.problems, self.count = parse, stack, problems, recipe.data.train_size

    def __len__(self) -> int:
        """How many samples there are, as the recipe says: only reading all of them would tell."""
        return self.count

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
            timeout=PATIENCE if self.workers else 0,
            pin_memory=place.device.type == "cuda",
        )
        for batch, problems, error in deliver(loader):
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
        rows = self._rows(Samples(self.stream, self.rank * workers + worker, self.world * workers, skip))
        try:
            for step in itertools.count(self.start + number, workers):
                taken = list(itertools.islice(rows, self.share))
                problems = [text for _, texts in taken for text in texts]
                yield self.prepare(self.stream.stack([row for row, _ in taken]), step), problems, ""
        except ValueError as error:
            yield {}, [], str(error)

    def _rows(self, samples: "Samples") -> Iterator[tuple[Row, list[str]]]:
        """Examples without end, each with the problems since the one before."""
        for epoch in itertools.count():
            good = samples.skip_epoch(epoch)
            for key, files in () if good else samples.epoch(epoch):
                try:
                    row = self.stream.parse(key, files)
                except BadSample as error:
                    samples.problems.append(str(error))
                    continue
                good = True
                problems, samples.problems = samples.problems, []
                yield row, problems
            if not good and not samples.passed:
                names = samples.shards(epoch)
                listed = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
                why = f"; {samples.problems[0]}" if samples.problems else ""
                raise ValueError(f"the stream has no usable sample in {listed}{why}: check data.train")


@dataclass
class _Sample:
    """A sample in the buffer: its files, or where they lie."""

    key: str
    shard: str
    files: dict[str, bytes] | None
    entry: TarEntry | None = None


class Samples:
    """The samples of one part of a stream, epoch by epoch, from the sample number `skip` on.

    problems: what went wrong since the list was last emptied. passed: samples passed over in the last epoch."""

    def __init__(self, stream: Stream, part: int, parts: int, skip: int):
        self.stream, self.part, self.parts, self.skip = stream, part, parts, skip
        self.problems: list[str] = []
        self.passed = 0
        self._counts: dict[str, int | None] = {}

    def shards(self, epoch: int) -> list[str]:
        """The shards of this part in an epoch, in the order in which they are read."""
        every = self.stream.shards
        return random.Random(derive(self.stream.seed, "shards", epoch)).sample(every, len(every))[
            self.part :: self.parts
        ]

    def skip_epoch(self, epoch: int) -> bool:
        """Pass over a whole epoch if it lies before the beginning and its samples can be counted without reading."""
        if not self.skip:
            return False
        counts = []
        for shard in self.shards(epoch):
            if shard not in self._counts:
                self._counts[shard] = count_samples(shard)
            counts.append(self._counts[shard])
        total = sum(count or 0 for count in counts)
        if None in counts or not 0 < total <= self.skip:
            return False
        self.skip -= total
        return True

    def epoch(self, epoch: int) -> Iterator[tuple[str, Mapping[str, bytes]]]:
        """Key and files of the samples of an epoch, shuffled by (seed, epoch)."""
        dice = random.Random(derive(self.stream.seed, "buffer", epoch, self.part))
        buffer: list[_Sample] = []
        self.passed = 0
        for shard in self.shards(epoch):
            for sample in self._arrivals(shard):
                if len(buffer) < BUFFER:
                    buffer.append(sample)
                    continue
                place = dice.randrange(BUFFER)
                sample, buffer[place] = buffer[place], sample
                if self.skip:
                    self._pass(1)
                    self._load([] if self.skip else buffer)
                else:
                    yield from _read(sample)
        dice.shuffle(buffer)
        rest = buffer[self.skip :]
        self._pass(len(buffer) - len(rest))
        self._load(rest)
        for sample in rest:
            yield from _read(sample)

    def _pass(self, count: int) -> None:
        self.skip -= count
        self.passed += count

    def _arrivals(self, shard: str) -> Iterator[_Sample]:
        """The samples of a shard in its order: with their files, unless they may be passed over."""
        try:
            entries = find_entries(shard) if self.skip else None
            if entries is not None:
                with ShardReader(shard) as parts:
                    for entry in entries:
                        files = None if self.skip else parts.read_sample(entry)
                        yield _Sample(entry.key, shard, files, entry)
                return
            with open_shard(shard) as file:
                for key, files in stream_samples(file):
                    yield _Sample(key, shard, files)
        except StaleIndex:
            raise
        except DAMAGE as error:
            self.problems.append(f"{shard} is damaged ({error}): only the samples before the damage are used")

    def _load(self, samples: Sequence[_Sample]) -> None:
        """Read the files of samples of which only the places are known, shard by shard, in the order of their offsets.
        A sample that cannot be read stays without files, and is left out."""
        wanted = [(s.shard, s.entry.files[0].offset, s) for s in samples if s.files is None and s.entry is not None]
        wanted.sort(key=lambda item: item[:2])
        for shard, some in itertools.groupby(wanted, key=lambda item: item[0]):
            with ShardReader(shard) as parts:
                for _, _, sample in some:
                    assert sample.entry is not None
                    try:
                        sample.files = parts.read_sample(sample.entry)
                    except StaleIndex:
                        raise
                    except DAMAGE as error:
                        self.problems.append(f"{shard}/{sample.key} cannot be read: {error}")


def _read(sample: _Sample) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """The sample, if it has files."""
    if sample.files is not None:
        yield sample.key, sample.files
