"""A robot task as data: objects, where they start, a sentence, a goal and an expert; and its entry in the table of all
tasks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .poses import rotation_about
from .things import Thing
from .world_state import World


class Goal(Protocol):
    """Follows one episode of a simulation, step by step, and says how far the task has come."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages in words; the last one is success."""

    def update(self, world: World) -> int:
        """How many stages have been reached."""


@dataclass(frozen=True)
class Start:
    """Where an object starts: uniform in a rectangle of the table, turned by up to `spin` either way from `heading`,
    `above` metres over the table (for objects that do not fall)."""

    x: tuple[float, float]
    y: tuple[float, float]
    spin: float = 0.0
    heading: float = 0.0
    above: float = 0.0


@dataclass(frozen=True)
class RobotTask:
    """A task. text: the sentence that tells a policy what to do. goal: makes what follows one episode. seconds: until
    an episode ends in any case. expert(world, rng): the phases of a demonstration; None: there is no expert."""

    name: str
    text: str
    things: tuple[Thing, ...]
    starts: dict[str, Start]
    goal: Callable[[], Goal]
    seconds: float
    expert: Callable[[World, np.random.Generator], Sequence[Any]] | None = None
    gap: float = 0.02  # metres between the circles around things at the start


@dataclass(frozen=True)
class TaskEntry:
    """A task in the table of `stringpe.robots`. make(**options): its environment. options: the names of those that it
    takes besides the arguments of `robots.make`. shifts: options that change the scene beyond what demonstrations
    show."""

    name: str
    make: Callable[..., Any]
    options: tuple[str, ...] = ("max_steps",)
    shifts: tuple[dict[str, Any], ...] = ()


def draw_starts(
    task: RobotTask, rng: np.random.Generator, height: float = 0.0, leave_out: Sequence[str] = ()
) -> dict[str, tuple[Any, Any]]:
    """A position and a rotation for every object, except those to leave out, on a table of a given height.

    One object after the other, each drawn again until it is clear of those before it: an object added at the end of a
    task does not move the others.
    """
    present = [thing for thing in task.things if thing.name not in leave_out]
    for _ in range(100):
        placed: dict[str, tuple[Any, Any]] = {}
        if all(_draw(task, thing, placed, rng, height) for thing in present):
            return placed
    raise AssertionError(f"the starting regions of {task.name} leave no room")


def _draw(
    task: RobotTask, thing: Thing, placed: dict[str, tuple[Any, Any]], rng: np.random.Generator, height: float
) -> bool:
    """Draw a start for a thing that is clear of the things placed before it, and add it to them; False if there is no
    room for it."""
    start, radii = task.starts[thing.name], {each.name: each.radius for each in task.things}
    for _ in range(200):
        pos = np.array([rng.uniform(*start.x), rng.uniform(*start.y), thing.rest + height + start.above])
        turn = rotation_about("z", start.heading + rng.uniform(-start.spin, start.spin))
        gaps = [np.linalg.norm(pos[:2] - at[:2]) - radii[name] - thing.radius for name, (at, _) in placed.items()]
        if all(gap >= task.gap for gap in gaps):
            placed[thing.name] = (pos, turn)
            return True
    return False
