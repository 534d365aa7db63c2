"""ALOHA: two ViperX arms that face each other over a table, from the model files of gym-aloha.

The arms are gym-aloha's. What is ours: the servos (gym-aloha's joints have so much dry friction that small motions are
lost), the finger tips (boxes, which grasp well), the cameras, and boxes in place of the meshes with the most faces.
"""

from typing import Any

from .robot_model import Arm, Robot, add_pads, add_servo, aim_camera, couple, set_options
from .simulator import asset_folder, mujoco

JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
STIFFNESS = (600.0, 900.0, 600.0, 150.0, 150.0, 60.0)  # N m / rad
DAMPING = (35.0, 45.0, 25.0, 5.0, 5.0, 2.0)
TIMESTEP = 0.004
TIP = 0.154  # metres from the wrist's last link to the end of the fingers
GRIP = 0.14  # to the point that grasps are given for


def _arm(side: str, neutral: float) -> Arm:
    prefix = f"vx300s_{side}/"
    return Arm(
        side,
        root=f"vx300s_{side}",
        joints=tuple(prefix + joint for joint in JOINTS),
        home=(0.0, -0.96, 1.16, 0.0, 0.6, 0.0),
        fingers=(prefix + "left_finger", prefix + "right_finger"),
        closed=(0.021, -0.021),
        open=(0.057, -0.057),
        neutral=neutral,
    )


QUARTER_TURN = 1.5707963267948966
ALOHA = Robot(
    "aloha",
    arms=(_arm("left", QUARTER_TURN), _arm("right", -QUARTER_TURN)),
    cameras=("overhead", "left_wrist", "right_wrist", "table"),
)


def spec() -> Any:
    """The model specification of the arms, the table, the light and the cameras, without things."""
    folder = asset_folder("gym_aloha", "assets")
    includes = "".join(f'<include file="{folder / name}"/>' for name in ("vx300s_left.xml", "vx300s_right.xml"))
    xml = f"""<mujoco model="aloha">
        <include file="{folder / "vx300s_dependencies.xml"}"/>
        <compiler meshdir="{folder}" angle="radian" inertiafromgeom="auto" inertiagrouprange="4 5"/>
        <worldbody>{includes}</worldbody>
    </mujoco>"""
    model = mujoco.MjSpec.from_string(xml)
    model.compiler.inertiagrouprange = [0, 5]
    set_options(model, TIMESTEP)
    for arm in ALOHA.arms:
        _equip(model, arm)
    _add_surroundings(model)
    return model


def _equip(model: Any, arm: Arm) -> None:
    """Servos, finger tips, plain shapes and a wrist camera for an arm of gym-aloha."""
    prefix = f"vx300s_{arm.name}/"
    for name in (*arm.joints, *arm.fingers):
        joint = model.joint(name)
        joint.frictionloss = 0.0
        joint.armature = 0.05 if name in arm.joints else 0.02
    for name, stiffness, damping in zip(arm.joints, STIFFNESS, DAMPING, strict=True):
        add_servo(model, name, stiffness, damping, force=150.0)
    add_servo(model, arm.fingers[0], 2000.0, 60.0, arm.force)
    couple(model, *arm.fingers)
    for body in model.bodies:
        if body.name.startswith(f"vx300s_{arm.name}"):
            body.gravcomp = 1.0
    for name in ("7_gripper", "9_gripper_bar", "8_gripper_prop"):
        model.delete(model.geom(prefix + name))
    for name in ("1_base", "2_shoulder", "3_upper_arm", "10_left_gripper_finger", "10_right_gripper_finger"):
        geom = model.geom(prefix + name)
        geom.contype = geom.conaffinity = 0
    hand = model.body(prefix + "gripper_link")
    black = [0.15, 0.15, 0.16, 1.0]
    box = mujoco.mjtGeom.mjGEOM_BOX
    hand.add_geom(
        name=f"{arm.name}/palm", type=box, size=[0.022, 0.02, 0.026], pos=[0.021, 0, 0.006], rgba=black, mass=0.1
    )
    hand.add_geom(name=f"{arm.name}/bar", type=box, size=[0.014, 0.072, 0.024], pos=[0.05, 0, 0], rgba=black, mass=0.1)
    hand.add_site(name=f"{arm.name}/grip", pos=[GRIP, 0, 0], group=4)
    # the finger links sit at 0.0687; at joint 0.021 the inner faces of the two pads meet in the middle
    pads = tuple((TIP - 0.0687 - 0.026, side * (0.003 - 0.021), 0.0) for side in (1, -1))
    fingers = (prefix + "left_finger_link", prefix + "right_finger_link")
    add_pads(model, arm.name, fingers, pads, size=[0.026, 0.003, 0.008])  # type: ignore[arg-type]
    for camera in list(hand.cameras):
        model.delete(camera)
    at = (0.03, 0.0, 0.085)
    hand.add_camera(name=f"{arm.name}_wrist", pos=at, quat=aim_camera(at, (0.17, 0, 0.005), up=(0, 0, 1)), fovy=75.0)


def _add_surroundings(model: Any) -> None:
    """Table, light and the two cameras that stand still."""
    model.visual.global_.offwidth = model.visual.global_.offheight = 1024
    model.visual.quality.offsamples = 0
    model.visual.headlight.ambient = [0.35, 0.35, 0.35]
    model.visual.headlight.diffuse = [0.35, 0.35, 0.35]
    model.visual.map.znear = 0.005
    model.visual.map.zfar = 10.0
    model.stat.extent = 1.0
    model.stat.center = [0.0, 0.5, 0.1]
    model.add_texture(
        name="sky", type=mujoco.mjtTexture.mjTEXTURE_SKYBOX, builtin=mujoco.mjtBuiltin.mjBUILTIN_GRADIENT,
        rgb1=[0.75, 0.78, 0.8], rgb2=[0.45, 0.45, 0.45], width=32, height=192,
    )  # fmt: skip
    world = model.worldbody
    world.add_light(
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=[0, 0, 2],
        dir=[0.3, 0.4, -1],
        diffuse=[0.45] * 3,
        castshadow=False,
    )
    table = world.add_body(name="table")
    table.add_geom(
        name="table:0",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[0.6, 0.4, 0.02],
        pos=[0, 0.5, -0.02],
        rgba=[0.42, 0.44, 0.47, 1],
    )
    over, level = (0.0, 0.5, 0.95), (0.0, -0.15, 0.3)
    world.add_camera(name="overhead", pos=over, quat=aim_camera(over, (0, 0.5, 0), up=(0, 1, 0)), fovy=39.0)
    world.add_camera(name="table", pos=level, quat=aim_camera(level, (0, 0.5, 0.04)), fovy=48.0)
