"""How busy the training loop keeps its device: recipes on made-up data, beside a loop written by hand for each model.

The loop is the one that `stringpe train` runs, batches and augmentation included. The plain loop has one batch that
never changes, the same model and loss, and nothing else: forward, backward, clipping and AdamW; on a GPU compiled whole
and replayed as a graph where that can be done. Kernel time is what torch's profiler finds on the GPU.
"""

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from .. import recipes
from ..data.order import Batch, Place
from ..io.registry import unknown
from ..recipes.overrides import override
from ..recipes.schema import Recipe
from ..rotate import use_backend
from ..tasks.base import Parts, Sample, Task
from .timing import LeftOut, Timing, attempt, capture, measure, measure_in_turns

_MADE_UP = ("data.source=synthetic", "data.in_memory=true", "data.train_size=512", "data.val_size=16")
_VIT = (*_MADE_UP, "data.workers=0", "augment.randaugment=0", "augment.crop=0.3", "augment.mixup=0")
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "tiny_imagenet100": ("tiny_imagenet100", _MADE_UP),
    "scenes_objects": ("scenes_objects", ("data.train_size=512", "data.val_size=16")),
    "scenes_detection3d": ("scenes_detection3d", ("data.train_size=256", "data.val_size=16")),
    "diffusion policy": ("aloha_small", ()),
    "ViT-S/16 at 224 px": ("imagenet2012", (*_VIT, "model.dim=384", "model.heads=6", "loop.batch_size=256")),
    "ViT-B/16 at 224 px": ("imagenet2012", (*_VIT, "loop.batch_size=128")),
}
TIMM = {"ViT-S/16 at 224 px": "vit_small_patch16_224", "ViT-B/16 at 224 px": "vit_base_patch16_224"}
"""timm's model of the same size, by case. It is timed as well if timm is installed."""
SMALL = (
    "loop.batch_size=4", "model.layers=1", "model.dim=32", "model.heads=2", "data.train_size=16", "data.val_size=4",
    "loop.compile=false", "loop.precision=no",
)  # fmt: skip
"""What a CPU measures: that everything runs, and no number that matters."""
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40": 181e12, "L4": 121e12}  # bf16, dense, from data sheets
_PROFILED = 5  # steps
KINDS = {
    "attention": r"flash|fmha|attention|sdpa|softmax_warp",
    "rotation": r"^(forward_kernel|backward_kernel|sum_kernel|kernel|_invert)",
    "matching": r"^_assign",
    "convolutions": r"fprop|wgrad|dgrad|conv\dd|convol|cudnn|nchw|nhwc",
    "products": r"gemm|cutlass|nvjet|xmma|cublas|splitk|gemv",
    "optimiser": r"multi_tensor|adam|lpnorm",
    "compiled": r"^triton_",
    "copies": r"memcpy|memset|copy_kernel",
}
"""Kinds of kernels by what their names contain; the first that fits counts, and "other" is what no name fits."""


@dataclass(frozen=True)
class TrainRow:
    """A recipe's training step: milliseconds of the loop (its ratio is to the plain loop) and of the plain loop, of
    the kernels alone (None without a GPU), images per second, and the share of the device's peak that the model's
    products reach (None where the peak is not known). kinds, plain_kinds: the kernels' milliseconds by `KINDS`, of the
    loop and of the plain loop; batch_kernels: of those that make a batch, which the plain loop does not do (None
    without a GPU). timm: milliseconds per step of the plain loop with timm's model (see `TIMM`), or None."""

    recipe: str
    encoding: str
    batch: int
    loop: Timing
    plain: float
    kernels: float | None
    images_per_second: float
    flops: float
    utilisation: float | None
    kinds: dict[str, float] | None = None
    plain_kinds: dict[str, float] | None = None
    batch_kernels: float | None = None
    timm: float | None = None


