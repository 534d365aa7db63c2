"""KUKA: an IIWA arm with a parallel gripper at a table, from the model files of robosuite.

Ours are the servos, the finger tips, the table, the light and the cameras. The visual meshes (197 thousand faces) are
left out; the collision meshes are what is seen.
"""

from typing import Any

import numpy as np

from .robot import Arm, Robot, add_pads, add_servo, couple, look, set_options
from .simulator import asset_folder, mujoco

STIFFNESS = (2000.0, 2000.0, 1500.0, 1500.0, 800.0, 500.0, 300.0)  # N m / rad
DAMPING = (200.0, 200.0, 150.0, 120.0, 60.0, 40.0, 20.0)
TIMESTEP = 0.004
TABLE = (0.58, 0.0)  # the middle of the table; the arm stands at the origin
GRIP = 0.094  # metres from the flange to the point between the finger tips

HALF = 0.7071067811865476
PADS = ((0.0, -0.0055, -0.0194), (0.0, 0.0055, -0.0194))  # inner faces meet in the middle when closed

KUKA = Robot(
    "kuka",
    arms=(
        Arm(
            "arm",
            root="kuka/base",
            joints=tuple(f"kuka/joint_{number}" for number in range(1, 8)),
            home=(0.0, 0.45, 0.0, -1.75, 0.0, 0.94, 0.0),
            fingers=("kuka/hand/finger_joint1", "kuka/hand/finger_joint2"),
            closed=(0.0, 0.0),
            open=(0.04, -0.04),
            neutral=-float(np.pi / 2),
            force=40.0,
        ),
    ),
    cameras=("front", "wrist"),
)
LIGHTS: dict[str, dict[str, Any]] = {
    "normal": {"ambient": 0.35, "diffuse": (0.5, 0.5, 0.5), "dir": (-0.3, 0.4, -1.0)},
    "dim": {"ambient": 0.1, "diffuse": (0.22, 0.22, 0.24), "dir": (-0.3, 0.4, -1.0)},
    "warm": {"ambient": 0.25, "diffuse": (0.9, 0.55, 0.2), "dir": (0.3, -0.4, -1.0)},
    "side": {"ambient": 0.15, "diffuse": (0.95, 0.95, 1.0), "dir": (0.1, -1.0, -0.25)},
}


def spec(lighting: str = "normal", table_height: float = 0.0) -> Any:
    """The model specification of the arm, the table, the light and the cameras, without things."""
    if lighting not in LIGHTS:
        raise ValueError(f"no lighting {lighting!r}: choose one of {', '.join(LIGHTS)}")
    if not -0.1 <= table_height <= 0.15:
        raise ValueError(f"table_height is metres from the usual height, from -0.1 to 0.15, got {table_height}")
    model = mujoco.MjSpec()
    model.modelname = "kuka"
    model.compiler.degree = False
    set_options(model, TIMESTEP)
    model.worldbody.add_frame().attach_body(_arm().body("base"), "kuka/", "")
    _mend(model, KUKA.arms[0])
    _surroundings(model, lighting, table_height)
    return model


def _arm() -> Any:
    """robosuite's arm and hand as one body tree, without motors, sensors and what is only seen."""
    folder = asset_folder("robosuite", "models", "assets")
    arm = mujoco.MjSpec.from_file(str(folder / "robots" / "iiwa" / "robot.xml"))
    hand = mujoco.MjSpec.from_file(str(folder / "grippers" / "panda_gripper.xml"))
    for part in (arm, hand):
        part.compiler.degree = False  # robosuite says so in a file that includes these
        unused = [geom for geom in part.geoms if geom.name.endswith(("visual", "pad_collision"))]
        unused += [mesh for mesh in part.meshes if "_vis" in mesh.name]
        for each in [*part.actuators, *part.sensors, *part.cameras, *part.sites, *unused]:
            part.delete(each)
    arm.body("right_hand").add_frame().attach_body(hand.body("right_gripper"), "hand/", "")
    return arm


def _mend(model: Any, arm: Arm) -> None:
    """Servos, finger tips, the grip site and a wrist camera."""
    for name in (*arm.joints, *arm.fingers):
        joint = model.joint(name)
        joint.frictionloss, joint.damping = 0.0, [0.0, 0.0, 0.0]
        joint.armature = 0.1 if name in arm.joints else 0.05
    for name, stiffness, damping in zip(arm.joints, STIFFNESS, DAMPING, strict=True):
        add_servo(model, name, stiffness, damping, force=300.0)
    add_servo(model, arm.fingers[0], 3000.0, 80.0, arm.force)
    couple(model, *arm.fingers)
    for body in model.bodies:
        if body.name.startswith("kuka/"):
            body.gravcomp = 1.0
    for name in ("finger1", "finger2"):
        geom = model.geom(f"kuka/hand/{name}_collision")
        geom.contype = geom.conaffinity = 0
    tips = ("kuka/hand/finger_joint1_tip", "kuka/hand/finger_joint2_tip")
    add_pads(model, arm.name, tips, PADS, size=np.array([0.01, 0.003, 0.019]))
    flange = model.body("kuka/right_hand")
    # x of the grip site is z of the flange, which points out of the hand; y is the line from finger to finger
    flange.add_site(name=f"{arm.name}/grip", pos=[0, 0, GRIP], quat=[HALF, 0, -HALF, 0], group=4)
    at = (0.07, 0.0, 0.0)
    flange.add_camera(name="wrist", pos=at, quat=look(at, (0.015, 0.0, 0.2), up=(1, 0, 0)), fovy=75.0)


def _surroundings(model: Any, lighting: str, table_height: float) -> None:
    light = LIGHTS[lighting]
    model.visual.quality.offsamples = 0
    model.visual.headlight.ambient = [light["ambient"]] * 3
    model.visual.headlight.diffuse = [light["ambient"]] * 3
    model.visual.map.znear = 0.01
    model.visual.map.zfar = 10.0
    model.stat.extent = 1.0
    model.add_texture(
        name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.78, 0.8], rgb2=[0.45, 0.45, 0.45], width=32, height=192,
    )  # fmt: skip
    world = model.worldbody
    kind = mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    world.add_light(type=kind, pos=[0, 0, 2], dir=light["dir"], diffuse=light["diffuse"], castshadow=False)
    table = world.add_body(name="table", pos=[*TABLE, table_height])
    wood = [0.5, 0.43, 0.36, 1]
    table.add_geom(name="table:0", type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.3, 0.45, 0.02], pos=[0, 0, -0.02], rgba=wood)
    floor = mujoco.mjtGeom.mjGEOM_PLANE
    world.add_geom(name="floor", type=floor, size=[3, 3, 0.1], pos=[0, 0, -0.7], rgba=[0.35, 0.36, 0.38, 1])
    front = (1.25, 0.0, 0.62)
    world.add_camera(name="front", pos=front, quat=look(front, (0.52, 0, 0.05)), fovy=42.0)
