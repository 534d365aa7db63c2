"""KUKA: an LBR iiwa 7 R800 with a parallel gripper at a table, built from primitives.

The arm has the published kinematics: distances of 0.34 m from base to shoulder, 0.40 m to the elbow, 0.40 m to the
wrist and 0.125 m to the flange; axes that alternate between along and across the arm; the joint limits and the masses
of the links. Capsules and boxes stand in for the shells. The gripper has the sizes of a Franka hand.
"""

from typing import Any

import numpy as np

from .robot_model import Arm, Robot, add_pads, add_servo, aim_camera, couple, set_options
from .simulator import mujoco

STIFFNESS = (2000.0, 2000.0, 1500.0, 1500.0, 800.0, 500.0, 300.0)  # N m / rad
DAMPING = (200.0, 200.0, 150.0, 120.0, 60.0, 40.0, 20.0)
TIMESTEP = 0.004
TABLE = (0.58, 0.0)  # the middle of the table; the arm stands at the origin
GRIP = 0.094  # metres from the flange to the point between the finger tips

SQRT_HALF = 0.7071067811865476  # of the quaternion of a quarter turn
PADS = ((0.0, 0.003, 0.0366), (0.0, -0.003, 0.0366))  # in the fingers' frames: inner faces meet when closed
GREY, ORANGE, WHITE = (0.4, 0.4, 0.4, 1.0), (1.0, 0.42, 0.04, 1.0), (0.85, 0.85, 0.85, 1.0)

# Height of a joint above the one before, its axis, its limit in radians; mass, radius, length and colour of its link.
LINKS = (
    (0.15, (0, 0, 1), 2.96706, 3.4525, 0.068, 0.12, GREY),
    (0.19, (0, 1, 0), 2.0944, 3.4821, 0.068, 0.16, ORANGE),
    (0.21, (0, 0, 1), 2.96706, 4.05623, 0.062, 0.13, GREY),
    (0.19, (0, -1, 0), 2.0944, 3.4822, 0.06, 0.16, ORANGE),
    (0.21, (0, 0, 1), 2.96706, 2.1633, 0.055, 0.13, GREY),
    (0.19, (0, 1, 0), 2.0944, 2.3466, 0.05, 0.03, ORANGE),
    (0.081, (0, 0, 1), 3.05433, 3.129, 0.038, 0.02, GREY),
)
FLANGE = 0.044  # metres from the last joint to the flange

KUKA = Robot(
    "kuka",
    arms=(
        Arm(
            "arm",
            root="kuka/base",
            joints=tuple(f"kuka/joint_{number}" for number in range(1, 8)),
            home=(0.0, 0.45, 0.0, -1.75, 0.0, 0.94, 0.0),
            fingers=("kuka/finger_1", "kuka/finger_2"),
            closed=(0.0, 0.0),
            open=(0.04, -0.04),
            neutral=-float(np.pi / 2),
            force=40.0,
        ),
    ),
    cameras=("front", "wrist"),
    base="kuka/base",
)


def spec() -> Any:
    """The model specification of the arm, the table, the light and the cameras, without objects."""
    model = mujoco.MjSpec()
    model.modelname = "kuka"
    model.compiler.degree = False
    set_options(model, TIMESTEP)
    _add_hand(_add_arm(model), KUKA.arms[0])
    _add_motors(model, KUKA.arms[0])
    _add_surroundings(model)
    return model


def _add_arm(model: Any) -> Any:
    """Base and seven links, one above the other; returns the body of the flange."""
    body = model.worldbody.add_body(name="kuka/base")
    cylinder = mujoco.mjtGeom.mjGEOM_CYLINDER
    body.add_geom(type=cylinder, size=[0.09, 0.07, 0], pos=[0, 0, 0.07], rgba=GREY, **_TOUCHED)
    body.add_geom(type=cylinder, size=[0.1, 0.35, 0], pos=[0, 0, -0.35], rgba=[0.3, 0.3, 0.32, 1], **_TOUCHED)
    for number, (height, axis, limit, mass, radius, length, colour) in enumerate(LINKS, 1):
        body = body.add_body(name=f"kuka/link_{number}", pos=[0, 0, height])
        joint = body.add_joint(name=f"kuka/joint_{number}", axis=axis, armature=0.1)
        joint.limited, joint.range = mujoco.mjtLimited.mjLIMITED_TRUE, [-limit, limit]
        ends = [0.0, 0.0, 0.0, 0.0, 0.0, length]
        capsule = mujoco.mjtGeom.mjGEOM_CAPSULE
        body.add_geom(type=capsule, fromto=ends, size=[radius, 0, 0], rgba=colour, mass=mass, **_TOUCHED)
    # Its y axis is the line from finger to finger, its z axis points out of the hand.
    return body.add_body(name="kuka/flange", pos=[0, 0, FLANGE], quat=[0, 0, 0, 1])


