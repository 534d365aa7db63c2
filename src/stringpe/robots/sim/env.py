"""The environment: a robot, a task, and cameras, as a gymnasium.Env."""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ...io.registry import unknown
from ..calibration import intrinsics_key, pinhole, pose_key
from .poses import Vector
from .robot_model import Robot
from .robot_task import RobotTask, draw_starts
from .scenery import Scenery
from .sensors import Cameras, DepthSensor
from .simulator import mujoco
from .things import add
from .world_state import World

RATE = 10  # actions per second
FLOOR = -0.7  # metres below the table of the KUKA scene
SETTLE = 0.2  # seconds of physics before the first observation
DIVERGED = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)

Observation = dict[str, npt.NDArray[Any]]


class RobotEnv(gym.Env[Any, npt.NDArray[np.float32]]):
    """A task on a robot.

    An action is the joint angles of every arm in radians, each arm followed by its gripper (0 closed, 1 open): targets
    that the servos reach over 1/10 s, on a straight line in joint space. The state has the same layout, as measured.

    Observation: `observation.state` (a,) float32; `observation.images.<camera>` (h, w, 3) uint8; with depth=True
    `observation.depth.<camera>` (h, w) float32 in metres, 0 where nothing was measured; with calibration=True
    `observation.camera.<camera>.intrinsics` (3, 3) and `observation.camera.<camera>.pose` (4, 4), robot from camera,
    where the robot's frame is KUKA's base, which its pedestal raises, and the world's for ALOHA.
    The reward is the share of the task's stages reached so far; an episode ends with success or after `max_steps`.
    info: `success`, `stage` (a number), `stage_name`.
    """

    fps = float(RATE)
    metadata = {"render_modes": ["rgb_array"], "render_fps": RATE}  # noqa: RUF012, as gymnasium declares it

    def __init__(
        self,
        task: RobotTask,
        robot: Robot,
        spec: Any,
        *,
        size: tuple[int, int] = (128, 128),
        cameras: tuple[str, ...] | None = None,
        depth: bool = False,
        calibration: bool = False,
        sensor: DepthSensor | None = None,
        seed: int | None = None,
        max_steps: int | None = None,
        scenery: Scenery | None = None,
        parked: tuple[str, ...] = (),
    ) -> None:
        self.task, self.robot = task, robot
        self.name, self.task_text = task.name, task.text
        self.cameras = robot.cameras if cameras is None else tuple(cameras)
        self._check(size)
        self.size, self.depth, self.calibration, self._sensor = size, depth, calibration, sensor
        self.max_steps = int(task.seconds * RATE) if max_steps is None else max_steps
        self.render_mode = "rgb_array"
        self._scenery, self._parked = scenery, parked
        for thing in task.things:
            add(spec, thing)
        self.model = spec.compile()
        self.data = mujoco.MjData(self.model)
        self.world = World(self.model, self.data, robot)
        self._substeps = round(1 / RATE / self.model.opt.timestep)
        self._servos = _Servos(self.model, robot)
        self._goal = task.goal()
        self._cameras: Cameras | None = None
        self._steps, self._seed = 0, seed
        self.action_space = gym.spaces.Box(*self._servos.limits, dtype=np.float32)
        self.observation_space = gym.spaces.Dict(self._spaces())

    def _check(self, size: tuple[int, int]) -> None:
        for camera in self.cameras:
            if camera not in self.robot.cameras:
                raise unknown(f"camera of {self.robot.name}", camera, self.robot.cameras)
        if len(size) != 2 or min(size) < 1:
            raise ValueError(f"size is (height, width) in pixels, got {size}")

    def _spaces(self) -> dict[str, gym.Space[Any]]:
        low, high = self._servos.limits
        spaces: dict[str, gym.Space[Any]] = {"observation.state": gym.spaces.Box(low - 1, high + 1, dtype=np.float32)}
        for camera in self.cameras:
            spaces[f"observation.images.{camera}"] = gym.spaces.Box(0, 255, (*self.size, 3), np.uint8)
            if self.depth:
                spaces[f"observation.depth.{camera}"] = gym.spaces.Box(0.0, np.inf, self.size, np.float32)
            if self.calibration:
                spaces[intrinsics_key(camera)] = gym.spaces.Box(-np.inf, np.inf, (3, 3), np.float32)
                spaces[pose_key(camera)] = gym.spaces.Box(-np.inf, np.inf, (4, 4), np.float32)
        return spaces

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages of the task in words; the last one is success."""
        return self._goal.stages

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new episode; the same seed gives the same initial state, exactly."""
        self.restart(seed)
        return self.look(), self._info(0)

    def restart(self, seed: int | None = None) -> None:
        """As `reset`, without taking pictures."""
        seed = self._seed if seed is None else seed
        super().reset(seed=seed)
        self._seed = None
        mujoco.mj_resetData(self.model, self.data)
        self._servos.home(self.data)
        self._place_objects(seed)
        mujoco.mj_step(self.model, self.data, round(SETTLE / self.model.opt.timestep))
        self._goal, self._steps = self.task.goal(), 0
        self.refresh()

    def _place_objects(self, seed: int | None) -> None:
        """Draw the scenery, then initial positions; objects that this episode does without stand behind the camera."""
        height: float = 0.0
        absent: tuple[str, ...] = ()
        if self._scenery is not None:
            drawn = self._scenery.draw(int(self.np_random.integers(2**31)) if seed is None else seed)
            self._scenery.apply(self.model, drawn)
            height, absent = drawn.table_height, self._parked[drawn.distractors :]
        for number, name in enumerate(absent):
            self.move(name, (2.5, 0.4 * number, FLOOR))
        for name, (pos, turn) in draw_starts(self.task, self.np_random, height, absent).items():
            self.move(name, pos, turn)

    def move(self, name: str, pos: npt.ArrayLike, turn: Vector | None = None) -> None:
        """Put a thing somewhere, at rest: for initial states and for tests of goals."""
        quat = np.array([1.0, 0.0, 0.0, 0.0])
        if turn is not None:
            mujoco.mju_mat2Quat(quat, np.ascontiguousarray(turn).flatten())
        body = self.model.body(name)
        if body.jntnum[0]:
            self.data.joint(name).qpos[:] = np.concatenate([np.asarray(pos, float), quat])
            self.data.joint(name).qvel[:] = 0.0
        else:
            body.pos[:], body.quat[:] = pos, quat

    def refresh(self) -> None:
        """Bring the derived state (poses, contacts) up to date with positions that were set by hand."""
        mujoco.mj_forward(self.model, self.data)
        self.world.observe_contacts()

    def step(self, action: npt.ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take an action; targets outside the joints' limits are clipped to them."""
        info = self.advance(action)
        reward = info["stage"] / len(self._goal.stages)
        return self.look(), reward, info["success"], self._steps >= self.max_steps, info

    def advance(self, action: npt.ArrayLike) -> dict[str, Any]:
        """As `step`, without taking pictures: the physics and the goal of one action; returns info."""
        target = self._servos.check(action)
        before = self.data.ctrl.copy()
        for count in range(1, self._substeps + 1):
            self.data.ctrl[:] = before + (target - before) * count / self._substeps
            mujoco.mj_step(self.model, self.data)
        self._steps += 1
        if any(self.data.warning[kind].number for kind in DIVERGED):  # MuJoCo has reset itself by then
            raise FloatingPointError(f"the simulation of {self.name} diverged after {self._steps} actions")
        self.refresh()
        return self._info(self._goal.update(self.world))

    def _info(self, stage: int) -> dict[str, Any]:
        names = ("start", *self._goal.stages)
        return {"success": stage == len(self._goal.stages), "stage": stage, "stage_name": names[stage]}

    def state(self) -> npt.NDArray[np.float32]:
        """The measured joints and grippers, (a,)."""
        return self._servos.read(self.data, self.world)

    def look(self) -> Observation:
        """The current observation."""
        observation: Observation = {"observation.state": self.state()}
        for camera in self.cameras:
            observation[f"observation.images.{camera}"] = self._open_cameras().rgb(self.data, camera)
            if self.depth:
                depth = self._open_cameras().depth(self.data, camera)
                depth = depth if self._sensor is None else self._sensor(depth, self.np_random)
                observation[f"observation.depth.{camera}"] = depth
            if self.calibration:
                observation[intrinsics_key(camera)] = self.intrinsics(camera)
                observation[pose_key(camera)] = self.world.camera(camera).matrix()
        return observation

    def intrinsics(self, camera: str) -> npt.NDArray[np.float32]:
        """K of a camera's pictures, (3, 3)."""
        return pinhole(self.size, float(self.model.cam(camera).fovy[0]))

    def snapshot(self) -> npt.NDArray[np.float64]:
        """The current state of the physics, for `show` before the next reset."""
        state = np.empty(mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
        mujoco.mj_getState(self.model, self.data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        return state

    def show(self, snapshot: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
        """What the cameras saw at a snapshot, side by side in the order of their names: (h, cameras · w, 3)."""
        mujoco.mj_setState(self.model, self.data, snapshot, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        mujoco.mj_forward(self.model, self.data)
        return np.concatenate([self._open_cameras().rgb(self.data, camera) for camera in sorted(self.cameras)], axis=1)

    def _open_cameras(self) -> Cameras:
        """The cameras, opened on first use: without pictures nothing that renders is needed."""
        if self._cameras is None:
            self._cameras = Cameras(self.model, self.size)
        return self._cameras

    def render(self) -> npt.NDArray[np.uint8]:
        """The first camera's picture."""
        return self._open_cameras().rgb(self.data, (*self.cameras, *self.robot.cameras)[0])

    def close(self) -> None:
        """Release the cameras."""
        self._cameras = None


class _Servos:
    """Between actions and MuJoCo's controls, where a gripper is its first finger."""

    def __init__(self, model: Any, robot: Robot) -> None:
        self._robot = robot
        low: list[float] = []
        high: list[float] = []
        for arm in robot.arms:
            for joint in arm.joints:
                low.append(float(model.joint(joint).range[0]))
                high.append(float(model.joint(joint).range[1]))
            low.append(0.0)
            high.append(1.0)
        self.limits = (np.array(low, np.float32), np.array(high, np.float32))
        self._index = {model.actuator(i).name: i for i in range(model.nu)}

    def home(self, data: Any) -> None:
        """Arms at their home pose, grippers open."""
        for arm in self._robot.arms:
            for joint, angle in zip(arm.joints + arm.fingers, arm.home + arm.open, strict=True):
                data.joint(joint).qpos[0] = angle
                if joint in self._index:
                    data.ctrl[self._index[joint]] = angle

    def check(self, action: npt.ArrayLike) -> Vector:
        """The controls of an action; ValueError for one of another size, or with numbers that are not finite."""
        values = np.asarray(action, np.float32)
        if values.shape != (self._robot.size,):
            names = ", ".join(f"{arm.size} for {arm.name}" for arm in self._robot.arms)
            raise ValueError(
                f"an action of {self._robot.name} has {self._robot.size} numbers ({names}), got {values.shape}"
            )
        if not np.isfinite(values).all():
            bad = [self._robot.names[i] for i in np.flatnonzero(~np.isfinite(values))]
            raise ValueError(f"actions must be finite, got nan or infinity for {', '.join(bad)}")
        values = np.clip(values, *self.limits)
        controls = np.zeros(len(self._index))
        offset = 0
        for arm in self._robot.arms:
            part = values[offset : offset + arm.size]
            for joint, angle in zip(arm.joints, part, strict=False):
                controls[self._index[joint]] = angle
            controls[self._index[arm.fingers[0]]] = arm.closed[0] + float(part[-1]) * (arm.open[0] - arm.closed[0])
            offset += arm.size
        return controls

    def read(self, data: Any, world: World) -> npt.NDArray[np.float32]:
        """The state, in the layout of an action."""
        state: list[float] = []
        for arm in self._robot.arms:
            state += [float(data.joint(joint).qpos[0]) for joint in arm.joints]
            state.append(world.fingers(arm))
        return np.array(state, np.float32)
