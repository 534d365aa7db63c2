"""One piece of furniture in an empty room: frames simple enough to learn boxes in 3D from them on a CPU in minutes."""

import math

import torch
from torch import Tensor

from .. import scenes
from ..scenes import cameras
from ..scenes.object_kinds import PATTERNS
from ..scenes.templates import kind_number, load_templates

KINDS = ("chair", "sofa", "table", "bin", "nightstand", "plant")
"""What stands in the rooms."""


def sample_rooms(seed: int, index: Tensor) -> scenes.Scenes:
    """Rooms number `index` (b,) of the world with this seed, on the CPU. Each has one object of random kind, size and
    colours, turned by up to 45 degrees against the camera, which stands 1.5 to 2 times the object's size away and looks
    a little past it."""
    b = len(index)
    u = torch.stack([_uniforms(seed, int(i)) for i in index])  # (b, 32)
    shelf = load_templates(torch.device("cpu"))
    kind = torch.tensor([kind_number(name) for name in KINDS])[(u[:, 0] * len(KINDS)).long()]
    template = shelf.first[kind] + (u[:, 1] * shelf.variants[kind]).long()
    size = shelf.nominal[template] * (0.8 + 0.4 * u[:, 2:3])
    reach = size.norm(dim=1, keepdim=True)
    centre = torch.stack([torch.zeros(b), torch.zeros(b), size[:, 2] / 2], -1)
    turn, slope = (u[:, 3] - 0.5) * math.pi / 2, 0.3 + 0.6 * u[:, 4]
    away = torch.stack([turn.sin(), -turn.cos(), slope], -1)
    eye = centre + away / away.norm(dim=1, keepdim=True) * reach * (1.5 + 0.5 * u[:, 5:6])
    target = centre + 0.3 * reach * (u[:, 6:9] - 0.5)
    zero = torch.zeros(b, 1, dtype=torch.int64)
    surfaces = 0.35 + 0.6 * u[:, 9:18].view(b, 3, 1, 3)
    return scenes.Scenes(
        seed=seed,
        index=index,
        family=zero[:, 0],
        present=torch.ones(b, 1, dtype=torch.bool),
        kind=kind[:, None],
        template=template[:, None],
        colour=zero,
        material=shelf.materials[kind, 0][:, None],
        pattern=zero + PATTERNS.index("plain"),
        tint=u[:, 18:24].view(b, 1, 2, 3),
        centre=centre[:, None],
        rotation=torch.eye(3).expand(b, 1, 3, 3),
        size=size[:, None],
        parent=zero - 1,
        room=torch.tensor([12.0, 12.0, 6.0]).expand(b, 3),
        surface_tint=torch.cat([surfaces, 0.9 * surfaces], 2),
        surface_pattern=torch.zeros(b, 3, dtype=torch.int64),
        rug=torch.tensor([0.0, 0.0, 1e-3, 1e-3]).expand(b, 4),
        rug_tint=torch.ones(b, 2, 3),
        light=torch.stack([4 * u[:, 24] - 2, -2 - u[:, 25], torch.full((b,), 5.0)], -1),
        light_colour=torch.full((b, 3), 2.5),
        ambient=torch.full((b, 3), 0.45),
        pose=cameras.look_at(eye, target),
        lens=torch.tensor([1.0, 1.0, 0.5, 0.5]).expand(b, 4),
    )


def _uniforms(seed: int, number: int) -> Tensor:
    return torch.rand(32, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))
