"""What reading and lifting large sets costs on this machine: the numbers of docs/scale.md.

    python benchmarks/scale.py --images 200                                      # on a CPU
    python benchmarks/scale.py --images 20000 --model depth-anything-v2-metric-indoor-small --device cuda
    python benchmarks/scale.py --images 1024 --device cuda --depth-only          # what a GPU adds: the depth model

Pictures are made up, 500 × 375 pixels, JPEG at quality 90: smooth shapes with noise, of about the size of ImageNet's.
Without --model, the depth model is Depth-Anything-V2-Small in its sizes, with random weights: as slow as the real one.
Times are CPU seconds (user and system) of this process and its threads, and by the clock.
"""

import argparse
import io
import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

from stringpe.data import tars
from stringpe.data.depth_filters import FILTERS
from stringpe.data.depth_lifting import LiftSettings, lift
from stringpe.data.labelled_batches import LabelledBatches
from stringpe.data.order import Place
from stringpe.data.sharding import write_shards
from stringpe.io.table import markdown_table
from stringpe.models.depth_estimator import DepthEstimator
from stringpe.recipes import load

WIDTH, HEIGHT, QUALITY = 500, 375, 90


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--images", type=int, default=200)
    words.add_argument("--lifted", type=int, default=0, help="images to lift; as many as --images by default")
    words.add_argument("--model", type=Path, help="folder of a depth model; random weights without")
    words.add_argument("--device", default="cpu")
    words.add_argument("--depth-only", action="store_true", help="the depth model and lifting alone")
    words.add_argument("--small", action="store_true", help="a tiny depth model, to see that everything runs")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = make_pictures(folder / "photos", given.images)
        estimate = DepthEstimator(given.model or random_model(folder / "model", given.small), device=given.device)
        rows = [] if given.depth_only else reading(folder, given.images, size)
        rows += lifting(folder, given.images, given.lifted or given.images, estimate)
        if not given.depth_only:
            rows.append(measure("the three filters", given.images, lambda: filter_all(given.images)))
    head = ("what", "images", "CPU ms per image", "ms per image by the clock", "images per second by the clock")
    print(markdown_table(head, rows))
    where = torch.cuda.get_device_name() if estimate.device.type == "cuda" else "no GPU"
    about = f"{WIDTH} × {HEIGHT} pixels, {size / 1000:.0f} kB each; {where}, {os.cpu_count()} cores"
    print(f"\n{about}, {torch.get_num_threads()} threads of torch, torch {torch.__version__}")


def reading(folder: Path, images: int, size: float) -> list[tuple[str, ...]]:
    """Writing and reading shards. size: of a picture in bytes."""
    rows = [measure("write shards with their index", images, lambda: shard(folder, images))]
    batches = stream_of(folder, images)
    steps = images // 8
    rows.append(measure("stream: read, decode, crop, resize", 8 * steps, lambda: take(batches, 0, steps)))
    return [*rows, measure_resume(batches, steps, size)]


