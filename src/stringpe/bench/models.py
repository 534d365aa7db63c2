"""An attention block and a ViT with each encoding: training and inference steps, against the same without rotation."""

import copy
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..attention import Attention
from ..basis import Skew
from ..catalogue import create, names
from ..encoding import Encoding, PositionEncoding
from ..frequencies import Mixed
from ..hosts.attach import fold
from ..models.vit import ViT, vit
from .alternatives import ALTERNATIVES, Rotation
from .timing import LeftOut, Timing, attempt, measure, measure_in_turns


class AlternativeEncoding(PositionEncoding):
    """One of `ALTERNATIVES` as an encoding with parameters of its own, for comparison inside models."""

    def __init__(self, rotation: Rotation, *, head_dim: int, num_heads: int, coord_dim: int):
        super().__init__(head_dim, num_heads, coord_dim)
        self.rotation = rotation
        self.frequencies = Mixed(head_dim, num_heads, coord_dim)
        self.lower = nn.Parameter(torch.zeros(num_heads, head_dim, head_dim))

    def rotate_pair(
        self, q: Tensor, k: Tensor, coords: Tensor, *, groups: int = 1, folded: bool = False
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(q.device.type, enabled=False):
            skew = self.lower - self.lower.mT
            return self.rotation(q, k, self.fit_coords(k, coords), self.frequencies(), skew)

    def rotate(self, x: Tensor, coords: Tensor, *, groups: int = 1, folded: bool = False) -> Tensor:
        return self.rotate_pair(x, x, coords)[0]


class SolvedCayley(Skew):
    """The Cayley transform by `torch.linalg.solve`, layer by layer: as one would write folding at first."""

    def kind(self) -> Hashable:
        return id(self)

    def transform(self, skew: Tensor) -> Tensor:
        eye = torch.eye(self.head_dim, dtype=skew.dtype, device=skew.device)
        return torch.linalg.solve(eye + skew, eye - skew)


@dataclass(frozen=True)
class ModelRow:
    """One model: its way, eager or compiled, and milliseconds and memory of training and inference steps."""

    way: str
    mode: str
    train: Timing | None
    inference: Timing | None


Build = Callable[..., PositionEncoding]
Folded = TypeVar("Folded", bound=nn.Module)


def builders() -> dict[str, Build]:
    """Ours by name, then the alternatives."""
    ours: dict[str, Build] = {f"ours, {name}": partial(create, name) for name in names()}

    def layer_by_layer(*, head_dim: int, num_heads: int, coord_dim: int) -> PositionEncoding:
        return Encoding(SolvedCayley(head_dim, num_heads), Mixed(head_dim, num_heads, coord_dim))

    others: dict[str, Build] = {
        f"RoPE-Mixed, {name}" if name in ("rotate-half", "complex numbers") else name: partial(
            AlternativeEncoding, rotation
        )
        for name, rotation in ALTERNATIVES.items()
    }
    return {**ours, "Cayley, folded layer by layer by linalg.solve": layer_by_layer, **others}


def vit_of(way: str, size: str, device: torch.device) -> ViT:
    """The ViT of a size with one way in every layer; "absolute" has a learned table and no depth."""
    torch.manual_seed(0)
    if way == "absolute":
        return vit(size, encoding="absolute", num_classes=1000, image_size=256).to(device)
    model = vit(size, encoding="rope_mixed", coord_dim=3, num_classes=1000)
    for block in model.blocks:
        attention = block.attention
        assert isinstance(attention, Attention)
        old = attention.encoding
        assert old is not None
        attention.encoding = builders()[way](head_dim=old.head_dim, num_heads=old.num_heads, coord_dim=old.coord_dim)
    return model.to(device)


def vit_rows(
    ways: list[str],
    device: torch.device,
    *,
    size: str = "vit_base_patch16",
    batch: int = 128,
    image_size: int = 256,
    modes: tuple[str, ...] = ("eager", "compiled"),
    dtype: torch.dtype = torch.bfloat16,
    seconds: float = 3.0,
) -> Iterator[ModelRow | LeftOut]:
    """Training steps (forward, backward, AdamW) and inference, folded, in autocast, with per-sample 3D coordinates, for
    about `seconds` each. The first way that runs is the base: every other is timed in turns with it."""
    known = ("absolute", *builders())
    unknown = [way for way in ways if way not in known]
    if unknown:
        raise ValueError(f"there is no way {unknown[0]!r}: ways are {'; '.join(known)}")
    random = torch.Generator(device).manual_seed(0)
    image = torch.randn(batch, 3, image_size, image_size, device=device, generator=random)
    depth = torch.rand(batch, image_size, image_size, device=device, generator=random) * 5 + 0.5
    target = torch.randint(0, 1000, (batch,), device=device, generator=random)
    for mode in modes:
        base: Steps | None = None

        def row(way: str, mode: str = mode) -> ModelRow:
            nonlocal base
            inputs = (image,) if way == "absolute" else (image, depth)
            own = _steps(vit_of(way, size, device), inputs, target, dtype, mode == "compiled")
            pairs = zip(base or own, own, strict=True)
            train, inference = (measure_in_turns(b, o, device, seconds=seconds) for b, o in pairs)
            base = base or own
            return ModelRow(way, mode, train, inference)

        for way in ways:
            yield attempt(way, mode, device, partial(row, way))


def _autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)


