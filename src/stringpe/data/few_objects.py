"""A few pieces of furniture on the floor of an empty room: RGB-D frames simple enough to learn boxes in 3D from within
minutes on a CPU."""

import math

import torch
from torch import Tensor

from .. import scenes
from ..scenes import cameras
from ..scenes.catalogue import catalogue, kind_number
from ..scenes.object_kinds import PATTERNS

KINDS = ("chair", "stool", "bin", "nightstand", "plant", "basket")
"""What stands in the rooms."""

_LANES = (-1.1, 0.0, 1.1)  # metres from the middle of the room at which objects stand side by side


def sample_rooms(seed: int, index: Tensor) -> scenes.Scenes:
    """Rooms number `index` (b,) of the world with this seed: one to three objects each, in a row with gaps, turned by up
    to 45 degrees, seen by a camera on their open side."""
    b, o = len(index), len(_LANES)
    u = torch.stack([_uniforms(seed, int(i), 64) for i in index])  # (b, 64)
    shelf = catalogue(torch.device("cpu"))
    numbers = torch.tensor([kind_number(name) for name in KINDS])
    kind = numbers[(u[:, :o] * len(KINDS)).long()]
    template = shelf.first[kind] + (u[:, 3 : 3 + o] * shelf.variants[kind]).long()
    size = shelf.nominal[template] * (0.85 + 0.3 * u[:, 6 : 6 + o, None])
    present = u[:, 9 : 9 + o] < 0.7
    present[:, 1] |= ~present.any(1)
    x = torch.tensor(_LANES) + 0.4 * (u[:, 12 : 12 + o] - 0.5)
    y = 1.6 * (u[:, 15 : 15 + o] - 0.5)
    turn = (u[:, 18 : 18 + o] - 0.5) * math.pi / 2
    eye = torch.stack([1.2 * u[:, 21] - 0.6, -3.4 + 0.6 * u[:, 22], 1.1 + 0.9 * u[:, 23]], -1)
    target = torch.stack([0.4 * u[:, 24] - 0.2, 0.4 * u[:, 25] - 0.2, torch.full((b,), 0.3)], -1)
    zero = torch.zeros(b, o, dtype=torch.int64)
    surfaces = 0.35 + 0.6 * u[:, 26:35].view(b, 3, 1, 3)
    return scenes.Scenes(
        seed=seed,
        index=index,
        family=zero[:, 0],
        present=present,
        kind=kind,
        template=template,
        colour=zero,
        material=shelf.materials[kind, 0],
        pattern=zero + PATTERNS.index("plain"),
        tint=u[:, 40:58].view(b, o, 2, 3),
        centre=torch.stack([x, y, size[..., 2] / 2], -1),
        rotation=_turn(turn),
        size=size,
        parent=zero - 1,
        room=torch.tensor([7.0, 8.0, 3.0]).expand(b, 3),
        surface_tint=torch.cat([surfaces, 0.9 * surfaces], 2),
        surface_pattern=torch.zeros(b, 3, dtype=torch.int64),
        rug=torch.tensor([0.0, 0.0, 1e-3, 1e-3]).expand(b, 4),
        rug_tint=torch.ones(b, 2, 3),
        light=torch.stack([3 * u[:, 35] - 1.5, -1 - u[:, 36], torch.full((b,), 2.8)], -1),
        light_colour=torch.full((b, 3), 1.6),
        ambient=torch.full((b, 3), 0.45),
        pose=cameras.look_at(eye, target),
        lens=torch.tensor([1.0, 1.0, 0.5, 0.5]).expand(b, 4),
    )


def _uniforms(seed: int, number: int, count: int) -> Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed * 1_000_003 + number))


def _turn(angle: Tensor) -> Tensor:
    """Rotations (…, 3, 3) about the upright axis."""
    c, s, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    return torch.stack([c, -s, zero, s, c, zero, zero, zero, one], -1).unflatten(-1, (3, 3))
