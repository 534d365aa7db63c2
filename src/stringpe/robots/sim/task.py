"""What a task is: things, where they start, a sentence, a goal, and perhaps an expert."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .geometry import about
from .things import Thing
from .world import World


class Goal(Protocol):
    """Watches one episode of a simulation, once a step, and says how far the task is."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages in words; the last one is success."""

    def update(self, world: World) -> int:
        """How many stages have been reached."""


@dataclass(frozen=True)
class Start:
    """Where a thing starts: uniform in a rectangle of the table, turned by up to `spin` either way from `heading`."""

    x: tuple[float, float]
    y: tuple[float, float]
    spin: float = 0.0
    heading: float = 0.0


@dataclass(frozen=True)
class Task:
    """A task by name. `expert(world, rng)` gives the phases of a demonstration; None: there is no expert yet."""

    name: str
    text: str
    things: tuple[Thing, ...]
    starts: dict[str, Start]
    goal: Callable[[], Goal]
    seconds: float
    expert: Callable[[World, np.random.Generator], Sequence[Any]] | None = None
    gap: float = 0.02  # metres between the circles around things at the start


def draw_starts(task: Task, rng: np.random.Generator, height: float = 0.0) -> dict[str, tuple[Any, Any]]:
    """A position and a rotation for every thing on a table of some height.

    One thing after the other, each drawn again until it is clear of those before it: what is added at the end of a task
    does not move what was there.
    """
    for _ in range(100):
        found: dict[str, tuple[Any, Any]] = {}
        if all(_draw(task, thing, found, rng, height) for thing in task.things):
            return found
    raise AssertionError(f"the starting regions of {task.name} leave no room")


def _draw(task: Task, thing: Thing, found: dict[str, tuple[Any, Any]], rng: np.random.Generator, height: float) -> bool:
    start, radii = task.starts[thing.name], {each.name: each.radius for each in task.things}
    for _ in range(200):
        pos = np.array([rng.uniform(*start.x), rng.uniform(*start.y), thing.rest + height])
        turn = about("z", start.heading + rng.uniform(-start.spin, start.spin))
        gaps = [np.linalg.norm(pos[:2] - at[:2]) - radii[name] - thing.radius for name, (at, _) in found.items()]
        if all(gap >= task.gap for gap in gaps):
            found[thing.name] = (pos, turn)
            return True
    return False
