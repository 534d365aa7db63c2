"""Inverse kinematics: damped least squares on the Jacobian of a grip site."""

from typing import Any

import numpy as np

from .geometry import Pose, Vector, rotation_vector
from .robot_model import Arm
from .simulator import mujoco


class Kinematics:
    """The arms of a model without their physics: joints to grip poses and back."""

    def __init__(self, model: Any) -> None:
        self._model, self._data = model, mujoco.MjData(model)

    def pose(self, arm: Arm, joints: Vector) -> Pose:
        """Where the grip site is for joint angles (j,)."""
        self._set(arm, joints)
        return self._read(arm)

    def solve(
        self, arm: Arm, target: Pose, start: Vector, steps: int = 30, damping: float = 0.03
    ) -> tuple[Vector, float]:
        """Joint angles near `start` that bring the grip site to a pose, and the distance left (a radian is 0.1 m)."""
        adr = [int(self._model.joint(name).dofadr[0]) for name in arm.joints]
        low, high = np.array([self._model.joint(name).range for name in arm.joints]).T
        joints, jacobian = start.copy(), np.zeros((6, self._model.nv))
        site = self._model.site(f"{arm.name}/grip").id
        error = np.inf
        for _ in range(steps):
            self._set(arm, joints)
            here = self._read(arm)
            turn = here.turn @ rotation_vector(here.turn.T @ target.turn)
            gap = np.concatenate([target.pos - here.pos, 0.1 * turn])
            error = float(np.linalg.norm(gap))
            if error < 1e-4:
                break
            mujoco.mj_jacSite(self._model, self._data, jacobian[:3], jacobian[3:], site)
            part = jacobian[:, adr] * np.array([1, 1, 1, 0.1, 0.1, 0.1])[:, None]
            step = part.T @ np.linalg.solve(part @ part.T + damping**2 * min(1.0, 10 * error) * np.eye(6), gap)
            joints = np.clip(joints + np.clip(step, -0.3, 0.3), low, high)
        return joints, error

    def _set(self, arm: Arm, joints: Vector) -> None:
        for name, angle in zip(arm.joints, joints, strict=True):
            self._data.joint(name).qpos[0] = angle
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)

    def _read(self, arm: Arm) -> Pose:
        site = self._data.site(f"{arm.name}/grip")
        return Pose(site.xpos.copy(), site.xmat.reshape(3, 3).copy())
