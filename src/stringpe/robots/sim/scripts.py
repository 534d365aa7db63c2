"""The scripts that experts play: the phases that deliver, pick up, hand over or insert a thing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .expert import HOME, Phase, Script, WayPoint, wrap_angle
from .poses import heading
from .things import Grasp, Thing
from .world_state import World


def choose_arm(world: World, thing: str) -> str:
    """The arm on whose side of the table a thing is."""
    arms = world.robot.arms
    return arms[0].name if len(arms) == 1 or world.pose(thing).pos[0] < 0 else arms[1].name


def choose_grasp(world: World, arm: str, thing: str, grasps: Sequence[Grasp], rng: np.random.Generator) -> Grasp:
    """One of the grasps that turn the wrist least."""
    (neutral,) = [each.neutral for each in world.robot.arms if each.name == arm]
    turn = heading(world.pose(thing).turn)

    def cost(grasp: Grasp) -> float:
        return abs(wrap_angle(2 * (turn + grasp.fingers - neutral)) / 2)

    least = min(cost(grasp) for grasp in grasps)
    return grasps[int(rng.choice([i for i, grasp in enumerate(grasps) if cost(grasp) < least + 0.25]))]


def pick(arm: str, thing: str, grasp: Grasp, *, above: float = 0.1, lift: float = 0.12) -> list[Phase]:
    """Move over a thing, down to it, close the hand, and lift it."""
    return [
        Phase({arm: WayPoint(thing, grasp, lift=above, jitter=0.008)}, {arm: grasp.opening}),
        Phase({arm: WayPoint(thing, grasp)}, {arm: grasp.opening}, speed=0.6),
        Phase({arm: WayPoint(thing, grasp)}, {arm: 0.0}, seconds=0.5),
        Phase({arm: WayPoint(thing, carry=thing, lift=lift, jitter=0.006)}, {arm: 0.0}, speed=0.7),
    ]


def place(
    arm: str,
    thing: str,
    frame: str,
    offset: tuple[float, float, float],
    *,
    above: float = 0.08,
    headings: tuple[float, ...] = (),
    opening: float = 0.6,
    hover: float = 0.0,
) -> list[Phase]:
    """Bring a carried thing over its place, lower it, release it, and move the hand away. hover: metres over its place
    where it stops, so that the next phase sees how it sits in the hand; 0: it does not stop."""

    def over(lift: float, jitter: float = 0.0) -> dict[str, WayPoint]:
        return {arm: WayPoint(frame, offset=offset, carry=thing, headings=headings, lift=lift, jitter=jitter)}

    wait = [Phase(over(hover), {arm: 0.0}, seconds=0.4), Phase(over(hover), {arm: 0.0}, seconds=0.3)] if hover else []
    return [
        Phase(over(above, 0.004), {arm: 0.0}),
        *wait,
        Phase(over(0.0), {arm: 0.0}, seconds=1.0 if hover else 0.5, speed=0.5),
        Phase({}, {arm: opening}, seconds=0.5),
        Phase({arm: WayPoint("up", lift=0.12)}, {arm: opening}, speed=0.7),
    ]


@dataclass(frozen=True)
class Placement:
    """Bring a thing to an offset from another, with the arm on its side. headings: as in `WayPoint`; above: metres over
    its place that the thing is carried to first; hover: as in `place`."""

    thing: Thing
    onto: str
    offset: tuple[float, float, float]
    headings: tuple[float, ...] = ()
    above: float = 0.08
    hover: float = 0.0


def deliver(*placements: Placement) -> Script:
    """One placement after the other; a hand goes home before the other one works."""

    def plan(world: World, rng: np.random.Generator) -> list[Phase]:
        phases: list[Phase] = []
        for placement in placements:
            name = placement.thing.name
            arm = choose_arm(world, name)
            grasp = choose_grasp(world, arm, name, placement.thing.grasps, rng)
            phases += pick(arm, name, grasp)
            opening = min(1.0, grasp.opening + 0.1)
            how = {"above": placement.above, "hover": placement.hover, "opening": opening}
            phases += place(arm, name, placement.onto, placement.offset, headings=placement.headings, **how)
            phases.append(Phase({arm: HOME}, {arm: 1.0}))
        return [*phases, Phase({}, {}, seconds=0.8)]

    return plan


def pick_up(thing: Thing, height: float) -> Script:
    """Pick a thing up and keep it there."""

    def plan(world: World, rng: np.random.Generator) -> list[Phase]:
        arm = choose_arm(world, thing.name)
        grasp = choose_grasp(world, arm, thing.name, thing.grasps, rng)
        return [*pick(arm, thing.name, grasp, lift=height), Phase({}, {}, seconds=1.2)]

    return plan


def hand_over(thing: Thing, container: str, *, meet: tuple[float, float, float] = (0.0, 0.5, 0.13)) -> Script:
    """The right hand takes one end, the left hand the other; the left hand brings the thing to the container."""

    def plan(world: World, rng: np.random.Generator) -> list[Phase]:
        name = thing.name
        first, second = _two_ends(thing.grasps, rng)
        over = WayPoint(offset=meet, carry=name, headings=(0.0, np.pi), jitter=0.004)
        return [
            *pick("right", name, first, lift=0.1),
            Phase({"right": over}, {"right": 0.0}),
            Phase({"left": WayPoint(name, second, (-0.12, 0.0, 0.06), jitter=0.006)}, {"left": second.opening}),
            Phase({"left": WayPoint(name, second, lift=0.06, jitter=0.003)}, {"left": second.opening}, speed=0.8),
            Phase({"left": WayPoint(name, second)}, {"left": second.opening}, speed=0.5),
            Phase({}, {"left": 0.0}, seconds=0.6),
            Phase({}, {"right": 0.6}, seconds=0.5),
            Phase({"right": WayPoint("up", lift=0.07)}, {"right": 0.6}, speed=0.7),
            Phase({"right": HOME}, {"right": 1.0}),
            *place("left", name, container, (0.0, 0.0, 0.03), above=0.1),
            Phase({"left": HOME}, {"left": 1.0}),
            Phase({}, {}, seconds=0.8),
        ]

    return plan


def _two_ends(grasps: Sequence[Grasp], rng: np.random.Generator) -> tuple[Grasp, Grasp]:
    """The grasps of a thing's two ends, in random order."""
    order = rng.permutation(2)
    return grasps[order[0]], grasps[order[1]]