def rows(
    device: torch.device, names: Sequence[str] = (), changes: Sequence[str] = (), seconds: float = 5.0
) -> Iterator[TrainRow | LeftOut]:
    """One row per case, or per name given; on a CPU with tiny models. changes: overrides of every recipe."""
    for name in names:
        if name not in CASES:
            raise unknown("training benchmark", name, CASES)
    for name in names or CASES:
        recipe, own = CASES[name]
        small = SMALL if device.type == "cpu" else ()
        chosen = override(recipes.load(recipe), [*own, *small, *changes])
        yield attempt(name, "train", device, partial(_row, name, chosen, device, seconds))


def _row(name: str, recipe: Recipe, device: torch.device, seconds: float) -> TrainRow:
    from ..tasks import create
    from ..training.launch import create_accelerator

    accelerator = create_accelerator(recipe)
    if accelerator.device.type != device.type:
        raise ValueError(f"training runs on {accelerator.device.type} here, not on {device.type}")
    task = RandomDemos(recipe) if recipe.task == "policy" else create(recipe)
    with tempfile.TemporaryDirectory() as folder:
        ours = loop_step(recipe, task, Path(folder), accelerator)
    batches = task.batches(0, Place(device=accelerator.device))
    batch = next(batches)
    plain = plain_step(task.model(), task, batch, accelerator.device)
    for _ in range(5):  # compiled, captured and warm
        ours()
        plain()
    replay = capture(plain, accelerator.device) or plain
    loop = measure_in_turns(replay, ours, accelerator.device, seconds=seconds)
    assert loop.ratio is not None
    flops = count_flops(task, batch, accelerator.device)
    peak = _peak(accelerator.device)
    steps = (ours, replay, partial(next, batches))
    kernels, plain_kernels, batch_kernels = (time_kernels(step, accelerator.device) for step in steps)
    return TrainRow(
        recipe=name,
        encoding=recipe.model.encoding,
        batch=recipe.loop.batch_size,
        loop=loop,
        plain=loop.median / loop.ratio[1],
        kernels=None if kernels is None else sum(kernels.values()),
        images_per_second=1e3 * recipe.loop.batch_size / loop.median,
        flops=flops,
        utilisation=None if peak is None else flops / (loop.median / 1e3) / peak,
        kinds=None if kernels is None else sum_kinds(kernels),
        plain_kinds=None if plain_kernels is None else sum_kinds(plain_kernels),
        batch_kernels=None if batch_kernels is None else sum(batch_kernels.values()),
        timm=_time_timm(name, task, batch, accelerator.device, seconds),
    )


def _time_timm(name: str, task: Task, batch: Batch, device: torch.device, seconds: float) -> float | None:
    """Milliseconds per step of the plain loop with timm's model; None if timm is not installed or the case is not in
    `TIMM`."""
    if name not in TIMM or find_spec("timm") is None:
        return None
    import timm

    net, data = task.recipe.model, task.recipe.data
    size: dict[str, Any] = {"img_size": data.image_size, "patch_size": net.patch_size, "num_classes": data.num_classes}
    size |= {"embed_dim": net.dim, "depth": net.layers, "num_heads": net.heads}
    rates: dict[str, Any] = {"proj_drop_rate": net.dropout, "drop_path_rate": net.drop_path}
    model: nn.Module = timm.create_model(TIMM[name], class_token=False, global_pool="avg", **size, **rates)
    step = plain_step(model, task, batch, device)
    for _ in range(5):
        step()
    return measure(capture(step, device) or step, device, seconds=seconds).median


def loop_step(recipe: Recipe, task: Task, folder: Path, accelerator: Any) -> Callable[[], None]:
    """A call is one step of `stringpe train`, with its batch."""
    from ..training.capture import prefetch
    from ..training.loop import Run

    run = Run(recipe, task, folder, accelerator, quiet=True)
    batches = prefetch(task.batches(0, run.place), run.place.device)
    numbers = itertools.cycle(range(run.total))
    return lambda: run.step(next(numbers), next(batches))


