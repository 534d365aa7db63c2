"""Cameras: where they stand, where they look, and their lenses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .deterministic import TURN, Dice, constant, cos_sin, root

ASPECTS = (1.0, 4 / 3, 3 / 2, 16 / 9, 3 / 4)
"""Width / height of the images that lenses are drawn for."""

_TRIES = 16


class Distance(NamedTuple):
    """How far a camera stands from what it looks at.

    In a room: at least `share` of the room's longer side away and, of the candidate positions sorted from near to far,
    one with a rank in ranks[0] .. ranks[1] − 1. At a table: between radii[0] and radii[1] times the table's radius.
    """

    share: float
    ranks: tuple[int, int]
    radii: tuple[float, float]


DISTANCES = {
    "any": Distance(0.4, (0, _TRIES), (1.2, 2.2)),
    "near": Distance(0.25, (0, _TRIES // 2), (1.2, 1.6)),
    "far": Distance(0.4, (_TRIES * 3 // 4, _TRIES), (2.0, 2.8)),
}
"""The choices of `distance`. In the same scene, "near" is nearer than "far" unless obstacles are in the way."""


def look_at(eye: Tensor, target: Tensor) -> Tensor:
    """World from camera (b, 4, 4) for a camera at `eye` (b, 3) that looks at `target` with the horizon level."""
    z = target - eye
    z = z / root(z[..., 0] ** 2 + z[..., 1] ** 2 + z[..., 2] ** 2)[..., None]
    level = root(z[..., 0] ** 2 + z[..., 1] ** 2)
    x = torch.stack([z[..., 1] / level, -z[..., 0] / level, torch.zeros_like(level)], -1)
    # z × x, written out: a kernel for cross products may fuse a product and a sum, and then rounds differently.
    y = torch.stack(
        [-(z[..., 2] * x[..., 1]), z[..., 2] * x[..., 0], z[..., 0] * x[..., 1] - z[..., 1] * x[..., 0]], -1
    )
    pose = torch.zeros(*eye.shape[:-1], 4, 4, device=eye.device)
    pose[..., :3, 0], pose[..., :3, 1], pose[..., :3, 2], pose[..., :3, 3] = x, y, z, eye
    pose[..., 3, 3] = 1
    return pose


@dataclass(frozen=True)
class Obstacles:
    """Upright boxes (b, o) that a camera must not stand in and should not have close in front of it."""

    centre: Tensor  # (b, o, 3)
    half: Tensor  # (b, o, 3) half sizes along the turned x axis, the turned y axis, and up
    yaw: Tensor  # (b, o)
    present: Tensor  # (b, o)

    def clearance(self, points: Tensor) -> Tensor:
        """(b, n): the distance of points (b, n, 3) from the nearest box, as the largest coordinate of the gap; negative
        inside a box."""
        offset = points[:, :, None] - self.centre[:, None]  # (b, n, o, 3)
        c, s = cos_sin(self.yaw)[:, None].unbind(-1)
        gap = (c * offset[..., 0] + s * offset[..., 1]).abs() - self.half[:, None, :, 0]
        gap = torch.maximum(gap, (c * offset[..., 1] - s * offset[..., 0]).abs() - self.half[:, None, :, 1])
        gap = torch.maximum(gap, offset[..., 2].abs() - self.half[:, None, :, 2])
        return gap.masked_fill(~self.present[:, None], torch.inf).amin(-1)


def _choose_position(eye: Tensor, target: Tensor, room: Tensor, obstacles: Obstacles, margin: float) -> Tensor:
    """(b, 3): the first candidate position (b, n, 3) that is free and has nothing close in front of it, or else the
    candidate with the most space around it."""
    b, n, _ = eye.shape
    steps = constant((0.0, 0.15, 0.3, 0.45, 0.6), eye.device)
    sight = eye[:, :, None] + (target[:, None, None] - eye[:, :, None]) * steps[:, None]  # (b, n, 5, 3)
    clear = obstacles.clearance(sight.flatten(1, 2)).view(b, n, -1)
    walls = (room[:, None, :2] / 2 - eye[..., :2].abs()).amin(-1)
    walls = torch.minimum(walls, torch.minimum(eye[..., 2], room[:, None, 2] - eye[..., 2]))
    score = torch.minimum(clear[..., 0] - margin, walls - 0.12)
    score = torch.minimum(score, clear[..., 1:].amin(-1) - 0.04)
    rank = torch.where(score >= 0, 10.0 + torch.arange(n, 0, -1, device=eye.device), score)
    return eye[torch.arange(b, device=eye.device), rank.argmax(1)]


def _draw_lens(dice: Dice, low: float, high: float) -> Tensor:
    """A focal length of low .. high image sides (square root of the area), and a principal point near the middle."""
    aspect = root(constant(ASPECTS, dice.device)[dice.below(len(ASPECTS))])
    focal = dice.uniform(low=low, high=high)
    middle = dice.uniform(2, low=0.47, high=0.53)
    return torch.cat([torch.stack([focal / aspect, focal * aspect], -1), middle], -1)


def _roll(pose: Tensor, dice: Dice) -> Tensor:
    """Turn the camera about its viewing axis by up to ± 4°."""
    c, s = cos_sin(dice.below(23) - 11).unbind(-1)
    x, y = (
        pose[:, :3, 0] * c[:, None] + pose[:, :3, 1] * s[:, None],
        pose[:, :3, 1] * c[:, None] - pose[:, :3, 0] * s[:, None],
    )
    return torch.cat([torch.cat([torch.stack([x, y], -1), pose[:, :3, 2:]], -1), pose[:, 3:]], 1)


def in_room(dice: Dice, room: Tensor, focus: Tensor, obstacles: Obstacles, distance: Distance) -> tuple[Tensor, Tensor]:
    """A camera at the height of a person or a robot that looks across the room: pose (b, 4, 4) and lens (b, 4)."""
    u = dice.uniform(_TRIES, 2, low=-1.0, high=1.0)
    # √|u| favours positions near the walls, from which more of the room is visible.
    spot = u.sign() * root(u.abs()) * (room[:, None, :2] / 2 - 0.3)
    eye = torch.cat([spot, dice.uniform(_TRIES, 1, low=1.2, high=2.2)], -1)
    target = focus + dice.uniform(3, low=-0.3, high=0.3)
    target_distance, longer_side = (spot - focus[:, None, :2]).abs().amax(-1), room[:, :2].amax(-1, keepdim=True)
    rank = target_distance.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
    fits = (target_distance > distance.share * longer_side) & (rank >= distance.ranks[0]) & (rank < distance.ranks[1])
    # Candidates that do not fit are moved out of the room, so that they score worst.
    eye = torch.where(fits[..., None], eye, eye + constant((0.0, 0.0, 50.0), eye.device))
    position = _choose_position(eye, target, room, obstacles, 0.5)
    position = torch.cat([position[:, :2], torch.minimum(position[:, 2:], room[:, 2:] - 0.3)], -1)
    return _roll(look_at(position, target), dice), _draw_lens(dice, 0.62, 1.05)


def at_table(
    dice: Dice, room: Tensor, focus: Tensor, radius: Tensor, obstacles: Obstacles, distance: Distance
) -> tuple[Tensor, Tensor]:
    """A camera that looks down on a table of the given radius (b,) from any side: pose (b, 4, 4) and lens (b, 4)."""
    azimuth = cos_sin(dice.below(TURN, _TRIES))
    rise = cos_sin((dice.uniform(_TRIES, low=0.05, high=0.17) * TURN).to(torch.int64))  # 18° to 61°
    low, high = distance.radii
    target_distance = radius[:, None] * dice.uniform(_TRIES, low=low, high=high) + 0.25
    level = azimuth * (target_distance * rise[..., 0])[..., None]
    eye = focus[:, None] + torch.cat([level, (target_distance * rise[..., 1])[..., None]], -1)
    target = focus + dice.uniform(3, low=-0.15, high=0.15) * radius[:, None]
    position = _choose_position(eye, target, room, obstacles, 0.12)
    limit = torch.stack([room[:, 0] / 2 - 0.1, room[:, 1] / 2 - 0.1, room[:, 2] - 0.1], -1)
    position = torch.maximum(torch.minimum(position, limit), -limit)
    return _roll(look_at(position, target), dice), _draw_lens(dice, 0.72, 1.25)
