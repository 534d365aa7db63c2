"""One object in an empty room: to look at a kind, and to test the renderer against what is known exactly."""

from __future__ import annotations

import torch

from .cameras import look_at
from .catalogue import catalogue, number
from .palette import PATTERNS
from .world import Scenes


def alone(
    kind: str,
    variant: int = 0,
    *,
    size: tuple[float, float, float] | None = None,
    azimuth: float = 0.5,
    height: float = 0.6,
    colours: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None,
) -> Scenes:
    """A scene that holds one object of the given kind, seen from its front; the distance fits its size.

    `azimuth` (radians) walks around the object and `height` is the slope of the view from above.
    """
    shelf = catalogue(torch.device("cpu"))
    row = number(kind)
    if not 0 <= variant < int(shelf.variants[row]):
        raise ValueError(f"{kind} has {int(shelf.variants[row])} variants, received variant={variant}: count from 0")
    template = shelf.first[row] + variant
    extent = shelf.nominal[template] if size is None else torch.tensor(size)
    reach = extent.norm()
    room = (extent.max() * 8 + 2).expand(3)
    centre = torch.tensor([0.0, 0.0, float(extent[2]) / 2])
    angle = torch.tensor(azimuth)
    away = torch.stack([angle.sin(), -angle.cos(), torch.tensor(height)])
    eye = centre + away / away.norm() * reach * 1.5
    grey = torch.tensor([[0.62, 0.58, 0.52], [0.75, 0.77, 0.8], [0.95, 0.95, 0.95]])
    tint = torch.tensor(colours if colours is not None else ((0.20, 0.45, 0.70), (0.90, 0.80, 0.60)))
    zero = torch.zeros(1, 1, dtype=torch.int64)
    return Scenes(
        seed=0,
        index=zero[0],
        family=zero[0],
        present=torch.ones(1, 1, dtype=torch.bool),
        kind=zero + row,
        template=(zero + template),
        colour=zero,
        material=shelf.materials[row, 0].view(1, 1),
        pattern=zero + PATTERNS.index("plain"),
        tint=tint.view(1, 1, 2, 3),
        centre=centre.view(1, 1, 3),
        rotation=torch.eye(3).view(1, 1, 3, 3),
        size=extent.view(1, 1, 3),
        parent=zero - 1,
        room=room.view(1, 3),
        surface_tint=torch.stack([grey, grey * 0.9], 1)[None],
        surface_pattern=torch.zeros(1, 3, dtype=torch.int64),
        rug=torch.tensor([[0.0, 0.0, 1e-3, 1e-3]]),
        rug_tint=torch.ones(1, 2, 3),
        light=(centre + reach * torch.tensor([-1.6, -2.0, 4.0])).view(1, 3),
        light_colour=(torch.ones(1, 3) * 0.9 * (1 + (4.8 * reach / 4) ** 2)),
        ambient=torch.full((1, 3), 0.45),
        pose=look_at(eye.view(1, 3), centre.view(1, 3)),
        lens=torch.tensor([[1.0, 1.0, 0.5, 0.5]]),
    )