def plain_step(model: nn.Module, task: Task, batch: Batch, device: torch.device) -> Callable[[], None]:
    """A call is one step on the same batch, as one would write it by hand."""
    recipe, model, on_gpu = task.recipe, model.to(device), device.type == "cuda"
    optimiser = torch.optim.AdamW(
        (p for p in model.parameters() if p.numel()), lr=recipe.optim.lr, fused=on_gpu, capturable=on_gpu
    )
    called: Any = torch.compile(model) if on_gpu else model
    bf16 = recipe.loop.precision == "bf16"

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
            loss = task.loss(called, batch)
        loss.backward()
        if recipe.optim.clip:
            nn.utils.clip_grad_norm_(model.parameters(), recipe.optim.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def count_flops(task: Task, batch: Batch, device: torch.device) -> float:
    """Floating-point operations of a step's products, forward and backward: those of the model, not of what it takes to
    compute them again."""
    model = task.model().to(device)
    with use_backend("torch"), FlopCounterMode(display=False) as counter:  # it does not see into kernels of our own
        task.loss(model, batch).backward()
    return float(counter.get_total_flops())


def time_kernels(step: Callable[[], Any], device: torch.device) -> dict[str, float] | None:
    """Milliseconds per step of every kernel that runs on the GPU, by name, from torch's profiler."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(_PROFILED):
            step()
        torch.cuda.synchronize(device)
    return {event.key: event.self_device_time_total / 1e3 / _PROFILED for event in profile.key_averages()}


def sum_kinds(kernels: Mapping[str, float]) -> dict[str, float]:
    """Times of kernels by kind, the longest first."""
    sums: dict[str, float] = {}
    for name, time in kernels.items():
        kind = next((kind for kind, parts in KINDS.items() if re.search(parts, name, re.IGNORECASE)), "other")
        sums[kind] = sums.get(kind, 0.0) + time
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _peak(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAKS.items() if key in name), None)


class RandomDemos(Task):
    """A policy's recipe on random pictures, states and actions of one camera and a robot with 14 joints."""

    def __init__(self, recipe: Recipe):
        super().__init__(recipe)
        self.capturable = recipe.policy.kind == "diffusion"

    @property
    def examples(self) -> int:
        return self.recipe.loop.batch_size

    @classmethod
    def build(cls, recipe: Recipe, parts: Parts) -> nn.Module:
        import warnings

        from ..robots.policies.base import PolicySpec
        from ..tasks.policy import new_policy

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the image encoder starts at random, as it is meant to here
            policy = new_policy(recipe, PolicySpec(("top",), 14, 14, recipe.data.image_size, 50.0))
        policy.set_statistics(torch.randn(64, 14), torch.randn(64, 14))
        return policy

    def batches(self, start: int, place: Place) -> Iterator[Batch]:
        from ..robots.calibration import intrinsics_key, pinhole, pose_key
        from ..robots.data.columns import ACTION, DEPTH, IMAGES, STATE
        from ..robots.policies.observer import hash_words

        b, side = place.share(self.recipe.loop.batch_size), self.recipe.data.image_size
        dice = torch.Generator().manual_seed(0)
        made = {
            STATE: torch.randn(b, 14, generator=dice),
            ACTION: torch.randn(b, self.recipe.policy.chunk, 14, generator=dice),
            IMAGES + "top": torch.rand(b, 3, side, side, generator=dice) * 2 - 1,
            "task": hash_words(("",)).expand(b, *hash_words(("",)).shape[1:]),
        }
        world = self.recipe.policy.frame == "world"
        if world or self.recipe.model.depth != "none":
            made[DEPTH + "top"] = torch.rand(b, side, side, generator=dice) + 0.5
        if world:
            made[intrinsics_key("top")] = torch.from_numpy(pinhole((side, side), 45.0)).repeat(b, 1, 1)
            made[pose_key("top")] = torch.eye(4).repeat(b, 1, 1)
        kept = {name: tensor.to(place.device) for name, tensor in made.items()}
        while True:
            yield dict(kept)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch)
        return loss

    def evaluate(self, model: nn.Module, place: Place) -> dict[str, float]:
        return {"count": 1.0}

    def samples(self, count: int) -> list[Sample]:
        return []
