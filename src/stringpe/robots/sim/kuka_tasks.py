"""The KUKA tasks: pick an object, place it in a tray, hand it over to an open hand; from RGB-D, with shifted scenes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...io.registry import unknown
from . import kuka, things
from .env import RobotEnv
from .expert import Script
from .goals import Delivery, Lifting, lies_in
from .poses import rotation_about
from .robot_task import Goal, RobotTask, Start, TaskEntry
from .scenery import Scenery
from .scripts import Placement, deliver, pick_up
from .sensors import DepthSensor
from .things import Primitive, Thing

HALF_TURN = float(np.pi)  # as the spin of a start: turned in any way
NEAR, WIDE = (0.42, 0.62), (-0.2, 0.2)
HEIGHT = 0.1  # metres above the table that count as picked


def small_objects() -> tuple[Thing, ...]:
    """The objects on the table; each of them can be the target."""
    can = Thing(
        "red can",
        (things.disc(0.024, 0.055, things.RED),),
        radius=0.024,
        grasps=things.across(16, 0.035),
    )
    return (
        things.block("green block", (0.02, 0.03, 0.02), things.GREEN),
        can,
        things.block("blue box", (0.022, 0.022, 0.03), things.BLUE),
        things.ball("orange ball", 0.024, things.ORANGE),
    )


def large_objects() -> tuple[Thing, ...]:
    """Distractors, larger than the targets and of other shapes."""
    bottle = (things.disc(0.035, 0.13, things.TEAL), things.disc(0.013, 0.05, things.WHITE, base=0.13))
    carton = Primitive("box", (0.05, 0.035, 0.07), (0.0, 0.0, 0.07), colour=things.PURPLE)
    return (
        Thing("bottle", bottle, mass=0.5, radius=0.035),
        Thing("carton", (carton,), mass=0.5, radius=0.062),
        things.bowl("large bowl", low=0.05, high=0.08, height=0.06),
    )


CORNERS = (
    Start((0.40, 0.70), (0.26, 0.34)),
    Start((0.40, 0.70), (-0.34, -0.26)),
    Start((0.70, 0.74), (-0.15, 0.15)),
)  # of the large objects
FREE_CORNERS = (
    Start((0.38, 0.46), (-0.34, -0.28)),
    Start((0.62, 0.70), (-0.34, -0.28)),
    Start((0.70, 0.74), (-0.15, 0.05)),
)  # where a tray or a hand takes up one side
TARGETS = tuple(thing.name for thing in small_objects())


def _pick(target: Thing, distractors: int) -> RobotTask:
    """Pick up one object and hold it."""
    return _task(
        "KukaPick",
        f"pick up the {target.name}",
        (),
        distractors,
        lambda: Lifting(target.name, HEIGHT),
        pick_up(target, 0.16),
    )


def _place(target: Thing, distractors: int) -> RobotTask:
    """Place one object in a tray at the side of the table."""
    tray = Thing("tray", things.tray((0.06, 0.06), 0.04, colour=things.GREY), mass=0.4, radius=0.09)
    return _task(
        "KukaPlace",
        f"place the {target.name} in the tray",
        ((tray, Start((0.45, 0.6), (0.25, 0.29), spin=0.3)),),
        distractors,
        lambda: Delivery((target.name,), lies_in("tray", (0.065, 0.065), 0.05)),
        deliver(Placement(target, "tray", (0.0, 0.0, target.rest + 0.008), above=0.12)),
        seconds=15.0,
    )


def _hand_over(target: Thing, distractors: int) -> RobotTask:
    """Put one object into the palm of an open hand that is held out beside the arm."""
    return _task(
        "KukaHandOver",
        f"hand over the {target.name}",
        ((_open_hand(), Start((0.45, 0.58), (0.26, 0.3), spin=0.4, heading=HALF_TURN / 2, above=0.12)),),
        distractors,
        lambda: Delivery((target.name,), lies_in("hand", (0.055, 0.05), 0.06)),
        deliver(Placement(target, "hand", (0.0, 0.0, target.rest + 0.014), above=0.12)),
        seconds=15.0,
    )


def _open_hand() -> Thing:
    """A receiving hand that does not move: a palm, four fingers and a thumb that curl up, and a forearm along x."""
    skin = (0.85, 0.65, 0.52)
    palm = Primitive("box", (0.05, 0.045, 0.006), (0.0, 0.0, 0.006), colour=skin)
    fingers = [
        Primitive("capsule", (0.009, 0.03), (-0.066, y, 0.03), rotation_about("y", -0.6), skin)
        for y in np.linspace(-0.036, 0.036, 4).tolist()
    ]
    thumb = Primitive("capsule", (0.01, 0.025), (0.01, 0.056, 0.025), rotation_about("x", -0.5), skin)
    edge = Primitive("capsule", (0.008, 0.035), (0.0, -0.05, 0.016), rotation_about("y", HALF_TURN / 2), skin)
    heel = Primitive("capsule", (0.012, 0.028), (0.056, 0.0, 0.014), rotation_about("x", HALF_TURN / 2), skin)
    forearm = Primitive("capsule", (0.03, 0.06), (0.13, 0.0, -0.005), rotation_about("y", HALF_TURN / 2), things.BLUE)
    return Thing("hand", (palm, *fingers, thumb, edge, heel, forearm), fixed=True, radius=0.16)


def _task(
    name: str,
    text: str,
    extra: tuple[tuple[Thing, Start], ...],
    distractors: int,
    goal: Callable[[], Goal],
    expert: Script,
    seconds: float = 10.0,
) -> RobotTask:
    """A task with the small objects, `extra` ones, and the first `distractors` of the large ones."""
    small, large, corners = small_objects(), large_objects(), FREE_CORNERS if extra else CORNERS
    starts = {thing.name: Start(NEAR, WIDE, spin=HALF_TURN) for thing in small}
    starts |= {thing.name: start for thing, start in extra}
    starts |= {thing.name: start for thing, start in zip(large, corners, strict=True)}
    things_there = (*small, *(thing for thing, _ in extra), *large[:distractors])
    return RobotTask(name, text, things_there, starts, goal, seconds=seconds, expert=expert, gap=0.035)


def make(
    build: Callable[[Thing, int], RobotTask],
    *,
    target: str = "green block",
    lighting: str = "normal",
    distractors: int | str = 0,
    table_height: float | str = 0.0,
    pedestal_height: float | str = 0.0,
    depth_noise: bool | DepthSensor = False,
    **options: Any,
) -> RobotEnv:
    """The environment of a KUKA task. An action is 7 joints and the gripper; the cameras are front and wrist.

    Args:
        build: The task for a target and a number of distractors.
        target: The object to take.
        lighting: normal, dim, warm, side or random; several, with commas, to draw one per episode.
        distractors: Large objects on the table, 0 to 3; or a range, "0..3", to draw from in every episode.
        table_height: Metres that the table is higher than usual; or a range, "-0.03..0.03".
        pedestal_height: Metres that the arm stands higher than usual; or a range.
        depth_noise: Depth as a sensor measures it; a DepthSensor sets how.
        options: As `RobotEnv`.
    """
    if target not in TARGETS:
        raise unknown("target", target, TARGETS)
    large = tuple(thing.name for thing in large_objects())
    scenery = Scenery(lighting, distractors, table_height, pedestal_height, most=len(large))
    (thing,) = [thing for thing in small_objects() if thing.name == target]
    task = build(thing, scenery.most_distractors)
    sensor = DepthSensor() if depth_noise is True else depth_noise or None
    parked = large[: scenery.most_distractors]
    return RobotEnv(task, kuka.KUKA, kuka.spec(), sensor=sensor, scenery=scenery, parked=parked, **options)


OPTIONS = ("max_steps", "target", "lighting", "distractors", "table_height", "pedestal_height", "depth_noise")
SHIFTS: tuple[dict[str, Any], ...] = (
    {"lighting": "dim"},
    {"lighting": "warm"},
    {"lighting": "side"},
    {"distractors": 3},
    {"table_height": 0.06},
    {"table_height": -0.06},
    {"pedestal_height": 0.06},
    {"pedestal_height": -0.06},
)
"""Beyond what demonstrations with table_height=-0.03..0.03 and pedestal_height=-0.03..0.03 show."""

ENTRIES = (
    TaskEntry("KukaPick", partial(make, _pick), OPTIONS, SHIFTS),
    TaskEntry("KukaPlace", partial(make, _place), OPTIONS, SHIFTS),
    TaskEntry("KukaHandOver", partial(make, _hand_over), OPTIONS, SHIFTS),
)
