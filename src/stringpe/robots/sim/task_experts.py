"""The experts of the tasks: which phases bring which thing where."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .expert import HOME, Phase, Script, WayPoint, best_grasp, near_arm, pick, place
from .things import Grasp, Thing
from .world_state import World


@dataclass(frozen=True)
class Placement:
    """Bring a thing to an offset from another, with the arm on its side."""

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
        for each in placements:
            name = each.thing.name
            arm = near_arm(world, name)
            grasp = best_grasp(world, arm, name, each.thing.grasps, rng)
            phases += pick(arm, name, grasp)
            opening = min(1.0, grasp.opening + 0.1)
            how = {"above": each.above, "hover": each.hover, "opening": opening}
            phases += place(arm, name, each.onto, each.offset, headings=each.headings, **how)
            phases.append(Phase({arm: HOME}, {arm: 1.0}))
        return [*phases, Phase({}, {}, seconds=0.8)]

    return plan


def lift(thing: Thing, height: float) -> Script:
    """Pick a thing up and keep it there."""

    def plan(world: World, rng: np.random.Generator) -> list[Phase]:
        arm = near_arm(world, thing.name)
        grasp = best_grasp(world, arm, thing.name, thing.grasps, rng)
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
    return {"right": WayPoint(socket.name, offset=(0.0, along, 0.0), carry=peg.name, headings=(0.0,))}
