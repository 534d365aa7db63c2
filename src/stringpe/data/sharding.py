"""A folder of images as shards for a stream: shuffled, so that any stretch of a shard is a fair sample.

    stringpe data shards imagenet/train shards/train

Images go into the tars as they are, NNNNNNNNN.jpg beside NNNNNNNNN.cls with the number of the class, or beside
NNNNNNNNN.json with the captions. The unit of work is the shard, as in `depth_lifting`: processes take turns, a shard
appears whole or not at all, and one that exists is not made again. dataset.json says what made the folder.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..io.files import claim_folder
from ..io.pictures import BadSample
from ..io.problems import Problems
from ..io.progress import progress
from ..seeds import generator
from .captioned_images import FolderCaptions
from .labelled_images import FolderSet
from .order import Launch
from .tars import count_samples, index_path, write_index, write_samples


@dataclass(frozen=True)
class ShardCounts:
    """What lies in the folder now: shards, samples in them, and shards that other processes still have to make."""

    shards: int
    samples: int
    missing: int


def write_shards(
    source: str | Path,
    out: str | Path,
    *,
    captions: bool = False,
    shard_size: int = 1000,
    seed: int = 0,
    launch: Launch | None = None,
) -> ShardCounts:
    """Write this process's share of the shards that are not there yet.

    captions: the folder holds captioned images (see `captioned_images`), not one folder per class. seed: of the
    order."""
    launch, out = launch or Launch(), Path(out)
    if not Path(source).is_dir():
        raise ValueError(f"{source} is not a folder of images: check the path")
    found = FolderCaptions(str(source)) if captions else FolderSet(str(source))
    order = torch.randperm(len(found), generator=generator(seed, "shards")).tolist()
    spans = [range(k, min(k + shard_size, len(order))) for k in range(0, len(order), shard_size)]
    paths = [out / f"{number:06d}.tar" for number in range(len(spans))]
    claim_folder(out, _describe(source, found, shard_size, seed), file="dataset.json", what="set of shards")
    problems = Problems("images", str(source))
    mine = [(path, span) for path, span in list(zip(paths, spans, strict=True))[launch.rank :: launch.world]]
    todo = [(path, span) for path, span in mine if not Path(index_path(str(path))).exists()]
    total, left = sum(len(span) for _, span in mine), sum(len(span) for _, span in todo)
    with progress("shards", total, total - left, "images") as advance:
        for path, span in todo:
            write_samples(path, _samples(found, order, span, problems, advance))
            write_index(path)  # after its shard, and says that it is whole
    problems.warn(total)
    counts = [count_samples(str(path)) or 0 for path in paths if Path(index_path(str(path))).exists()]
    return ShardCounts(len(counts), sum(counts), len(paths) - len(counts))


def _samples(
    found: FolderCaptions | FolderSet, order: list[int], span: range, problems: Problems, advance: Callable[[int], None]
) -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Key and files of the samples of a shard, without those that cannot be read."""
    for place in span:
        try:
            yield f"{place:09d}", found.files(order[place])
        except BadSample as error:
            problems.add(str(error))
        advance(1)


def _describe(source: str | Path, found: FolderCaptions | FolderSet, shard_size: int, seed: int) -> dict[str, Any]:
    made = {"source": str(source), "images": len(found), "shard_size": shard_size, "seed": seed}
    return made | {"classes": list(found.classes)} if isinstance(found, FolderSet) else made
