"""Ours in turns with what it replaces, where it is used: policies that look at a few images at a time, images of many
sizes in one batch, and drop-in rotary layers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..compat import AxialBlocks, PointROPE, RoPE2D
from ..hosts.attach import fold
from ..models.blocks import run_blocks
from ..models.vit import ViT, vit
from .timing import LeftOut, Timing, attempt, capture, measure_in_turns

STRING = ("rope_mixed", "cayley", "circulant")
CAMERAS = 4
GRIDS = ((8, 8), (10, 12), (16, 16), (10, 24), (24, 24), (32, 32), (14, 20), (20, 28))
"""Rows and columns of patches of images of many sizes, as a NaFlex loader gives them: 64 to 1,024 patches."""

Run = Callable[[], Any]


@dataclass(frozen=True)
class PairRow:
    """Milliseconds of ours, `what`, timed in turns with the alternative, `base`, and the ratio of the two."""

    what: str
    base: str
    time: Timing


def rows(device: torch.device, *, seconds: float = 2.0) -> Iterator[PairRow | LeftOut]:
    """All pairs; on a CPU with tiny models, which show only that everything runs."""
    yield from latency_rows(device, seconds)
    yield from packing_rows(device, seconds)
    yield from drop_in_rows(device, seconds)


def latency_rows(device: torch.device, seconds: float) -> Iterator[PairRow | LeftOut]:
    """A folded ViT-S/16 on the images of four cameras at 224 px, with depth, beside the same ViT with a learned table:
    called from Python and, on a GPU, replayed as a graph; without and with q/k norms that have no gain."""
    size, side = ("vit_small_patch16", 224) if device.type == "cuda" else ("vit_test_patch16", 32)
    image, depth = torch.randn(CAMERAS, 3, side, side, device=device), torch.rand(CAMERAS, side, side, device=device)

    def look(encoding: str, qk_norm: str | None) -> Run:
        torch.manual_seed(0)
        absolute = encoding == "absolute"
        options: dict[str, Any] = {"image_size": side} if absolute else {"coord_dim": 3}
        model = vit(size, encoding=encoding, qk_norm=qk_norm, **options).to(device).eval()
        inputs = (image,) if absolute else (image, depth)
        model = model if absolute else fold(model)

        @torch.no_grad()
        def run() -> Tensor:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                return model(*inputs)

        for _ in range(3):  # warm
            run()
        return run

    def row(what: str, base: str, encoding: str, qk_norm: str | None, replayed: bool) -> PairRow:
        other, own = look("absolute", qk_norm), look(encoding, qk_norm)
        if replayed:
            other, own = _replay(other, device), _replay(own, device)
        return PairRow(what, base, measure_in_turns(other, own, device, seconds=seconds))

    for qk_norm in (None, "rms"):
        norms = ", q/k norms" if qk_norm else ""
        for replayed in (False, True) if device.type == "cuda" else (False,):
            where = f"{size}, {CAMERAS} cameras, {'graph' if replayed else 'eager'}{norms}"
            base = f"absolute, {where}"
            for encoding in STRING:
                what = f"{encoding}, {where}"
                yield attempt(what, where, device, partial(row, what, base, encoding, qk_norm, replayed))


def packing_rows(device: torch.device, seconds: float) -> Iterator[PairRow | LeftOut]:
    """A training step on images of many sizes, packed, beside the same images padded to the largest one."""
    large = device.type == "cuda"
    size, grids = ("vit_small_patch16", GRIDS * 8) if large else ("vit_test_patch16", ((1, 2), (2, 2)))
    torch.manual_seed(0)
    images = [torch.randn(3, 16 * rows, 16 * columns, device=device) for rows, columns in grids]

    def step(model: ViT, forward: Callable[[], Tensor]) -> Run:
        def run() -> None:
            model.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16, enabled=large):
                loss = forward().float().square().mean()
            loss.backward()

        return run

    def row(what: str, base: str, encoding: str) -> PairRow:
        model = vit(size, encoding=encoding, coord_dim=2).to(device)
        padded, mask = pad(images, model.patch_size)
        other, own = step(model, lambda: padded_features(model, padded, mask)), step(model, lambda: model(images))
        for run in (other, own, other, own):  # warm
            run()
        return PairRow(what, base, measure_in_turns(other, own, device, seconds=seconds, calls=1))

    base = f"{size}, {len(grids)} images of {len(set(grids))} sizes, padded"
    for encoding in ("rope_mixed", "cayley"):
        what = f"{encoding}, {base.removesuffix('padded')}packed, training"
        yield attempt(what, base, device, partial(row, what, f"{encoding}, {base}", encoding))


def pad(images: list[Tensor], patch: int) -> tuple[Tensor, Tensor]:
    """Images (b, 3, H, W), padded to the largest height and width; and which patches are not padding: (b, n)."""
    height, width = (max(image.shape[axis] for image in images) for axis in (1, 2))
    padded = torch.zeros(len(images), 3, height, width, device=images[0].device)
    mask = torch.zeros(len(images), height // patch, width // patch, dtype=torch.bool, device=images[0].device)
    for i, image in enumerate(images):
        padded[i, :, : image.shape[1], : image.shape[2]] = image
        mask[i, : image.shape[1] // patch, : image.shape[2] // patch] = True
    return padded, mask.flatten(1)


def padded_features(model: ViT, padded: Tensor, mask: Tensor) -> Tensor:
    """Pooled features (b, dim) of padded images: padding is not attended to, and not in the mean."""
    inputs = model.tokenise(padded)
    x = model.norm(run_blocks(model.blocks, inputs.tokens, inputs.places, mask[:, None, None]))
    share = mask.to(x.dtype) / mask.sum(1, keepdim=True)
    return (x * share[..., None]).sum(1)


def drop_in_rows(device: torch.device, seconds: float) -> Iterator[PairRow | LeftOut]:
    """`RoPE2D` and `PointROPE` beside their definition, compiled, at the sizes of the models that use them: forward
    and backward."""
    large = device.type == "cuda"
    dtype = torch.bfloat16 if large else torch.float32
    layers: tuple[tuple[AxialBlocks, tuple[int, int, int, int]], ...] = (
        (RoPE2D(), (8, 16, 1024, 64) if large else (1, 2, 16, 16)),
        (PointROPE(), (1, 8, 65536, 48) if large else (1, 2, 16, 12)),
    )

    def row(what: str, base: str, layer: AxialBlocks, shape: tuple[int, int, int, int], compiled: bool) -> PairRow:
        torch.manual_seed(0)
        b, h, n, d = shape
        tokens = torch.randn(b, n, h, d, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        slope = torch.randn_like(tokens)
        positions = torch.randint(0, 64, (b, n, layer.axes), device=device)
        definition: Callable[..., Tensor] = torch.compile(rotate_by_definition) if compiled else rotate_by_definition

        def both(rotate: Callable[..., Tensor]) -> Run:
            return lambda: torch.autograd.grad(rotate(tokens, positions), tokens, slope)

        other, own = _replay(both(definition), device), _replay(both(layer), device)
        return PairRow(what, base, measure_in_turns(other, own, device, seconds=seconds))

    for layer, shape in layers:
        what, base = f"{type(layer).__name__} {shape}", f"its definition{', compiled' if large else ''}"
        yield attempt(what, base, device, partial(row, what, base, layer, shape, large))


def rotate_by_definition(tokens: Tensor, positions: Tensor, freq: float = 100.0) -> Tensor:
    """What `compat` computes, written as the layers' own fallbacks are: tokens (b, h, n, d), positions (b, n, axes)."""
    axes = positions.shape[-1]
    d = tokens.shape[-1] // axes
    inverse = 1 / freq ** (torch.arange(0, d, 2, device=tokens.device).float() / d)
    parts = []
    for axis, block in enumerate(tokens.chunk(axes, dim=-1)):
        angle = positions[:, None, :, axis, None].float() * inverse
        angle = torch.cat([angle, angle], dim=-1)
        first, second = block.chunk(2, dim=-1)
        cos, sin = angle.cos().to(block.dtype), angle.sin().to(block.dtype)
        parts.append(block * cos + torch.cat([-second, first], dim=-1) * sin)
    return torch.cat(parts, dim=-1)


def _replay(run: Run, device: torch.device) -> Run:
    """The run as a graph on a GPU, warm; as it is elsewhere. RuntimeError if a GPU cannot capture it."""
    for _ in range(3):
        run()
    if device.type != "cuda":
        return run
    replay = capture(run, device)
    if replay is None:
        raise RuntimeError("it waits for the GPU, or cannot be captured")
    return replay
