"""Rotations and poses in numpy float64: a rotation is (3, 3), a pose is a position (3,) and a rotation."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Pose(NamedTuple):
    """A frame: maps x in it to `turn @ x + pos` in the world."""

    pos: Vector
    turn: Vector

    def apply(self, point: npt.ArrayLike) -> Vector:
        """A point of this frame, in the world."""
        return self.pos + self.turn @ np.asarray(point, float)

    def inverse(self, point: npt.ArrayLike) -> Vector:
        """A point of the world, in this frame."""
        return self.turn.T @ (np.asarray(point, float) - self.pos)

    def then(self, inner: "Pose") -> "Pose":
        """The world pose of a frame given in this one."""
        return Pose(self.apply(inner.pos), self.turn @ inner.turn)

    def relative(self, other: "Pose") -> "Pose":
        """The pose of a world frame in this one: `self.then(self.relative(other))` is `other`."""
        return Pose(self.inverse(other.pos), self.turn.T @ other.turn)

    def matrix(self) -> npt.NDArray[np.float32]:
        """This pose as a matrix (4, 4) that maps (x, 1) to (turn x + pos, 1)."""
        matrix = np.eye(4, dtype=np.float32)
        matrix[:3, :3], matrix[:3, 3] = self.turn, self.pos
        return matrix


def rotation_about(axis: str, angle: Any) -> Vector:
    """Rotation by `angle` about the x, y or z axis."""
    first, second = {"x": (1, 2), "y": (2, 0), "z": (0, 1)}[axis]
    turn = np.eye(3)
    turn[first, first] = turn[second, second] = np.cos(angle)
    turn[first, second], turn[second, first] = -np.sin(angle), np.sin(angle)
    return turn


def heading(turn: Vector) -> float:
    """The angle about the world's z axis of a frame's x axis."""
    return float(np.arctan2(turn[1, 0], turn[0, 0]))


def rotation_vector(turn: Vector) -> Vector:
    """Axis times angle of a rotation, (3,), for angles below π."""
    skew = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    sine, cosine = float(np.linalg.norm(skew)) / 2, (float(np.trace(turn)) - 1) / 2
    if sine < 1e-9:
        return skew / 2 if cosine > 0 else np.pi * np.sqrt(np.clip((np.diag(turn) + 1) / 2, 0, 1))
    return skew / (2 * sine) * float(np.arctan2(sine, cosine))


def from_rotation_vector(vector: Vector) -> Vector:
    """The rotation of an axis times an angle (Rodrigues)."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = vector / angle
    skew = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * skew + (1 - np.cos(angle)) * skew @ skew


def between(a: Pose, b: Pose, share: float) -> Pose:
    """The pose a fraction `share` of the way from a to b: along a straight line, and turned about one axis."""
    turn = a.turn @ from_rotation_vector(share * rotation_vector(a.turn.T @ b.turn))
    return Pose(a.pos + share * (b.pos - a.pos), turn)


def grip_down(finger_axis: float) -> Vector:
    """The rotation of a gripper that points down (its x axis) and opens along the angle `finger_axis` (its y axis)."""
    down, across = np.array([0.0, 0.0, -1.0]), np.array([np.cos(finger_axis), np.sin(finger_axis), 0.0])
    return np.stack([down, across, np.cross(down, across)], axis=1)