def insert(socket: Thing, *pegs: Thing, half: float, peg_half: float, depth: float) -> Script:
    """The left hand holds the socket up; the right hand brings a peg to each end and pushes it in."""

    def plan(world: World, rng: np.random.Generator) -> list[Phase]:
        (middle,) = socket.grasps
        over = WayPoint(offset=(0.0, 0.5, 0.15), carry=socket.name, headings=(0.0, np.pi), jitter=0.003)
        phases = [*pick("left", socket.name, middle), Phase({"left": over}, {"left": 0.0})]
        for side, peg in zip((1, -1), pegs, strict=False):
            touch = half + peg_half  # between the middles of socket and peg
            grasp = max(peg.grasps, key=lambda g: side * g.offset[1])
            phases += pick("right", peg.name, grasp, lift=0.1)
            phases += [
                Phase(_in_line(socket, peg, side * (touch + 0.055)), {"right": 0.0}),
                Phase(_in_line(socket, peg, side * (touch + 0.025)), {"right": 0.0}, seconds=0.5),
                Phase(_in_line(socket, peg, side * (touch - depth)), {"right": 0.0}, seconds=1.5),
                Phase({}, {"right": 0.7}, seconds=0.6),
                Phase({"right": WayPoint("up", lift=0.08)}, {"right": 0.7}, speed=0.7),
                Phase({"right": HOME}, {"right": 1.0}),
            ]
        return [*phases, Phase({}, {}, seconds=0.8)]

    return plan


def _in_line(socket: Thing, peg: Thing, along: float) -> dict[str, WayPoint]:
    """The way-point at which the peg in the right hand is in line with the socket, `along` metres from its middle."""
    return {"right": WayPoint(socket.name, offset=(0.0, along, 0.0), carry=peg.name, headings=(0.0,))}
