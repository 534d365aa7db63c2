"""Experts: they play a script, phases of Cartesian way-points relative to things, as joint targets.

A script (see `scripts`) is data. A `Phase` says where one or both hands go next, how far their fingers are open, and
what they carry. Way-points are computed when their phase begins, so that the hand reaches a thing that has moved, and
puts a thing down straight that sits askew in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .poses import Pose, Vector, between, grip_down, heading, rotation_about, rotation_vector
from .robot_model import Arm
from .robot_task import RobotTask
from .simulator import mujoco
from .things import Grasp
from .world_state import World

SPEED = 0.28  # m/s
TURN = 1.6  # rad/s
_STEPS, _DAMPING = 30, 0.03  # of inverse kinematics


@dataclass(frozen=True)
class WayPoint:
    """Where a hand goes: to `lift` metres above a grasp of a thing, or to where what it carries is at an `offset`.

    frame: The thing that the way-point is relative to; "" is the table, "home" the arm's home pose, and "up" is `lift`
        metres straight up from where the hand is.
    grasp: Of that thing, where the hand goes; `offset` is then added in the world's axes.
    carry: The thing in the hand that goes to `offset` in the frame, upright; it keeps its heading, or takes one of
        `headings` relative to the frame's, the nearest.
    """

    frame: str = ""
    grasp: Grasp | None = None
    offset: tuple[float, float, float] = (0.0, 0.0, 0.0)
    carry: str = ""
    headings: tuple[float, ...] = ()
    lift: float = 0.0
    jitter: float = 0.0  # metres of noise, where it does no harm


@dataclass(frozen=True)
class Phase:
    """One step of an expert: a way-point and an opening of the gripper for each arm that acts, by the arm's name; the
    others stay as they are. It takes `seconds` or more; `speed` is a multiple of the usual one."""

    ways: dict[str, WayPoint]
    grips: dict[str, float]
    seconds: float = 0.0
    speed: float = 1.0


HOME = WayPoint(frame="home")
Script = Callable[[World, np.random.Generator], list[Phase]]
"""The phases of a demonstration, for a world as it stands and the randomness of one demonstration."""


class Expert:
    """Plays the phases of a task's expert; `act()` gives the next action, and None when there are no more."""

    def __init__(self, env: Any, seed: int = 0, noise: float = 1.0) -> None:
        task: RobotTask = env.task
        if task.expert is None:
            raise ValueError(
                f"{task.name} has no expert yet: its environment and success test work, demonstrations do not"
            )
        self._world: World = env.world
        self._rng, self._noise = np.random.default_rng(seed), noise
        self._kinematics, self._rate = Kinematics(env.model), env.fps
        self._arms = {arm.name: arm for arm in env.robot.arms}
        self._joints = {arm.name: np.array(arm.home) for arm in env.robot.arms}
        self._grip = dict.fromkeys(self._arms, 1.0)
        self._phases = list(task.expert(self._world, self._rng))
        self._pace = 1.0 + noise * self._rng.uniform(-0.15, 0.15)
        self._plan: list[tuple[dict[str, Vector], dict[str, float]]] = []
        self.unreached = 0.0  # the largest distance that inverse kinematics left

    def act(self) -> npt.NDArray[np.float32] | None:
        """The next action (a,), or None after the last phase."""
        while not self._plan:
            if not self._phases:
                return None
            self._plan = self._start(self._phases.pop(0))
        joints, grip = self._plan.pop(0)
        self._joints.update(joints)
        self._grip.update(grip)
        parts = [[*self._joints[name], self._grip[name]] for name in self._arms]
        return np.concatenate(parts).astype(np.float32)

    def _start(self, phase: Phase) -> list[tuple[dict[str, Vector], dict[str, float]]]:
        """The actions of a phase: straight lines in space, slow at both ends."""
        begin = {name: self._kinematics.pose(self._arms[name], self._joints[name]) for name in phase.ways}
        end = {name: self._target(self._arms[name], way) for name, way in phase.ways.items()}
        durations = [phase.seconds]
        for name, pose in end.items():
            angle = np.arccos(np.clip((np.trace(begin[name].turn.T @ pose.turn) - 1) / 2, -1, 1))
            length = float(np.linalg.norm(pose.pos - begin[name].pos))
            durations += [length / SPEED / phase.speed, float(angle) / TURN / phase.speed]
        count = max(1, int(np.ceil(self._rate * self._pace * max(durations))))
        before, joints, plan = dict(self._grip), dict(self._joints), []
        for step in range(1, count + 1):
            share = step / count
            smooth = share * share * (3 - 2 * share)
            for name, pose in end.items():
                wanted = between(begin[name], pose, smooth)
                joints[name], error = self._kinematics.solve(self._arms[name], wanted, joints[name])
                self.unreached = max(self.unreached, error)
            grips = {name: before[name] + min(1.0, 2 * share) * (g - before[name]) for name, g in phase.grips.items()}
            plan.append(({name: joints[name] for name in end}, grips))
        return plan

    def _target(self, arm: Arm, way: WayPoint) -> Pose:
        """The grip pose of a way-point, now."""
        if way.frame == "home":
            return self._kinematics.pose(arm, np.array(arm.home))
        if way.frame == "up":
            here = self._kinematics.pose(arm, self._joints[arm.name])
            return Pose(here.pos + np.array([0.0, 0.0, way.lift]), here.turn)
        frame = self._world.pose(way.frame) if way.frame else Pose(np.zeros(3), np.eye(3))
        level = Pose(frame.pos, rotation_about("z", heading(frame.turn)))
        shake = self._noise * self._rng.normal(size=3) * way.jitter
        up = np.array([0.0, 0.0, way.lift]) + shake
        if way.carry:
            held = self._world.pose(way.carry)
            angle = heading(held.turn)
            if way.headings:
                angle = choose_heading(angle, [heading(frame.turn) + option for option in way.headings])
            goal = Pose(level.apply(way.offset) + up, rotation_about("z", angle))
            return goal.then(held.relative(self._world.grip(arm.name)))
        assert way.grasp is not None, "a way-point is a grasp, or where something that is carried goes"
        axis = align_axis(heading(frame.turn) + way.grasp.fingers, arm.neutral)
        return Pose(frame.apply(way.grasp.offset) + np.array(way.offset) + up, grip_down(axis))


