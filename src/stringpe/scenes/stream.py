"""An endless supply of frames, made where they are eaten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from .frames import Frames
from .layout import sample
from .render import render
from .world import FAMILIES


def stream(
    seed: int = 0,
    batch: int = 64,
    size: tuple[int, int] = (128, 128),
    device: torch.device | str = "cpu",
    families: Sequence[str] = FAMILIES,
    *,
    views: int = 1,
    shadows: bool = True,
    start: int = 0,
) -> Iterator[Frames]:
    """Batches of frames number start, start + 1, …; layouts are drawn on `device` too, so nothing is copied.

    `views` cameras share each layout (see sample). To spread a world over w workers, give each its own `seed`.
    """
    if batch < 1:
        raise ValueError(f"batch is the number of frames per step, received {batch}: pass at least 1")
    while True:
        index = torch.arange(start, start + batch)
        yield render(sample(seed, index, families=families, views=views, device=device), size, shadows=shadows)
        start += batch