def _add_hand(flange: Any, arm: Arm) -> None:
    """The gripper, the grip site and the wrist camera."""
    box = mujoco.mjtGeom.mjGEOM_BOX
    flange.add_geom(type=box, size=[0.022, 0.1, 0.02], pos=[0, 0, 0.036], rgba=WHITE, mass=0.2, **_TOUCHED)
    flange.add_geom(type=box, size=[0.022, 0.045, 0.01], pos=[0, 0, 0.008], rgba=WHITE, mass=0.1, **_TOUCHED)
    for name, side in zip(arm.fingers, (1, -1), strict=True):
        finger = flange.add_body(name=name, pos=[0, 0, 0.0524])
        joint = finger.add_joint(name=name, type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[0, 1, 0], armature=0.05)
        joint.limited, joint.range = mujoco.mjtLimited.mjLIMITED_TRUE, sorted([0.0, 0.04 * side])
        finger.add_geom(
            type=box, size=[0.009, 0.006, 0.022], pos=[0, 0.012 * side, 0.02], rgba=[0.5, 0.5, 0.5, 1], mass=0.1,
            contype=0, conaffinity=0,
        )  # fmt: skip
    # x of the grip site is z of the flange; y is the line from finger to finger
    flange.add_site(name=f"{arm.name}/grip", pos=[0, 0, GRIP], quat=[SQRT_HALF, 0, -SQRT_HALF, 0], group=4)
    at = (0.07, 0.0, 0.0)
    flange.add_camera(name="wrist", pos=at, quat=aim_camera(at, (0.015, 0.0, 0.2), up=(1, 0, 0)), fovy=75.0)


def _add_motors(model: Any, arm: Arm) -> None:
    """Servos, gravity compensation and finger tips."""
    for name, stiffness, damping in zip(arm.joints, STIFFNESS, DAMPING, strict=True):
        add_servo(model, name, stiffness, damping, force=300.0)
    add_servo(model, arm.fingers[0], 3000.0, 80.0, arm.force)
    couple(model, *arm.fingers)
    for body in model.bodies:
        if body.name.startswith("kuka/"):
            body.gravcomp = 1.0
    add_pads(model, arm.name, arm.fingers, PADS, size=np.array([0.01, 0.003, 0.019]))


def _add_surroundings(model: Any) -> None:
    """Table, floor, light and the front camera. `Scenery` changes light and heights from episode to episode."""
    model.visual.quality.offsamples = 0
    model.visual.map.znear = 0.01
    model.visual.map.zfar = 10.0
    model.stat.extent = 1.0
    model.add_texture(
        name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.78, 0.8], rgb2=[0.45, 0.45, 0.45], width=32, height=192,
    )  # fmt: skip
    world = model.worldbody
    world.add_light(name="lamp", type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, pos=[0, 0, 2], castshadow=False)
    table = world.add_body(name="table", pos=[*TABLE, 0.0])
    wood = [0.5, 0.43, 0.36, 1]
    table.add_geom(name="table:0", type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.3, 0.45, 0.02], pos=[0, 0, -0.02], rgba=wood)
    floor = mujoco.mjtGeom.mjGEOM_PLANE
    world.add_geom(name="floor", type=floor, size=[3, 3, 0.1], pos=[0, 0, -0.7], rgba=[0.35, 0.36, 0.38, 1])
    front = (1.25, 0.0, 0.62)
    world.add_camera(name="front", pos=front, quat=aim_camera(front, (0.52, 0, 0.05)), fovy=42.0)


_TOUCHED = {"contype": 0, "conaffinity": 1}  # objects collide with the arm, the arm not with itself
