"""Images lifted to RGB-D: a folder or tars in, tars with NNN.depth.png beside everything else out.

    stringpe data depth photos/ lifted/ --model depth-anything-v2-metric-indoor-small
    accelerate launch -m stringpe data depth 'web-{000..999}.tar' lifted/ --model …  # the GPUs of a machine
    sbatch --array=0-63 lift.sh                                                      # 64 machines: docs/scale.md

The output shard is the unit of work: the processes of a launcher (`order.read_launch`) take turns, a shard appears
whole or not at all, and one that exists is never made again. No process waits for another. Depth is 16-bit, in
millimetres; 0 is a hole. provenance.json says what made the folder, NAME.summary.json what became of a shard's samples,
and summary.json adds them up once all shards are there.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import __version__
from ..devices import find_device
from ..io.files import claim_folder, read_record, remove_stale_drafts, write_json
from ..io.pictures import MILLIMETRE, BadSample, encode_png, to_millimetres
from ..io.progress import duration, progress
from ..models.depth_estimator import DepthEstimator
from ..models.image_classifier import ImageClassifier
from .addresses import find_shards
from .captioned_images import CaptionFiles, FolderCaptions, ShardCaptions
from .depth_files import DEPTH
from .depth_filters import FILTERS, ILLUSION, ILLUSIONS
from .images import to_tensor
from .order import Launch, read_launch
from .tars import write_samples

_NAMED = 20  # samples that a summary names
_WINDOW = 16  # batches whose images are decoded at a time; those of one size go through the model together


@dataclass(frozen=True)
class LiftSettings:
    """filters: names of `FILTERS`, applied in this order, and ILLUSION, which comes last. shard_size: images per shard,
    if a folder is the input. batch: images that the model takes at a time. threads: that decode, filter and encode; 0
    is one per core."""

    filters: tuple[str, ...] = tuple(FILTERS)
    shard_size: int = 1000
    batch: int = 8
    threads: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.filters if name not in (*FILTERS, ILLUSION)]
        if unknown:
            raise ValueError(f"filters are {', '.join((*FILTERS, ILLUSION))}, got {', '.join(unknown)}")
        if self.shard_size < 1 or self.batch < 1:
            raise ValueError(f"shard_size and batch count images, got {self.shard_size} and {self.batch}")


@dataclass(frozen=True)
class ShardJob:
    """One output shard: which samples of which set go into it."""

    name: str
    open: Callable[[], CaptionFiles]
    samples: range | None  # None: all of the set


def lift_shards(
    source: str,
    out: str | Path,
    estimate: DepthEstimator,
    settings: LiftSettings | None = None,
    launch: Launch | None = None,
    *,
    classify: ImageClassifier | None = None,
) -> dict[str, Any]:
    """Make this process's share of the shards that are not there yet; returns the summary of all that are,
    and the "rate" of this process, in images per second. classify: the model of the filter ILLUSION."""
    settings, launch = settings or LiftSettings(), launch or Launch()
    if (classify is None) == (ILLUSION in settings.filters):
        raise ValueError(
            f"the filter {ILLUSION} and an image–text model go together: name both, --filters … {ILLUSION} and "
            f"--classifier FOLDER, or neither"
        )
    out = Path(out)
    jobs = plan_jobs(source, settings.shard_size)
    _claim(out, estimate, settings, source, classify)
    mine = jobs[launch.rank :: launch.world]
    todo = [job for job in mine if not (out / job.name).exists()]
    began = time.monotonic()
    with progress("depth", len(mine), len(mine) - len(todo), "shards") as advance:
        for job in todo:
            _lift_shard(job, out, estimate, settings, classify)
            advance(1)
    for job in jobs:  # of processes that were killed while another one made the same shard
        remove_stale_drafts(out / job.name)
        remove_stale_drafts(out / f"{job.name}.summary.json")
    found = add_up(out, [job.name for job in jobs])
    if found["shards"] == len(jobs):
        write_json(out / "summary.json", found)
    new = add_up(out, [job.name for job in todo])
    made = new["kept"] + sum(new["dropped"].values())
    return found | {"rate": made / max(time.monotonic() - began, 1e-9)}  # not in a file: equal input, equal bytes


def plan_jobs(source: str, shard_size: int) -> list[ShardJob]:
    """The output shards of a folder or of a pattern of shards, in order."""
    if Path(source).is_dir():
        found = FolderCaptions(source)
        spans = [range(i, min(i + shard_size, len(found))) for i in range(0, len(found), shard_size)]
        return [ShardJob(f"{number:06d}.tar", lambda: found, span) for number, span in enumerate(spans)]
    paths = find_shards(source)
    names = [path.name.removesuffix(".gz").removesuffix(".tgz").removesuffix(".tar") + ".tar" for path in paths]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"several shards are called {twice[0]}, which is one name in the output: lift them apart")
    return [
        ShardJob(name, lambda path=path: ShardCaptions(str(path)), None)  # type: ignore[misc]
        for name, path in zip(names, paths, strict=True)
    ]


def add_up(out: Path, names: Sequence[str]) -> dict[str, Any]:
    """Counts over all finished shards: kept, dropped by reason, corrupt with the first few names."""
    shape = {"kept": int, "dropped": {str: int}, "corrupt": int, "problems": [str]}
    advice = "remove it with its shard, and run it again"
    parts = [read_record(out / f"{name}.summary.json", shape, advice) for name in names if (out / name).exists()]
    reasons: Counter[str] = Counter()
    for part in parts:
        reasons.update(part["dropped"])
    return {
        "shards": len(parts),
        "kept": sum(part["kept"] for part in parts),
        "dropped": dict(sorted(reasons.items())),
        "corrupt": sum(part["corrupt"] for part in parts),
        "problems": [text for part in parts for text in part["problems"]][:_NAMED],
    }


def _lift_shard(
    job: ShardJob, out: Path, estimate: DepthEstimator, settings: LiftSettings, classify: ImageClassifier | None
) -> None:
    """Make one shard: threads decode the next images, filter and encode the last ones, while the model works."""
    found = job.open()
    numbers = list(job.samples if job.samples is not None else range(len(found)))
    problems: list[str] = []
    encoded: dict[int, Future[bytes]] = {}
    dropped: Counter[str] = Counter()

    def settle(some: _Estimated) -> None:
        for i, depth, reason in zip(some.numbers, some.depths, _judge(some, classify), strict=True):
            if reason:
                dropped[reason] += 1
            else:
                encoded[i] = pool.submit(_encode, depth)

    with ThreadPoolExecutor(settings.threads or os.cpu_count()) as pool:
        last: _Estimated | None = None
        for images, bad in _windows(found, numbers, _WINDOW * settings.batch, pool):
            problems += bad
            for some in _group(images, estimate, settings.batch):
                pictures = [images[i] for i in some]
                depths = estimate(pictures)
                rules = [
                    pool.submit(_apply_rules, *pair, settings.filters) for pair in zip(pictures, depths, strict=True)
                ]
                if last is not None:
                    settle(last)  # its rules have run while the model worked on this one
                last = _Estimated(some, pictures, depths, rules)
        if last is not None:
            settle(last)
    problems += found.problems
    counts = {"kept": len(encoded), "dropped": dict(dropped), "corrupt": len(problems), "problems": problems[:_NAMED]}
    write_json(out / f"{job.name}.summary.json", counts)  # before its shard, which says that all is done
    keys = {i: found.name(i).partition("/")[2] if job.samples is None else f"{i:09d}" for i in encoded}
    write_samples(
        out / job.name,
        ((keys[i], _keep_files(found.files(i)) | {DEPTH: encoded[i].result()}) for i in numbers if i in encoded),
    )


def _windows(
    found: CaptionFiles, numbers: Sequence[int], size: int, pool: ThreadPoolExecutor
) -> Iterator[tuple[dict[int, Tensor], list[str]]]:
    """Images by number, `size` at a time, and what is wrong with others. A whole shard of decoded images may not fit in
    memory: there are never more than two windows of them."""
    windows = [numbers[k : k + size] for k in range(0, len(numbers), size)]
    ahead = [pool.submit(_decode, found, i) for i in windows[0]] if windows else []
    for place, window in enumerate(windows):
        current, ahead = ahead, []
        if place + 1 < len(windows):
            ahead = [pool.submit(_decode, found, i) for i in windows[place + 1]]
        images: dict[int, Tensor] = {}
        bad: list[str] = []
        for i, future in zip(window, current, strict=True):
            try:
                images[i] = future.result()
            except BadSample as error:
                bad.append(str(error))
        yield images, bad


@dataclass(frozen=True)
class _Estimated:
    """Images that went through the depth model together, and the verdicts of the rules by pixels, still under way."""

    numbers: Sequence[int]
    pictures: Sequence[Tensor]
    depths: Sequence[Tensor]
    rules: Sequence[Future[str]]


def _apply_rules(image: Tensor, depth: Tensor, filters: Sequence[str]) -> str:
    return next(filter(None, (FILTERS[name](image, depth) for name in filters if name in FILTERS)), "")


def _judge(some: _Estimated, classify: ImageClassifier | None) -> list[str]:
    """The reason to drop each image, or "". The model sees only what the rules by pixels have left."""
    reasons = [rule.result() for rule in some.rules]
    left = [i for i, reason in enumerate(reasons) if not reason]
    if classify is not None and left:
        for i, name in zip(left, classify([some.pictures[i] for i in left]), strict=True):
            reasons[i] = name and f"{ILLUSION}: {name}"
    return reasons


def _encode(depth: Tensor) -> bytes:
    return encode_png(to_millimetres(depth), depth_step=MILLIMETRE)


def _decode(found: CaptionFiles, i: int) -> Tensor:
    return to_tensor(found.picture(i))


def _group(images: Mapping[int, Tensor], estimate: DepthEstimator, batch: int) -> list[list[int]]:
    """Numbers of images that come to one size in the model, at most `batch` together."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for i, image in images.items():
        by_size.setdefault(estimate.input_size(image.shape[1], image.shape[2]), []).append(i)
    return [some[k : k + batch] for some in by_size.values() for k in range(0, len(some), batch)]


