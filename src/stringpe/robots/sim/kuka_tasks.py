"""KUKA pick: one thing of several on a table, from RGB-D, and the paper's three shifts of the scene as options."""

from typing import Any

import numpy as np

from . import kuka, things
from .depth_sensor import DepthSensor
from .env import RobotEnv
from .goals import Lifted
from .plans import lift
from .task import Start, Task
from .things import Part, Thing

FULL = float(np.pi)
NEAR, WIDE = (0.42, 0.62), (-0.2, 0.2)
HEIGHT = 0.1  # metres that count as picked


def small_things() -> tuple[Thing, ...]:
    """What lies on the table; any of them can be the one to pick."""
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


def large_things() -> tuple[Thing, ...]:
    """Distractors that were not there before: large, and of other shapes."""
    bottle = (things.disc(0.035, 0.13, things.TEAL), things.disc(0.013, 0.05, things.WHITE, base=0.13))
    carton = Part("box", (0.05, 0.035, 0.07), (0.0, 0.0, 0.07), colour=things.PURPLE)
    return (
        Thing("bottle", bottle, mass=0.5, radius=0.035),
        Thing("carton", (carton,), mass=0.5, radius=0.062),
        things.bowl("large bowl", low=0.05, high=0.08, height=0.06),
    )


TARGETS = tuple(thing.name for thing in small_things())


def pick_task(target: str = "green block", distractors: int = 0) -> Task:
    """The task of picking one thing, with some large things at the sides of the table."""
    if target not in TARGETS:
        raise ValueError(f"no target {target!r}: choose one of {', '.join(TARGETS)}")
    large = large_things()
    if not 0 <= distractors <= len(large):
        raise ValueError(f"distractors is a number from 0 to {len(large)}, got {distractors}")
    small = small_things()
    (item,) = [thing for thing in small if thing.name == target]
    starts = {thing.name: Start(NEAR, WIDE, spin=FULL) for thing in small}
    corners = (
        Start((0.40, 0.70), (0.26, 0.34)),
        Start((0.40, 0.70), (-0.34, -0.26)),
        Start((0.70, 0.74), (-0.15, 0.15)),
    )
    starts |= {thing.name: start for thing, start in zip(large, corners, strict=True)}
    return Task(
        "KukaPick",
        f"pick up the {target}",
        (*small, *large[:distractors]),
        starts,
        lambda: Lifted(item.name, HEIGHT),
        seconds=10.0,
        expert=lift(item, 0.16),
        gap=0.035,
    )


def make(
    *,
    target: str = "green block",
    lighting: str = "normal",
    distractors: int = 0,
    table_height: float = 0.0,
    depth_noise: bool | DepthSensor = False,
    **options: Any,
) -> RobotEnv:
    """KukaPick. An action is 7 joints and the gripper; cameras are front and wrist.

    Args:
        target: The thing to pick.
        lighting: normal, or one of the shifted settings: dim, warm, side.
        distractors: Large things on the table, 0 to 3.
        table_height: Metres that the table is higher than usual.
        depth_noise: Depth as a sensor measures it; a DepthSensor sets how.
        options: As `RobotEnv`.
    """
    sensor = DepthSensor() if depth_noise is True else depth_noise or None
    spec = kuka.spec(lighting, table_height)
    task = pick_task(target, distractors)
    return RobotEnv(task, kuka.KUKA, spec, sensor=sensor, table_height=table_height, **options)
