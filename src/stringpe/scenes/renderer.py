"""Renders scenes to frames, a pure function of the data on the device that holds it, and streams frames endlessly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .assembly import assemble
from .layout import sample
from .ray_casting import first_hits, from_tiles, light_reaches
from .scene import FAMILIES, Frames, Scenes, annotate
from .shading import Surface, shade

_CHUNK = {"cpu": 16, "cuda": 1024}
"""Scenes rendered at once: the lists of pairs are built per chunk, and their memory grows with it."""


def check_size(size: Sequence[int]) -> None:
    """Raise ValueError unless `size` is a height and a width."""
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size is (height, width) in pixels, received {size}: pass for example size=(128, 128)")


@torch.no_grad()
def render(
    scenes: Scenes,
    size: tuple[int, int] = (128, 128),
    *,
    shadows: bool = True,
    device: torch.device | str | None = None,
) -> Frames:
    """Render frames: one ray through every pixel centre, and one from the light to each point that these hit.

    `size` is (height, width) for the whole batch; where a scene's aspect ratio differs, its pixels are not square and
    K says so. `device` defaults to where the scenes are.
    """
    check_size(size)
    if device is not None:
        scenes = scenes.to(device)
    step = _CHUNK.get(scenes.device.type, _CHUNK["cuda"])
    parts = [_render(scenes[start : start + step], size, shadows) for start in range(0, len(scenes), step)]
    rgb, depth, instance, unoccluded = (torch.cat(columns) for columns in zip(*parts, strict=True))
    return annotate(scenes, rgb, depth, instance, unoccluded)


def _render(scenes: Scenes, size: tuple[int, int], shadows: bool) -> tuple[torch.Tensor, ...]:
    assembly = assemble(scenes)
    hits = first_hits(scenes, assembly, size)
    surface = Surface(scenes, assembly, hits)
    facing = surface.facing(scenes)
    if shadows:
        tiled = hits.depth.shape
        facing = light_reaches(scenes, assembly, surface.point.view(3, *tiled), facing.view(tiled)).flatten()
    colour = shade(scenes, surface, facing)
    rgb = torch.stack([from_tiles(channel.view_as(hits.depth), *size) for channel in colour], 1)
    owner = assembly.owner.gather(1, hits.row.flatten(1)).view_as(hits.row) + 1
    return rgb, from_tiles(hits.depth, *size), from_tiles(owner, *size), hits.unoccluded


def stream(
    seed: int = 0,
    batch: int = 64,
    size: tuple[int, int] = (128, 128),
    device: torch.device | str = "cpu",
    families: Sequence[str] = FAMILIES,
    *,
    views: int = 1,
    decorated: bool = False,
    shadows: bool = True,
    start: int = 0,
) -> Iterator[Frames]:
    """Batches of the frames start, start + 1, …; layouts are drawn on `device` too, so nothing is copied.

    `views` and `decorated` as in `sample`. With several workers, give each its own `seed`.
    """
    if batch < 1:
        raise ValueError(f"batch is the number of frames per step, received {batch}: pass at least 1")
    while True:
        index = torch.arange(start, start + batch)
        scenes = sample(seed, index, families=families, views=views, decorated=decorated, device=device)
        yield render(scenes, size, shadows=shadows)
        start += batch
