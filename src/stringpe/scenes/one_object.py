"""One object in an empty room: to look at a kind, to test the renderer against exactly known geometry, and to learn
boxes in 3D from frames that are simple enough for a CPU."""

import math

import torch
from torch import Tensor

from . import cameras
from .object_kinds import PATTERNS
from .scene import Scenes
from .templates import kind_number, load_templates

KINDS = ("chair", "sofa", "table", "bin", "nightstand", "plant")
"""What stands in the rooms of `sample_one_object`."""


def single_object(
    kind: str,
    variant: int = 0,
    *,
    size: tuple[float, float, float] | None = None,
    azimuth: float = 0.5,
    height: float = 0.6,
    colours: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None,
) -> Scenes:
    """One object in an empty room, seen from its front at a distance that fits its size.

    `azimuth` (radians) turns the camera around the object. `height` is the camera's height above the object's centre,
    divided by its horizontal distance.
    """
    templates = load_templates(torch.device("cpu"))
    number = kind_number(kind)
    if not 0 <= variant < int(templates.variants[number]):
        raise ValueError(f"{kind} has {templates.variants[number]} variants, received variant={variant}: count from 0")
    template = templates.first[number] + variant
    extent = templates.nominal[template] if size is None else torch.tensor(size)
    diagonal = extent.norm()
    centre = torch.tensor([0.0, 0.0, float(extent[2]) / 2])
    angle = torch.tensor(azimuth)
    direction = torch.stack([angle.sin(), -angle.cos(), torch.tensor(height)])
    eye = centre + direction / direction.norm() * diagonal * 1.5
    return _stand_alone(
        0,
        torch.zeros(1, dtype=torch.int64),
        torch.tensor([number]),
        template[None],
        size=extent[None],
        tint=torch.tensor(colours if colours is not None else ((0.20, 0.45, 0.70), (0.90, 0.80, 0.60)))[None],
        room=(extent.max() * 8 + 2).expand(1, 3),
        surfaces=torch.tensor([[[0.62, 0.58, 0.52], [0.75, 0.77, 0.8], [0.95, 0.95, 0.95]]]),
        light=(centre + diagonal * torch.tensor([-1.6, -2.0, 4.0]))[None],
        light_colour=torch.ones(1, 3) * 0.9 * (1 + (4.8 * diagonal / 4) ** 2),
        pose=cameras.look_at(eye[None], centre[None]),
    )


def sample_one_object(seed: int, index: Tensor) -> Scenes:
    """Rooms number `index` (b,) of the world with this seed, on the CPU. Each has one object of random kind, size and
    colours, turned by up to 45 degrees against the camera, which stands 1.5 to 2 times the object's size away and looks
    a little past it."""
    b = len(index)
    u = torch.stack([_uniforms(seed, int(i)) for i in index])  # (b, 32)
    templates = load_templates(torch.device("cpu"))
    kind = torch.tensor([kind_number(name) for name in KINDS])[(u[:, 0] * len(KINDS)).long()]
    template = templates.first[kind] + (u[:, 1] * templates.variants[kind]).long()
    size = templates.nominal[template] * (0.8 + 0.4 * u[:, 2:3])
    reach = size.norm(dim=1, keepdim=True)
    centre = torch.stack([torch.zeros(b), torch.zeros(b), size[:, 2] / 2], -1)
    turn, slope = (u[:, 3] - 0.5) * math.pi / 2, 0.3 + 0.6 * u[:, 4]
    away = torch.stack([turn.sin(), -turn.cos(), slope], -1)
    eye = centre + away / away.norm(dim=1, keepdim=True) * reach * (1.5 + 0.5 * u[:, 5:6])
    target = centre + 0.3 * reach * (u[:, 6:9] - 0.5)
    return _stand_alone(
        seed,
        index,
        kind,
        template,
        size=size,
        tint=u[:, 18:24].view(b, 2, 3),
        room=torch.tensor([12.0, 12.0, 6.0]).expand(b, 3),
        surfaces=0.35 + 0.6 * u[:, 9:18].view(b, 3, 3),
        light=torch.stack([4 * u[:, 24] - 2, -2 - u[:, 25], torch.full((b,), 5.0)], -1),
        light_colour=torch.full((b, 3), 2.5),
        pose=cameras.look_at(eye, target),
    )


def _uniforms(seed: int, number: int) -> Tensor:
    return torch.rand(32, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))


def _stand_alone(
    seed: int,
    index: Tensor,
    kind: Tensor,
    template: Tensor,
    *,
    size: Tensor,
    tint: Tensor,
    surfaces: Tensor,
    **columns: Tensor,
) -> Scenes:
    """Rooms (b,) with one plain object each, of this size (b, 3) and tint (b, 2, 3), in the middle of their floor.

    surfaces: the colours (b, 3, 3) of floor, walls and ceiling. The other columns are those of `Scenes`.
    """
    b, zero = len(index), torch.zeros(len(index), 1, dtype=torch.int64)
    return Scenes(
        seed=seed,
        index=index,
        family=zero[:, 0],
        present=torch.ones(b, 1, dtype=torch.bool),
        kind=kind[:, None],
        template=template[:, None],
        colour=zero,
        material=load_templates(torch.device("cpu")).materials[kind, 0][:, None],
        pattern=zero + PATTERNS.index("plain"),
        tint=tint[:, None],
        centre=torch.stack([torch.zeros(b), torch.zeros(b), size[:, 2] / 2], -1)[:, None],
        rotation=torch.eye(3).expand(b, 1, 3, 3),
        size=size[:, None],
        parent=zero - 1,
        surface_tint=torch.stack([surfaces, 0.9 * surfaces], 2),
        surface_pattern=torch.zeros(b, 3, dtype=torch.int64),
        rug=torch.tensor([0.0, 0.0, 1e-3, 1e-3]).expand(b, 4),
        rug_tint=torch.ones(b, 2, 3),
        ambient=torch.full((b, 3), 0.45),
        lens=torch.tensor([1.0, 1.0, 0.5, 0.5]).expand(b, 4),
        **columns,
    )
