"""The state of a simulation in terms of things and arms: where they are, what touches what, which arm holds what."""

from typing import Any

import numpy as np

from .poses import Pose
from .robot_model import Arm, Robot
from .simulator import mujoco

_TOUCHING = 5e-4  # metres between two surfaces in contact, at most


class World:
    """Model and data of MuJoCo, read by the names of things and arms."""

    def __init__(self, model: Any, data: Any, robot: Robot) -> None:
        self.model, self.data, self.robot = model, data, robot
        self._owner = [_owner(model, geom, robot) for geom in range(model.ngeom)]
        self._pairs: set[tuple[str, str]] = set()

    def pose(self, thing: str) -> Pose:
        """Where a thing is."""
        body = self.data.body(thing)
        return Pose(body.xpos.copy(), body.xmat.reshape(3, 3).copy())

    def grip(self, arm: str) -> Pose:
        """Where the point between an arm's finger tips is."""
        site = self.data.site(f"{arm}/grip")
        return Pose(site.xpos.copy(), site.xmat.reshape(3, 3).copy())

    def camera(self, camera: str) -> Pose:
        """Where a camera is in the frame of the robot's base: x right, y down, z forward."""
        seen = self.data.cam(camera)
        pose = Pose(seen.xpos.copy(), seen.xmat.reshape(3, 3) * np.array([1.0, -1.0, -1.0]))  # MuJoCo looks along −z
        return self.pose(self.robot.base).relative(pose) if self.robot.base else pose

    def upright(self, thing: str) -> float:
        """Cosine of the angle between a thing's z axis and up."""
        return float(self.data.body(thing).xmat[8])

    def speed(self, thing: str) -> float:
        """The speed of a thing in m/s; its rotation counts as the speed of a point 5 cm from its middle."""
        velocity = np.zeros(6)
        body = self.model.body(thing).id
        mujoco.mj_objectVelocity(self.model, self.data, mujoco.mjtObj.mjOBJ_BODY, body, velocity, 0)
        return float(max(np.linalg.norm(velocity[3:]), 0.05 * np.linalg.norm(velocity[:3])))

    def observe_contacts(self) -> None:
        """Read the current contacts, on which the methods below are based."""
        contact = self.data.contact
        contacts = zip(contact.geom1, contact.geom2, contact.dist, strict=True)
        names = [(self._owner[a], self._owner[b]) for a, b, distance in contacts if distance < _TOUCHING]
        self._pairs = {pair for a, b in names for pair in _name_pairs(a, b)}

    def touching(self, a: str, b: str) -> bool:
        """Whether two things touch; an arm by its name stands for any part of it."""
        return (a, b) in self._pairs

    def arms_touching(self, thing: str) -> set[str]:
        """The arms that touch a thing."""
        return {arm.name for arm in self.robot.arms if self.touching(thing, arm.name)}

    def arms_holding(self, thing: str) -> set[str]:
        """The arms that hold a thing: both finger tips touch it."""
        arms = self.arms_touching(thing)
        return {arm for arm in arms if all(self.touching(thing, f"{arm}/pad_{side}") for side in "ab")}

    def is_free(self, thing: str, away: float = 0.0) -> bool:
        """Whether no arm touches a thing, and all finger tips are at least `away` metres from it."""
        if self.arms_touching(thing):
            return False
        parts = [i for i, owner in enumerate(self._owner) if owner == thing]
        tips = [i for i, owner in enumerate(self._owner) if "/pad_" in owner]
        return all(self._distance(a, b, away) >= away for a in tips for b in parts)

    def _distance(self, a: int, b: int, most: float) -> float:
        return float(mujoco.mj_geomDistance(self.model, self.data, a, b, most, None))

    def is_carried(self, thing: str, others: tuple[str, ...] = ()) -> bool:
        """Whether a thing is held and nothing but hands and `others` touches it."""
        supports = {b for a, b in self._pairs if a == thing and "/" not in b}
        return bool(self.arms_holding(thing)) and supports <= {*others, *(arm.name for arm in self.robot.arms)}

    def fingers(self, arm: Arm) -> float:
        """How far a gripper is open, from 0 to 1."""
        at = [float(self.data.joint(name).qpos[0]) for name in arm.fingers]
        parts = [(x - c) / (o - c) for x, c, o in zip(at, arm.closed, arm.open, strict=True)]
        return sum(parts) / 2


def _owner(model: Any, geom: int, robot: Robot) -> str:
    """The thing that a geom is part of, or the arm or its finger tip."""
    name = model.geom(geom).name
    if "/pad_" in name:
        return name
    body = int(model.geom_bodyid[geom])
    root = int(model.body_rootid[body])
    title = model.body(root if root else body).name
    for arm in robot.arms:
        if title == arm.root:
            return arm.name
    return title


def _name_pairs(a: str, b: str) -> list[tuple[str, str]]:
    """A contact as pairs of names: a finger tip also counts as its arm."""
    pairs = []
    for x in {a, a.split("/")[0]}:
        for y in {b, b.split("/")[0]}:
            pairs += [(x, y), (y, x)]
    return pairs
