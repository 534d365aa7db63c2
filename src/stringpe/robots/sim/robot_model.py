"""A robot as data: its arms, their joints and grippers, and its cameras; and what both robots add to their models of
MuJoCo."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .poses import Vector
from .simulator import mujoco


@dataclass(frozen=True)
class Arm:
    """An arm and its gripper.

    Its part of an action, and of a state, is the joint angles in radians followed by the gripper: 0 closed, 1 open.
    `<name>/grip` is the site between the finger tips: its x axis points out of the hand, its y axis along the opening.
    """

    name: str
    root: str  # the body that carries it
    joints: tuple[str, ...]
    home: tuple[float, ...]
    fingers: tuple[str, str]
    closed: tuple[float, float]  # finger joint positions
    open: tuple[float, float]
    neutral: float  # the finger axis, as an angle, of the hand that points down in front of the arm
    force: float = 20.0  # N, of the motor that moves both fingers

    @property
    def size(self) -> int:
        """Numbers of an action that are this arm's."""
        return len(self.joints) + 1


@dataclass(frozen=True)
class Robot:
    """A robot: arms in the order of its actions, and cameras. base: the body in whose frame the cameras are calibrated,
    "" for the world's."""

    name: str
    arms: tuple[Arm, ...]
    cameras: tuple[str, ...]
    base: str = ""

    @property
    def size(self) -> int:
        """Numbers of an action."""
        return sum(arm.size for arm in self.arms)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for every number of an action or state."""
        return tuple(f"{arm.name}/{part}" for arm in self.arms for part in (*arm.joints, "gripper"))


def add_servo(spec: Any, joint: str, stiffness: float, damping: float, force: float) -> None:
    """A position servo for a joint, with the joint's own friction taken out."""
    limits = spec.joint(joint).range
    spec.add_actuator(
        name=joint,
        target=joint,
        trntype=mujoco.mjtTrn.mjTRN_JOINT,
        gaintype=mujoco.mjtGain.mjGAIN_FIXED,
        biastype=mujoco.mjtBias.mjBIAS_AFFINE,
        gainprm=[stiffness, *([0.0] * 9)],
        biasprm=[0.0, -stiffness, -damping, *([0.0] * 7)],
        ctrlrange=limits,
        ctrllimited=True,
        forcerange=[-force, force],
        forcelimited=True,
    )


def couple(spec: Any, first: str, second: str) -> None:
    """Make the second finger mirror the first, as one motor of a real gripper does: what is held stays in place."""
    spec.add_equality(
        type=mujoco.mjtEq.mjEQ_JOINT,
        objtype=mujoco.mjtObj.mjOBJ_JOINT,
        name1=second,
        name2=first,
        data=[0.0, -1.0, *([0.0] * 9)],
        solref=[0.004, 1.0],
        solimp=[0.95, 0.99, 0.001, 0.5, 2.0],
    )


def set_options(spec: Any, timestep: float) -> None:
    """Physics for grasps that do not slip: elliptic cones with hard friction, stiff servos taken implicitly."""
    spec.option.timestep = timestep
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.cone = mujoco.mjtCone.mjCONE_ELLIPTIC
    spec.option.impratio = 10.0
    spec.option.iterations = 50


def add_pads(spec: Any, arm: str, bodies: tuple[str, str], pads: tuple[Any, Any], size: Vector) -> None:
    """Boxes as the finger tips, the only part of a finger that touches: flat, and with much friction."""
    for side, body, pad in zip("ab", bodies, pads, strict=True):
        spec.body(body).add_geom(
            name=f"{arm}/pad_{side}",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=size,
            pos=pad,
            rgba=[0.12, 0.12, 0.12, 1.0],
            friction=[1.6, 0.05, 0.002],
            condim=4,
            priority=1,
            solref=[0.008, 1.0],
            mass=0.01,
        )


def aim_camera(pos: Any, target: Any, up: Any = (0.0, 0.0, 1.0)) -> Vector:
    """The quaternion of a camera at `pos` that looks at `target`."""
    back = np.asarray(pos, float) - np.asarray(target, float)
    back /= np.linalg.norm(back)
    right = np.cross(np.asarray(up, float), back)
    right /= np.linalg.norm(right)
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, np.stack([right, np.cross(back, right), back], axis=1).flatten())
    return quat