def _keep_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A sample's files as they are, except for the depth, which is replaced, and its unit."""
    kept = {kind: content for kind, content in files.items() if kind != DEPTH}
    if b'"depth_step"' in kept.get("json", b""):
        with suppress(ValueError, TypeError):  # a damaged record is copied as it is
            kept["json"] = json.dumps(json.loads(kept["json"]) | {"depth_step": MILLIMETRE}).encode()
    return kept


def _claim(
    out: Path, estimate: DepthEstimator, settings: LiftSettings, source: str, classify: ImageClassifier | None
) -> None:
    """Record how this folder is made, or refuse a folder that was made in another way."""
    out.mkdir(parents=True, exist_ok=True)
    made = {**estimate.provenance(), "stringpe": __version__, "unit": "millimetres", "source": source}
    made |= {"filters": list(settings.filters), "shard_size": settings.shard_size}
    made |= {} if classify is None else {"classifier": classify.provenance()}
    claim_folder(out, made, file="provenance.json", what="set of lifted images")


def run(
    source: str,
    out: Path,
    model: Path,
    filters: Sequence[str] = tuple(FILTERS),
    shard_size: int = 1000,
    batch: int = 8,
    made_up: tuple[float, float] | None = None,
    classifier: Path | None = None,
    classes: Path | None = None,
    device: str = "",
) -> None:
    """The command: this process's place comes from the environment, as launchers set it."""
    launch = read_launch()
    where = device or str(find_device())
    where = f"cuda:{launch.local % torch.cuda.device_count()}" if where == "cuda" else where
    settings = LiftSettings(tuple(filters), shard_size, batch)
    if classes is not None and classifier is None:
        raise ValueError(f"--classes {classes} needs the model that chooses among them: --classifier FOLDER")
    estimate = DepthEstimator(model, device=where, made_up=made_up)
    texts = ILLUSIONS if classes is None else read_record(classes, {str: [str]}, "give texts by class")
    classify = None if classifier is None else ImageClassifier(classifier, texts, device=where)
    found = lift_shards(source, out, estimate, settings, launch, classify=classify)
    lost, rate = sum(found["dropped"].values()), found["rate"]
    print(f"{found['kept']:,} images with depth in {found['shards']} shards under {out}; {lost:,} filtered out", end="")
    print("".join(f", {count:,} for {reason}" for reason, count in found["dropped"].items()), end="")
    print(f"; {found['corrupt']:,} corrupt" + (f" ({found['problems'][0]}, …)" if found["problems"] else ""))
    if rate:
        print(f"{rate:.1f} images per second and process: 10 million take {duration(1e7 / rate)} of one")
