"""The twelve ALOHA tasks of the paper (appendix on ALOHA simulation), built from primitives.

x runs from the left arm to the right arm, y away from the table camera; metres; the table is z = 0.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from . import aloha, things
from .env import RobotEnv
from .goals import Delivery, HandOver, Insertion, lies_in, rests_on, sits_in
from .robot_task import RobotTask, Start, TaskEntry
from .scripts import Placement, deliver, hand_over, insert
from .things import Thing

HALF_TURN = float(np.pi)  # as the spin of a start: turned in any way
LEFT, RIGHT, DEEP = (-0.26, -0.16), (0.16, 0.26), (0.38, 0.62)
MIDDLE, CENTRE = (-0.03, 0.03), (0.46, 0.54)
RACK = things.rack()


def _on_rack(name: str, item: Thing, x: tuple[float, float], upright: float = 0.9) -> RobotTask:
    return RobotTask(
        name,
        f"place the {item.name} on the rack",
        (item, RACK),
        {item.name: Start(x, DEEP, spin=HALF_TURN), "rack": Start(MIDDLE, CENTRE, spin=0.3)},
        lambda: Delivery((item.name,), rests_on("rack", 0.03, 0.055, 0.08, upright)),
        seconds=15.0,
        expert=deliver(Placement(item, "rack", (0.0, 0.0, 0.042))),
    )


def _mug_on_plate() -> RobotTask:
    mug = things.mug()
    return RobotTask(
        "MugOnPlate",
        "place the mug on the plate",
        (mug, things.plate()),
        {"mug": Start(LEFT, DEEP, spin=HALF_TURN), "plate": Start((-0.02, 0.05), DEEP, spin=HALF_TURN)},
        lambda: Delivery(("mug",), rests_on("plate", 0.0, 0.02, 0.03)),
        seconds=15.0,
        expert=deliver(Placement(mug, "plate", (0.0, 0.0, 0.007))),
    )


def _fruit_bowl() -> RobotTask:
    bowl = replace(things.bowl(low=0.065, high=0.09, height=0.045), mass=0.5)
    fruits = (
        things.ball("orange", 0.025, things.ORANGE),
        things.ball("apple", 0.024, things.RED),
        things.lemon(),
    )
    spots = ((-0.03, 0.01), (0.03, 0.01), (0.0, -0.03))
    placements = [
        Placement(fruit, "bowl", (x, y, fruit.rest + 0.012)) for fruit, (x, y) in zip(fruits, spots, strict=True)
    ]
    return RobotTask(
        "FruitBowl",
        "place all the fruits in the bowl",
        (*fruits, bowl),
        {
            "orange": Start(LEFT, DEEP),
            "apple": Start(RIGHT, DEEP),
            "lemon": Start((-0.08, 0.08), (0.30, 0.34), spin=0.5),
            "bowl": Start((-0.02, 0.02), (0.49, 0.53)),
        },
        lambda: Delivery(("orange", "apple", "lemon"), lies_in("bowl", (0.075, 0.075), 0.05)),
        seconds=40.0,
        expert=deliver(*placements),
    )


def _storage_bin() -> RobotTask:
    crate = Thing("bin", things.tray((0.085, 0.06), 0.06, colour=things.TEAL), mass=0.6, radius=0.105)
    boxes = tuple(
        things.block(name, (0.018, 0.03, 0.028), colour)
        for name, colour in (("red box", things.RED), ("green box", things.GREEN), ("yellow box", things.YELLOW))
    )
    spots = (-0.054, 0.054, 0.0)
    placements = [
        Placement(box, "bin", (x, 0.0, 0.012), headings=(0.0, HALF_TURN), above=0.1)
        for box, x in zip(boxes, spots, strict=True)
    ]
    return RobotTask(
        "StorageBin",
        "place all the snack boxes in the storage bin",
        (*boxes, crate),
        {
            "red box": Start(LEFT, DEEP, spin=0.8),
            "green box": Start(RIGHT, DEEP, spin=0.8),
            "yellow box": Start((-0.1, 0.1), (0.30, 0.34), spin=0.4),
            "bin": Start((-0.02, 0.02), (0.49, 0.53), spin=0.1),
        },
        lambda: Delivery(tuple(box.name for box in boxes), lies_in("bin", (0.085, 0.06), 0.04)),
        seconds=40.0,
        expert=deliver(*placements),
    )


def _hand_over(name: str, item: Thing) -> RobotTask:
    container = Thing("container", things.tray((0.05, 0.1), 0.05, colour=things.GREEN), mass=0.4, radius=0.09)
    return RobotTask(
        name,
        f"hand over the {item.name} and place it in the container",
        (item, container),
        {
            item.name: Start((0.13, 0.23), (0.42, 0.58), spin=0.6),
            "container": Start((-0.24, -0.18), (0.42, 0.58), spin=0.2),
        },
        lambda: HandOver(item.name, lies_in("container", (0.055, 0.105), 0.045)),
        seconds=25.0,
        expert=hand_over(item, "container"),
    )


def _insertion(name: str, text: str, count: int) -> RobotTask:
    half, peg_half, hole = 0.05, 0.04, 0.012
    socket = things.socket(hole, half)
    names, colours = ("peg", "second peg")[:count], (things.RED, things.ORANGE)
    pegs = tuple(things.peg(n, half=(0.009, peg_half, 0.009), colour=c) for n, c in zip(names, colours, strict=False))
    starts = {
        "socket": Start((-0.22, -0.12), (0.42, 0.58), spin=0.5),
        "peg": Start((0.14, 0.24), (0.52, 0.62), spin=0.5),
    }
    if count == 2:
        starts["second peg"] = Start((0.14, 0.24), (0.38, 0.48), spin=0.5)
    return RobotTask(
        name,
        text,
        (socket, *pegs),
        starts,
        lambda: Insertion("socket", names, half, peg_half, depth=0.03, slack=hole - 0.005),
        seconds=20.0 * count,
        expert=insert(socket, *pegs, half=half, peg_half=peg_half, depth=0.042),
    )


def _fmb(name: str, text: str, block: Thing, base: Thing, headings: tuple[float, ...], spin: float) -> RobotTask:
    return RobotTask(
        name,
        text,
        (block, base),
        {block.name: Start(LEFT, DEEP, spin=spin), "base": Start(MIDDLE, CENTRE, spin=0.3)},
        lambda: Delivery((block.name,), sits_in("base", 0.014, 0.004, headings)),
        seconds=18.0,
        expert=deliver(Placement(block, "base", (0.0, 0.0, 0.011), headings=headings, hover=0.026)),
    )


ALL = (
    _on_rack("BowlOnRack", things.bowl(), LEFT),
    _on_rack("GlassOnRack", things.glass(), RIGHT),
    _on_rack("PlateOnRack", things.plate(), RIGHT),
    _insertion("SingleInsertion", "insert the block into the socket", 1),
    _insertion("DoubleInsertion", "insert a block into each end of the socket", 2),
    _fmb(
        "FMB-1",
        "insert the yellow block into the recess of the red base",
        things.block("block", (0.015, 0.025, 0.025), things.YELLOW),
        things.recess("base", things.around(0.017, 0.027)),
        (0.0, HALF_TURN),
        spin=HALF_TURN,
    ),
    _fmb(
        "FMB-2",
        "insert the yellow T into the recess of the red base",
        things.tee("tee"),
        things.recess("base", things.around_tee()),
        (0.0,),
        spin=2.0,  # further, and the wrist cannot turn it back
    ),
    _fruit_bowl(),
    _storage_bin(),
    _hand_over("HandOverBanana", things.banana()),
    _hand_over("HandOverPen", things.pen()),
    _mug_on_plate(),
)


def make(task: RobotTask, **options: Any) -> RobotEnv:
    """The environment of a task; options as `RobotEnv`."""
    return RobotEnv(task, aloha.ALOHA, aloha.spec(), **options)


ENTRIES = tuple(TaskEntry(task.name, partial(make, task)) for task in ALL)