class Steps(NamedTuple):
    """A training step and inference of one model, warmed up."""

    train: Callable[[], Any]
    infer: Callable[[], Any]


def _fold_ours(model: Folded) -> Folded:
    """The model with its basis folded; unchanged if its encoding is an alternative, which has no basis to fold."""
    ours = any(isinstance(module, Encoding) for module in model.modules())
    return fold(model) if ours else model


def _steps(model: ViT, inputs: tuple[Tensor, ...], target: Tensor, dtype: torch.dtype, compiled: bool) -> Steps:
    device = target.device
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    folded = _fold_ours(copy.deepcopy(model).eval())
    # All models share one code object, so the compiler takes them for versions of one; by default it gives up at eight.
    with torch._dynamo.config.patch(recompile_limit=64):
        learner: Callable[..., Tensor] = torch.compile(model.train()) if compiled else model.train()
        viewer: Callable[..., Tensor] = torch.compile(folded) if compiled else folded

        def train() -> None:
            optimiser.zero_grad(set_to_none=True)
            with _autocast(device, dtype):
                loss = F.cross_entropy(learner(*inputs), target)
            loss.backward()
            optimiser.step()

        @torch.no_grad()
        def infer() -> Tensor:
            with _autocast(device, dtype):
                return viewer(*inputs)

        for _ in range(3):
            train()
            infer()
    return Steps(train, infer)


def block_rows(
    device: torch.device,
    *,
    dim: int = 768,
    heads: int = 12,
    batch: int = 128,
    tokens: int = 256,
    dtype: torch.dtype = torch.bfloat16,
) -> Iterator[ModelRow | LeftOut]:
    """One attention layer, eager: forward + backward, and forward folded."""
    random = torch.Generator(device).manual_seed(0)
    x = torch.randn(batch, tokens, dim, device=device, generator=random)
    coords = torch.rand(batch, tokens, 3, device=device, generator=random) * 16

    def row(way: str, build: Build | None) -> ModelRow:
        torch.manual_seed(0)
        encoding = build(head_dim=dim // heads, num_heads=heads, coord_dim=3) if build else None
        attention = Attention(dim, heads, encoding=encoding).to(device)
        places = coords if encoding is not None else None

        def step() -> Any:
            with _autocast(device, dtype):
                out = attention(x, places)
            out.float().sum().backward()

        @torch.no_grad()
        def forward(folded: Attention) -> Tensor:
            with _autocast(device, dtype):
                return folded(x, places)

        train = measure(step, device, calls=5)
        return ModelRow(way, "eager", train, measure(partial(forward, _fold_ours(attention)), device, calls=5))

    for way, build in {"no encoding": None, **builders()}.items():
        yield attempt(way, "eager", device, partial(row, way, build))
