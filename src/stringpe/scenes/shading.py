"""The colour of every ray: surface normals, procedural patterns, and light.

Vectors are (3, n): component first, n all rays of the batch in tile order. Light is linear until the last step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .assembly import Assembly
from .object_kinds import PATTERNS
from .ray_casting import Hits
from .scene import Scenes

_PLAIN, _STRIPES, _CHECKS, _DOTS, _GRAIN, _SPECKLE, _PLANKS, _TILES = range(len(PATTERNS))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Scalar products (n,) of vectors (3, n); written out, because a reduction over three rows is slow."""
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def _unit(v: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (3, n) and lengths (n,)."""
    length = _dot(v, v).sqrt_()
    return v / length, length


class Surface:
    """The surface points that the rays hit: position, normal and look."""

    def __init__(self, scenes: Scenes, assembly: Assembly, hits: Hits) -> None:
        rows = assembly.owner.shape[1]
        scene = torch.arange(len(scenes), device=scenes.device).view(-1, 1, 1).expand_as(hits.row)
        self.scene = scene.flatten()
        flat = (hits.row + scene * rows).flatten()
        depth = hits.depth.flatten()
        pose = scenes.pose[:, :3].flatten(1).T[:, self.scene].view(3, 4, -1)
        ray = torch.stack([hits.x.flatten() * depth, hits.y.flatten() * depth, depth])
        step = torch.stack([_dot(axis, ray) for axis in pose[:, :3]])  # from the camera to the point, in world axes
        self.point = pose[:, 3] + step
        self.view = -_unit(step)[0]
        self.room_row = hits.row.flatten() - (rows - 3)  # ≥ 0 on the room itself

        inverse = assembly.inverse.flatten(0, 1).flatten(1).T[:, flat].view(3, 3, -1)
        half = assembly.frame.norm(dim=-2).flatten(0, 1).T[:, flat]  # half sizes in metres
        away = self.point - assembly.centre.flatten(0, 1).T[:, flat]
        local = torch.stack([_dot(axis, away) for axis in inverse])
        quadric = assembly.quadric.flatten(0, 1).T[:, flat]
        gradient = _gradient(local, quadric, assembly.cavity.flatten(0, 1).T[:, flat])
        normal, _ = _unit(torch.stack([_dot(inverse[:, k], gradient) for k in range(3)]))
        self.normal = torch.where(self.room_row >= 0, -normal, normal)
        self.metric = local * half  # metres from the centre, in solid axes
        self.look = assembly.look.flatten(0, 1).T[:, flat]
        self.to_edge = (1 - local.abs()) * half  # metres to the faces of the solid's cube

    def to_light(self, scenes: Scenes) -> tuple[Tensor, Tensor]:
        """Directions (3, n) towards the light and distances (n,)."""
        return _unit(scenes.light.T[:, self.scene] - self.point)

    def facing(self, scenes: Scenes) -> Tensor:
        """(n,) bool: the surface is turned towards the light."""
        return _dot(self.normal, self.to_light(scenes)[0]) > 0


def _nearest_face(p: Tensor, quadric: Tensor) -> tuple[Tensor, Tensor]:
    """The outward gradient (3, n) of the face of the convex solid that is nearest to p, and the signed deviation of p
    from that face."""
    q_r, q_z, linear, constant = quadric
    curved = torch.stack([q_r * p[0], q_r * p[1], q_z * p[2] + 0.5 * linear])
    value = 0.5 * (p[0] * curved[0] + p[1] * curved[1] + p[2] * (curved[2] + 0.5 * linear) + constant)
    flat = p.abs() - 1
    most = flat.amax(0)
    face = torch.where(flat == most, p.sign(), 0.0)
    return torch.where(value > most, curved, face), torch.maximum(value, most)


def _gradient(local: Tensor, quadric: Tensor, cavity: Tensor) -> Tensor:
    """The outward gradient in solid coordinates; on the wall of a cavity it points into the cavity."""
    outer, outer_deviation = _nearest_face(local, quadric)
    k = cavity[:3]
    shifted = torch.stack([local[0], local[1], local[2] - cavity[3]]) * k
    inner, inner_deviation = _nearest_face(shifted, quadric)
    inside = (cavity[0] > 0) & (inner_deviation.abs() < outer_deviation.abs())
    return torch.where(inside, -inner * k, outer)


def _hash(cell: Tensor) -> Tensor:
    """A number in [0, 1] for each integer cell (3, n), the same on every device."""
    i = cell.to(torch.int32)
    h = (i[0] * 73856093) ^ (i[1] * 19349663) ^ (i[2] * 83492791)
    h = (h ^ (h >> 13)) * 1274126177
    return ((h >> 8) & 0xFFFF).float() / 65535


def pattern_weight(pattern: Tensor, metric: Tensor, frequency: Tensor) -> Tensor:
    """(n,) weight of the second colour, for positions (3, n) in metres and a frequency per metre."""
    u = metric * frequency + 0.01  # off the exact faces, where floor() would flicker
    cell = u.floor()
    part = u - cell
    parity = (cell[0] + cell[1] + cell[2]) % 2
    stripes = ((u[0] + u[1]) % 1.0 < 0.4).float()
    dots = (_dot(part - 0.5, part - 0.5) < 0.11).float()
    bend = torch.sin(5 * metric[0] + 3 * metric[1])
    grain = 0.5 + 0.5 * torch.sin(110 * metric[1] + 70 * metric[2] + 2.5 * bend)
    speckle = _hash((4 * u).floor())
    board = torch.stack([(u[0] * 0.35 + 0.37 * (u[1] * 4).floor()).floor(), (u[1] * 4).floor(), torch.zeros_like(u[2])])
    gap = ((u[1] * 4) % 1.0 < 0.06).float()
    planks = 0.6 * _hash(board) + 0.25 * torch.sin(40 * u[1] + 3 * torch.sin(2 * u[0])).abs() + gap
    tiles = (part[:2] < 0.05).any(0).float()
    weight = torch.zeros_like(stripes)
    for number, value in (
        (_STRIPES, stripes),
        (_CHECKS, parity),
        (_DOTS, dots),
        (_GRAIN, grain),
        (_SPECKLE, 0.6 * speckle),
        (_PLANKS, planks.clamp(max=1)),
        (_TILES, tiles),
    ):
        weight = torch.where(pattern == number, value, weight)
    return weight


def _albedo(scenes: Scenes, surface: Surface) -> Tensor:
    """(3, n) linear colour of the surface, before lighting."""
    look = surface.look
    weight = pattern_weight(look[6], surface.metric, look[7])
    colour = torch.lerp(look[:3], look[3:6], weight)
    rug = scenes.rug.T[:, surface.scene]
    inside = ((surface.point[:2] - rug[:2]).abs() / rug[2:]).amax(0)  # (n,)
    tint = (scenes.rug_tint**2.2).flatten(1).T[:, surface.scene].view(2, 3, -1)
    border = (inside > 0.8) & (inside < 0.92)
    rug_colour = torch.where(border, tint[1], tint[0])
    return torch.where((surface.room_row == 0) & (inside < 1), rug_colour, colour)


def shade(scenes: Scenes, surface: Surface, lit: Tensor) -> Tensor:
    """(3, n) sRGB in [0, 1]; `lit` (n,) bool: the light reaches the point."""
    direction, distance = surface.to_light(scenes)
    normal, look = surface.normal, surface.look
    albedo = _albedo(scenes, surface)
    key = scenes.light_colour.T[:, surface.scene] * (lit / (1 + (distance / 4) ** 2))
    ambient = scenes.ambient.T[:, surface.scene] * (0.8 + 0.2 * normal[2])
    head_on = _dot(normal, surface.view).clamp_(min=0)
    # Corners of the room receive less ambient light: one factor per pair of opposite faces of the room's box.
    crease = 1 - 0.3 * torch.exp(-surface.to_edge.clamp(min=0) / 0.25)
    ambient = ambient * torch.where(surface.room_row >= 0, crease[0] * crease[1] * crease[2] / 0.7, 1.0)
    incoming = ambient * (0.65 + 0.35 * head_on) + key * _dot(normal, direction).clamp_(min=0)
    half, _ = _unit(direction + surface.view)
    highlight = _dot(normal, half).clamp_(min=1e-4) ** look[9]
    linear = albedo * (incoming + look[10]) + look[8] * key * highlight * 0.5
    exposed = 1 - torch.exp(-1.35 * linear)  # highlights roll off instead of burning out
    return exposed.clamp(min=1e-6) ** (1 / 2.2)
