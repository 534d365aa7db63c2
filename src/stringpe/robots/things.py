"""Things on the table, built from primitives: a thing is a name and a tuple of parts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .geometry import Vector, about
from .simulator import mujoco

SHAPES = {
    "box": mujoco.mjtGeom.mjGEOM_BOX,
    "capsule": mujoco.mjtGeom.mjGEOM_CAPSULE,
    "cylinder": mujoco.mjtGeom.mjGEOM_CYLINDER,
    "ellipsoid": mujoco.mjtGeom.mjGEOM_ELLIPSOID,
    "sphere": mujoco.mjtGeom.mjGEOM_SPHERE,
}
RED, BLUE, GREEN, YELLOW = (0.8, 0.12, 0.1), (0.1, 0.25, 0.75), (0.15, 0.55, 0.2), (0.95, 0.8, 0.1)
ORANGE, WHITE, BROWN, PURPLE = (0.95, 0.5, 0.1), (0.92, 0.92, 0.9), (0.45, 0.3, 0.18), (0.45, 0.2, 0.55)
GREY, TEAL, CREAM = (0.55, 0.57, 0.6), (0.1, 0.5, 0.55), (0.9, 0.85, 0.7)
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Part:
    """A primitive in the frame of its thing: half sizes as MuJoCo takes them, position and rotation (3, 3)."""

    shape: str
    size: tuple[float, ...]
    pos: tuple[float, float, float] = (0.0, 0.0, 0.0)
    turn: Vector = field(default_factory=lambda: np.eye(3))
    colour: Colour = GREY


@dataclass(frozen=True)
class Thing:
    """A rigid body. Its origin is the middle of its underside, so that z = 0 rests on the table, unless `rest` says
    how high the origin of a lying thing is."""

    name: str
    parts: tuple[Part, ...]
    mass: float = 0.08
    fixed: bool = False
    rest: float = 0.0
    radius: float = 0.05  # of a circle around it on the table, to keep things apart
    rolls: bool = False


def add(spec: Any, thing: Thing) -> None:
    """Puts a thing into a MuJoCo model specification."""
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
    low: float, high: float, height: float, *, thick: float = 0.005, base: float = 0.0, sides: int = 12, colour: Colour
) -> tuple[Part, ...]:
    """A round wall: `sides` boxes whose outer faces stand on a circle of radius `low` and lean to one of `high`."""
    lean = float(np.arctan2(high - low, height))
    middle = (low + high) / 2 - thick / 2
    width = max(low, high) * np.tan(np.pi / sides)
    parts = []
    for angle in np.arange(sides) * 2 * np.pi / sides:
        pos = (middle * np.cos(angle), middle * np.sin(angle), base + height / 2)
        turn = about("z", angle) @ about("y", lean)
        parts.append(Part("box", (thick / 2, width, height / 2 / np.cos(lean)), pos, turn, colour))
    return tuple(parts)


def disc(radius: float, thick: float, colour: Colour, base: float = 0.0) -> Part:
    """A flat cylinder that lies on height `base`."""
    return Part("cylinder", (radius, thick / 2), (0.0, 0.0, base + thick / 2), colour=colour)


def tray(half: tuple[float, float], height: float, *, thick: float = 0.005, colour: Colour) -> tuple[Part, ...]:
    """An open box with inner half widths `half`."""
    x, y = half
    floor = Part("box", (x + thick, y + thick, thick / 2), (0.0, 0.0, thick / 2), colour=colour)
    walls = [
        Part("box", (thick / 2, y + thick, height / 2), (side * (x + thick / 2), 0.0, height / 2), colour=colour)
        for side in (-1, 1)
    ]
    walls += [
        Part("box", (x + thick, thick / 2, height / 2), (0.0, side * (y + thick / 2), height / 2), colour=colour)
        for side in (-1, 1)
    ]
    return (floor, *walls)


def bowl(name: str = "bowl", *, low: float = 0.04, high: float = 0.06, height: float = 0.045, fixed: bool = False) -> Thing:
    """A bowl with a leaning wall."""
    parts = (disc(low, 0.006, BLUE), *ring(low, high, height, colour=BLUE, sides=16))
    return Thing(name, parts, mass=0.12, radius=high, fixed=fixed)


def plate(name: str = "plate", *, low: float = 0.045, high: float = 0.065, height: float = 0.022) -> Thing:
    """A deep plate: its rim rises so that fingers can take it."""
    parts = (disc(low, 0.006, WHITE), *ring(low, high, height, colour=CREAM, sides=16))
    return Thing(name, parts, mass=0.12, radius=high)


def glass(name: str = "glass", *, radius: float = 0.026, height: float = 0.085) -> Thing:
    """A straight drinking glass."""
    colour = (0.55, 0.8, 0.85)
    parts = (disc(radius, 0.008, colour), *ring(radius, radius, height, thick=0.004, colour=colour))
    return Thing(name, parts, mass=0.09, radius=radius)


def mug(name: str = "mug", *, radius: float = 0.028, height: float = 0.07) -> Thing:
    """A mug with its handle on the side of its x axis."""
    handle = tuple(
        Part("box", size, pos, colour=RED)
        for size, pos in (
            ((0.010, 0.004, 0.004), (radius + 0.008, 0.0, 0.55 * height + 0.02)),
            ((0.010, 0.004, 0.004), (radius + 0.008, 0.0, 0.55 * height - 0.02)),
            ((0.004, 0.004, 0.024), (radius + 0.018, 0.0, 0.55 * height)),
        )
    )
    parts = (disc(radius, 0.008, RED), *ring(radius, radius, height, thick=0.004, colour=RED), *handle)
    return Thing(name, parts, mass=0.1, radius=radius + 0.02)


def rack(name: str = "rack", *, half: tuple[float, float] = (0.09, 0.09), height: float = 0.04) -> Thing:
    """A dish rack: slats at `height` over the table, low rails at the sides; it stands fast."""
    x, y = half
    slats = [
        Part("box", (0.005, y, 0.003), (float(at), 0.0, height - 0.003), colour=GREY) for at in np.linspace(-x, x, 10)
    ]
    rails = [Part("box", (x, 0.003, 0.008), (0.0, side * y, height + 0.005), colour=TEAL) for side in (-1, 1)]
    legs = [
        Part("box", (0.004, 0.004, height / 2), (a * x, b * y, height / 2), colour=TEAL) for a in (-1, 1) for b in (-1, 1)
    ]
    return Thing(name, (*slats, *rails, *legs), fixed=True, radius=float(np.hypot(x, y)))


def pen(name: str = "pen", *, radius: float = 0.009, half: float = 0.08) -> Thing:
    """A thick marker, its axis along y."""
    lying = about("x", np.pi / 2)
    body = Part("capsule", (radius, half - radius), turn=lying, colour=PURPLE)
    cap = Part("cylinder", (radius + 0.001, 0.018), (0.0, half - 0.02, 0.0), lying, WHITE)
    return Thing(name, (body, cap), mass=0.04, rest=radius + 0.001, radius=half, rolls=True)


def banana(name: str = "banana", *, radius: float = 0.014, half: float = 0.075, bend: float = 0.012) -> Thing:
    """A chain of five capsules on a shallow arc in the plane of the table, its ends along y."""
    nodes = [np.array([bend * (1 - (t / half) ** 2), t, 0.0]) for t in np.linspace(-half, half, 6)]
    parts = []
    for a, b in zip(nodes, nodes[1:], strict=False):
        way, length = b - a, float(np.linalg.norm(b - a))
        turn = about("z", np.arctan2(-way[0], way[1])) @ about("x", -np.pi / 2)
        middle = (a + b) / 2
        parts.append(Part("capsule", (radius, length / 2), (middle[0], middle[1], 0.0), turn, YELLOW))
    return Thing(name, tuple(parts), mass=0.09, rest=radius, radius=half, rolls=True)


def ball(name: str, radius: float, colour: Colour) -> Thing:
    """A round fruit."""
    return Thing(name, (Part("sphere", (radius,), colour=colour),), mass=0.06, rest=radius, radius=radius, rolls=True)


def lemon(name: str = "lemon") -> Thing:
    """An ellipsoid, longer along y."""
    part = Part("ellipsoid", (0.02, 0.027, 0.02), colour=YELLOW)
    return Thing(name, (part,), mass=0.05, rest=0.02, radius=0.027, rolls=True)


def block(name: str, half: tuple[float, float, float], colour: Colour, mass: float = 0.06) -> Thing:
    """A box."""
    part = Part("box", half, (0.0, 0.0, half[2]), colour=colour)
    return Thing(name, (part,), mass=mass, radius=float(np.hypot(half[0], half[1])))


def socket(name: str = "socket", *, hole: float = 0.012, half: float = 0.05, wall: float = 0.004) -> Thing:
    """A square tube along y, open at both ends, with a stop in the middle; its origin is the middle of the tube."""
    out = hole + wall / 2
    sides = [
        Part("box", (wall / 2, half, hole + wall), (side * out, 0.0, 0.0), colour=BLUE) for side in (-1, 1)
    ]
    sides += [Part("box", (hole, half, wall / 2), (0.0, 0.0, side * out), colour=BLUE) for side in (-1, 1)]
    stop = Part("box", (hole, 0.004, hole), colour=BLUE)
    return Thing(name, (*sides, stop), mass=0.08, rest=hole + wall, radius=half)


def peg(name: str = "peg", *, half: tuple[float, float, float] = (0.009, 0.05, 0.009), colour: Colour = RED) -> Thing:
    """A square block along y; its origin is its middle."""
    return Thing(name, (Part("box", half, colour=colour),), mass=0.06, rest=half[2], radius=half[1])
