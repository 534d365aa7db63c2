"""Things on the table: rigid bodies built from primitives, with the ways in which a hand can grasp them."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from .poses import Vector, rotation_about
from .simulator import mujoco

SHAPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
}
RED, BLUE, GREEN, YELLOW = (0.8, 0.12, 0.1), (0.1, 0.25, 0.75), (0.15, 0.55, 0.2), (0.95, 0.8, 0.1)
ORANGE, WHITE, PURPLE = (0.95, 0.5, 0.1), (0.92, 0.92, 0.9), (0.45, 0.2, 0.55)
GREY, TEAL, CREAM, DARK = (0.55, 0.57, 0.6), (0.1, 0.5, 0.55), (0.9, 0.85, 0.7), (0.3, 0.03, 0.03)
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Primitive:
    """A primitive in the frame of its thing: half sizes as MuJoCo takes them, position and rotation (3, 3)."""

    shape: str
    size: tuple[float, ...]
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    turn: Vector = field(default_factory=lambda: np.eye(3))
    colour: Colour = GREY


@dataclass(frozen=True)
class Grasp:
    """How a hand that points down takes a thing: the point between the finger tips and the angle of the line from
    finger to finger, both in the thing's frame, and how far the fingers are open before (0 to 1)."""

    offset: tuple[float, float, float]
    fingers: float
    opening: float = 1.0


@dataclass(frozen=True)
class Thing:
    """A rigid body. Its origin is the middle of its underside, so that z = 0 rests on the table, unless `rest` says
    how high the origin of a lying thing is."""

    name: str
    parts: tuple[Primitive, ...]
    mass: float = 0.08
    fixed: bool = False
    rest: float = 0.0
    radius: float = 0.05  # of a circle around it on the table, to keep things apart
    rolls: bool = False
    grasps: tuple[Grasp, ...] = ()


BASE = 0.06  # metres: half the width of a base with a recess
LOW = 0.018  # metres: height of the grip point of a hand whose finger tips are just above the table