def lifting(folder: Path, images: int, lifted: int, estimate: DepthEstimator) -> list[tuple[str, ...]]:
    """Depth for every picture: the model alone, and the whole way from shards to shards with and without it."""
    settings = LiftSettings(filters=(), batch=8)
    some = [torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8) for _ in range(settings.batch)]
    calls = max(1, lifted // settings.batch)
    estimate(some)  # libraries are loaded in the first call
    rows = [measure("the depth model alone", calls * len(some), lambda: [estimate(some) for _ in range(calls)])]
    write_shards(folder / "photos", folder / "some", shard_size=lifted)
    place = f"{folder}/some/000000.tar"
    what = "lift: decode, model, encode, write"
    rows.append(measure(what, lifted, lambda: lift(place, folder / "lifted", estimate, settings)))
    write_shards(folder / "photos", folder / "all", shard_size=images)
    place = f"{folder}/all/000000.tar"
    what = "lift without the model: decode, encode, write"
    rows.append(measure(what, images, lambda: lift(place, folder / "none", Flat(), settings)))
    return rows


def measure(what: str, images: int, run: Callable[[], object]) -> tuple[str, ...]:
    """A row: what it took per image."""
    cpu, clock = _cpu(), time.perf_counter()
    run()
    cpu, clock = _cpu() - cpu, time.perf_counter() - clock
    per = f"{1e3 * cpu / images:.1f}", f"{1e3 * clock / images:.1f}", f"{images / clock:.0f}"
    return what, f"{images:,}", *per


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def make_pictures(folder: Path, count: int) -> float:
    """Pictures in ten class folders; returns their mean size in bytes."""
    total = 0
    for i in range(count):
        dice = torch.Generator().manual_seed(i)
        coarse = torch.rand(1, 3, 6, 8, generator=dice)
        smooth = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bicubic")[0]
        noisy = (smooth + 0.04 * torch.randn(3, HEIGHT, WIDTH, generator=dice)).clamp(0, 1)
        pixels = (noisy * 255).to(torch.uint8).permute(1, 2, 0).contiguous()
        file = io.BytesIO()
        Image.fromarray(pixels.numpy()).save(file, "jpeg", quality=QUALITY)
        path = folder / f"class{i % 10}" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
        total += len(file.getvalue())
    return total / count


def shard(folder: Path, images: int) -> None:
    """Four shards, or more."""
    write_shards(folder / "photos", folder / "shards", shard_size=max(1, min(1000, images // 4)))


def stream_of(folder: Path, images: int) -> LabelledBatches:
    """ImageNet's recipe on these shards, without RandAugment, read in this process."""
    where = f"{folder}/shards/*.tar"
    changes = [f"data.train={where}", f"data.val={where}", "data.source=stream", f"data.train_size={images}"]
    changes += [
        "data.workers=0",
        "data.num_classes=10",
        "loop.batch_size=8",
        "augment.randaugment=0",
        "data.val_size=1",
    ]
    return LabelledBatches(load("imagenet2012", changes))


def take(batches: LabelledBatches, start: int, count: int) -> None:
    """Some steps of the stream."""
    found = batches.train(start, Place())
    for _ in range(count):
        next(found)


def measure_resume(batches: LabelledBatches, steps: int, size: float) -> tuple[str, ...]:
    """Going on at nine tenths of an epoch: seconds to the first batch, and how much was read."""
    read: list[int] = []
    plain = tars.ShardReader.read

    def counted(self: tars.ShardReader, offset: int, length: int) -> bytes:
        content = plain(self, offset, length)
        read.append(len(content))
        return content

    tars.ShardReader.read = counted  # type: ignore[method-assign]
    try:
        clock = time.perf_counter()
        take(batches, steps * 9 // 10, 1)
        clock = time.perf_counter() - clock
    finally:
        tars.ShardReader.read = plain  # type: ignore[method-assign]
    share = sum(read) / (8 * steps * size)
    return (
        "resume at 90 % of an epoch, first batch",
        f"{len(read) // 2:,} read",
        "–",
        f"{1e3 * clock:.0f} in all",
        f"{share:.0%} of the bytes",
    )


def filter_all(count: int) -> None:
    """Every filter on one picture, that many times."""
    image = torch.randint(0, 256, (3, HEIGHT, WIDTH), dtype=torch.uint8)
    (depth,) = Flat()([image])
    for _ in range(count):
        for judge in FILTERS.values():
            judge(image, depth)


class Flat(DepthEstimator):
    """A depth model that takes no time: everything lies on a floor."""

    def __init__(self) -> None:
        self.made_up = None

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def __call__(self, images: list[torch.Tensor]) -> list[torch.Tensor]:  # type: ignore[override]
        rows = torch.linspace(4.0, 1.0, images[0].shape[1])
        return [rows[:, None].expand(image.shape[1:]) + 1e-3 * torch.rand(image.shape[1:]) for image in images]

    def provenance(self) -> dict[str, object]:
        return {"model": "flat"}


def random_model(folder: Path, small: bool) -> Path:
    """A Depth-Anything-V2-Small with random weights; `small`: a tiny one."""
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    wide, layers, heads = (16, 4, 2) if small else (384, 12, 6)
    taken = [f"stage{i}" for i in ((1, 2, 3, 4) if small else (3, 6, 9, 12))]
    backbone = Dinov2Config(
        hidden_size=wide, num_hidden_layers=layers, num_attention_heads=heads, image_size=518, patch_size=14,
        out_features=taken, reshape_hidden_states=False, apply_layernorm=True,
    )  # fmt: skip
    necks = [8, 8, 8, 8] if small else [48, 96, 192, 384]
    config = DepthAnythingConfig(
        backbone_config=backbone, patch_size=14, reassemble_hidden_size=wide, neck_hidden_sizes=necks,
        fusion_hidden_size=8 if small else 64, head_hidden_size=8 if small else 32, depth_estimation_type="metric",
        max_depth=20,
    )  # fmt: skip
    torch.manual_seed(0)
    DepthAnythingForDepthEstimation(config).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main()