class Kinematics:
    """The arms of a model without their physics: from joints to grip poses, and back by damped least squares on the
    Jacobian of the grip site."""

    def __init__(self, model: Any) -> None:
        self._model, self._data = model, mujoco.MjData(model)

    def pose(self, arm: Arm, joints: Vector) -> Pose:
        """Where the grip site is for joint angles (j,)."""
        self._set(arm, joints)
        return self._read(arm)

    def solve(self, arm: Arm, target: Pose, start: Vector) -> tuple[Vector, float]:
        """Joint angles near `start` that bring the grip site to a pose, and the distance left (a radian is 0.1 m)."""
        adr = [int(self._model.joint(name).dofadr[0]) for name in arm.joints]
        low, high = np.array([self._model.joint(name).range for name in arm.joints]).T
        joints, jacobian = start.copy(), np.zeros((6, self._model.nv))
        site = self._model.site(f"{arm.name}/grip").id
        error = np.inf
        for _ in range(_STEPS):
            self._set(arm, joints)
            here = self._read(arm)
            turn = here.turn @ rotation_vector(here.turn.T @ target.turn)
            gap = np.concatenate([target.pos - here.pos, 0.1 * turn])
            error = float(np.linalg.norm(gap))
            if error < 1e-4:
                break
            mujoco.mj_jacSite(self._model, self._data, jacobian[:3], jacobian[3:], site)
            part = jacobian[:, adr] * np.array([1, 1, 1, 0.1, 0.1, 0.1])[:, None]
            step = part.T @ np.linalg.solve(part @ part.T + _DAMPING**2 * min(1.0, 10 * error) * np.eye(6), gap)
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


def wrap_angle(angle: float) -> float:
    """An angle in (−π, π]."""
    return float(np.arctan2(np.sin(angle), np.cos(angle)))


def choose_heading(angle: float, options: Sequence[float]) -> float:
    """The option that is the smallest turn away."""
    return min(options, key=lambda option: abs(wrap_angle(option - angle)))


def align_axis(axis: float, neutral: float) -> float:
    """The finger axis, turned by π if that is nearer to the arm's neutral: the two fingers are alike."""
    return neutral + (wrap_angle(2 * (axis - neutral)) / 2)