def across(sides: int, height: float) -> tuple[Grasp, ...]:
    """Grasps of a whole round body, on opposite flats."""
    return tuple(Grasp((0.0, 0.0, height), 2 * np.pi * side / sides) for side in range(sides // 2))


def rim(sides: int, radius: float, height: float) -> tuple[Grasp, ...]:
    """Grasps of a wall, one finger inside and one outside."""
    angles = [2 * np.pi * side / sides for side in range(sides)]
    return tuple(Grasp((radius * np.cos(a), radius * np.sin(a), height), a, 0.45) for a in angles)


def add(spec: Any, thing: Thing) -> None:
    """Add a thing to a MuJoCo model specification."""
    body = spec.worldbody.add_body(name=thing.name)
    if not thing.fixed:
        body.add_freejoint(name=thing.name)
    for number, part in enumerate(thing.parts):
        size = [*part.size, *([0.0] * (3 - len(part.size)))]
        quat = np.zeros(4)
        mujoco.mju_mat2Quat(quat, part.turn.flatten())
        body.add_geom(
            name=f"{thing.name}:{number}",
            type=SHAPES[part.shape],
            size=size,
            pos=part.pos,
            quat=quat,
            rgba=[*part.colour, 1.0],
            mass=thing.mass / len(thing.parts),
            friction=[1.0, 0.02, 0.002],
            condim=6 if thing.rolls else 4,
            solref=[0.01, 1.0],
        )


def ring(
    low: float, high: float, height: float, *, thick: float = 0.005, sides: int = 12, colour: Colour
) -> tuple[Primitive, ...]:
    """A round wall: `sides` boxes whose outer faces stand on a circle of radius `low` and lean to one of `high`."""
    lean = float(np.arctan2(high - low, height))
    middle = (low + high) / 2 - thick / 2
    width = max(low, high) * np.tan(np.pi / sides)
    parts = []
    for angle in np.arange(sides) * 2 * np.pi / sides:
        pos = (middle * np.cos(angle), middle * np.sin(angle), height / 2)
        turn = rotation_about("z", angle) @ rotation_about("y", lean)
        parts.append(Primitive("box", (thick / 2, width, height / 2 / np.cos(lean)), pos, turn, colour))
    return tuple(parts)


def disc(radius: float, thick: float, colour: Colour, base: float = 0.0) -> Primitive:
    """A flat cylinder that lies on height `base`."""
    return Primitive("cylinder", (radius, thick / 2), (0.0, 0.0, base + thick / 2), colour=colour)


def tray(half: tuple[float, float], height: float, *, colour: Colour) -> tuple[Primitive, ...]:
    """An open box with inner half widths `half`."""
    (x, y), thick = half, 0.005
    floor = Primitive("box", (x + thick, y + thick, thick / 2), (0.0, 0.0, thick / 2), colour=colour)
    walls = [
        Primitive("box", (thick / 2, y + thick, height / 2), (side * (x + thick / 2), 0.0, height / 2), colour=colour)
        for side in (-1, 1)
    ]
    walls += [
        Primitive("box", (x + thick, thick / 2, height / 2), (0.0, side * (y + thick / 2), height / 2), colour=colour)
        for side in (-1, 1)
    ]
    return (floor, *walls)


def bowl(name: str = "bowl", *, low: float = 0.04, high: float = 0.06, height: float = 0.045) -> Thing:
    """A bowl with a leaning wall."""
    parts = (disc(low, 0.006, BLUE), *ring(low, high, height, colour=BLUE, sides=16))
    return Thing(name, parts, mass=0.12, radius=high, grasps=rim(16, (low + 3 * high) / 4, height - 0.006))


def plate() -> Thing:
    """A deep plate: its rim rises so that fingers can take it."""
    low, high, height = 0.053, 0.063, 0.022
    parts = (disc(low, 0.006, WHITE), *ring(low, high, height, colour=CREAM, sides=16))
    return Thing("plate", parts, mass=0.12, radius=high, grasps=rim(16, (low + 2 * high) / 3 - 0.0025, LOW + 0.002))


def glass() -> Thing:
    """A straight drinking glass."""
    radius, height, colour = 0.026, 0.085, (0.55, 0.8, 0.85)
    parts = (disc(radius, 0.008, colour), *ring(radius, radius, height, thick=0.004, colour=colour))
    return Thing("glass", parts, mass=0.09, radius=radius, grasps=across(12, height - 0.02))


def mug() -> Thing:
    """A mug with its handle on the side of its x axis."""
    radius, height = 0.028, 0.07
    handle = tuple(
        Primitive("box", size, pos, colour=RED)
        for size, pos in (
            ((0.010, 0.004, 0.004), (radius + 0.008, 0.0, 0.6 * height + 0.02)),
            ((0.010, 0.004, 0.004), (radius + 0.008, 0.0, 0.6 * height - 0.02)),
            ((0.004, 0.004, 0.024), (radius + 0.018, 0.0, 0.6 * height)),
        )
    )
    parts = (disc(radius, 0.008, RED), *ring(radius, radius, height, thick=0.004, colour=RED), *handle)
    sideways = Grasp((0.0, 0.0, height - 0.018), np.pi / 2)  # clear of the handle
    return Thing("mug", parts, mass=0.1, radius=radius + 0.02, grasps=(sideways,))


def rack() -> Thing:
    """A dish rack: slats at `height` over the table, low rails at the sides; it does not move."""
    x, y, height = 0.09, 0.09, 0.04
    slats = [
        Primitive("box", (0.005, y, 0.003), (float(at), 0.0, height - 0.003), colour=GREY)
        for at in np.linspace(-x, x, 10)
    ]
    rails = [Primitive("box", (x, 0.003, 0.008), (0.0, side * y, height + 0.005), colour=TEAL) for side in (-1, 1)]
    legs = [
        Primitive("box", (0.004, 0.004, height / 2), (a * x, b * y, height / 2), colour=TEAL)
        for a in (-1, 1)
        for b in (-1, 1)
    ]
    return Thing("rack", (*slats, *rails, *legs), fixed=True, radius=float(np.hypot(x, y)))


def pen() -> Thing:
    """A thick marker, its axis along y."""
    radius, half = 0.009, 0.08
    lying = rotation_about("x", np.pi / 2)
    body = Primitive("capsule", (radius, half - radius), turn=lying, colour=PURPLE)
    cap = Primitive("cylinder", (radius + 0.001, 0.018), (0.0, half - 0.02, 0.0), lying, WHITE)
    rest = radius + 0.001
    ends = tuple(Grasp((0.0, end * 0.05, LOW - rest), 0.0, 0.7) for end in (-1, 1))
    return Thing("pen", (body, cap), mass=0.04, rest=rest, radius=half, rolls=True, grasps=ends)


def banana() -> Thing:
    """A chain of five capsules on a shallow arc in the plane of the table, its ends along y."""
    radius, half, bend = 0.014, 0.075, 0.012
    nodes = [np.array([bend * (1 - (t / half) ** 2), t, 0.0]) for t in np.linspace(-half, half, 6)]
    parts = []
    for a, b in pairwise(nodes):
        way, length = b - a, float(np.linalg.norm(b - a))
        turn = rotation_about("z", np.arctan2(-way[0], way[1])) @ rotation_about("x", -np.pi / 2)
        middle = (a + b) / 2
        parts.append(Primitive("capsule", (radius, length / 2), (middle[0], middle[1], 0.0), turn, YELLOW))
    ends = tuple(Grasp((bend * (1 - (0.05 / half) ** 2), end * 0.05, LOW - radius), -end * 0.2, 0.9) for end in (-1, 1))
    return Thing("banana", tuple(parts), mass=0.09, rest=radius, radius=half, rolls=True, grasps=ends)


def ball(name: str, radius: float, colour: Colour) -> Thing:
    """A round fruit."""
    part, grasps = Primitive("sphere", (radius,), colour=colour), across(16, 0.0)
    return Thing(name, (part,), mass=0.06, rest=radius, radius=radius, rolls=True, grasps=grasps)


def lemon() -> Thing:
    """An ellipsoid, longer along y."""
    part = Primitive("ellipsoid", (0.02, 0.027, 0.02), colour=YELLOW)
    return Thing(
        "lemon", (part,), mass=0.05, rest=0.02, radius=0.027, rolls=True, grasps=(Grasp((0.0, 0.0, 0.0), 0.0),)
    )


def block(name: str, half: tuple[float, float, float], colour: Colour, mass: float = 0.06) -> Thing:
    """A box."""
    part = Primitive("box", half, (0.0, 0.0, half[2]), colour=colour)
    high = max(LOW, 2 * half[2] - 0.015)
    grasps = [Grasp((0.0, 0.0, high), angle) for angle, wide in ((0.0, half[0]), (np.pi / 2, half[1])) if wide < 0.03]
    return Thing(name, (part,), mass=mass, radius=float(np.hypot(half[0], half[1])), grasps=tuple(grasps))


def socket(hole: float, half: float) -> Thing:
    """A square tube along y, open at both ends, with a stop in the middle; its origin is the middle of the tube. hole,
    half: half its inner width, and half its length."""
    wall = 0.004
    out = hole + wall / 2
    sides = [Primitive("box", (wall / 2, half, hole + wall), (side * out, 0.0, 0.0), colour=BLUE) for side in (-1, 1)]
    sides += [Primitive("box", (hole, half, wall / 2), (0.0, 0.0, side * out), colour=BLUE) for side in (-1, 1)]
    stop = Primitive("box", (hole, 0.004, hole), colour=BLUE)
    middle = Grasp((0.0, 0.0, 0.002), 0.0)
    return Thing("socket", (*sides, stop), mass=0.08, rest=hole + wall, radius=half, grasps=(middle,))


def peg(name: str = "peg", *, half: tuple[float, float, float] = (0.009, 0.05, 0.009), colour: Colour = RED) -> Thing:
    """A square block along y; its origin is its middle."""
    ends = tuple(Grasp((0.0, end * (half[1] - 0.02), LOW - half[2]), 0.0, 0.7) for end in (-1, 1))
    return Thing(name, (Primitive("box", half, colour=colour),), mass=0.06, rest=half[2], radius=half[1], grasps=ends)


def recess(name: str, hole: tuple[tuple[float, float, float, float], ...]) -> Thing:
    """A base with a recess 2 cm deep; `hole` lists the boxes around it as (x, y, half width, half length)."""
    half, height = BASE, 0.03
    floor = Primitive("box", (half, half, (height - 0.02) / 2), (0.0, 0.0, (height - 0.02) / 2), colour=DARK)
    walls = [Primitive("box", (hx, hy, 0.01), (x, y, height - 0.01), colour=RED) for x, y, hx, hy in hole]
    return Thing(name, (floor, *walls), fixed=True, radius=half * 1.42)


def around(x: float, y: float) -> tuple[tuple[float, float, float, float], ...]:
    """The four boxes around a rectangular hole with half widths x and y, out to the edge of a `recess`."""
    side, end = (BASE - x) / 2, (BASE - y) / 2
    return ((x + side, 0, side, BASE), (-x - side, 0, side, BASE), (0, y + end, x, end), (0, -y - end, x, end))


def tee(name: str) -> Thing:
    """A T: a bar along y with a stem to the side of its x axis."""
    parts = (
        Primitive("box", (0.012, 0.036, 0.025), (0.0, 0.0, 0.025), colour=YELLOW),
        Primitive("box", (0.012, 0.012, 0.025), (0.024, 0.0, 0.025), colour=YELLOW),
    )
    grasps = tuple(Grasp((0.0, y, 0.036), 0.0) for y in (-0.024, 0.024))
    return Thing(name, parts, mass=0.07, radius=0.04, grasps=grasps)


def around_tee() -> tuple[tuple[float, float, float, float], ...]:
    """The boxes around the hole of a `tee`, which has 2 mm of room in it."""
    half, slack = BASE, 0.002
    x, y, stem_x, stem_y = 0.012 + slack, 0.036 + slack, 0.036 + slack, 0.012 + slack
    left, end, right = (half - x) / 2, (half - y) / 2, (half - stem_x) / 2
    shoulder, width = (half - stem_y) / 2, (half - x) / 2
    return (
        (-x - left, 0, left, half),
        (0, y + end, x, end),
        (0, -y - end, x, end),
        (stem_x + right, 0, right, stem_y),
        (x + width, stem_y + shoulder, width, shoulder),
        (x + width, -stem_y - shoulder, width, shoulder),
    )
