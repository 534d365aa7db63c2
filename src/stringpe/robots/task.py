"""What a task is: things, where they start, a sentence, a goal, and perhaps an expert."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from .geometry import about
from .things import Thing
from .world import World


class Goal(Protocol):
    """Watches a simulation, once a step, and says how far the task is."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages in words; the last one is success."""

    def reset(self) -> None:
        """A new episode begins."""

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
    """A position and a rotation for every thing on a table of some height, drawn again until no two circles overlap."""
    for _ in range(2000):
        found: dict[str, tuple[Any, Any]] = {}
        for thing in task.things:
            start = task.starts[thing.name]
            pos = np.array([rng.uniform(*start.x), rng.uniform(*start.y), thing.rest + height])
            found[thing.name] = (pos, about("z", start.heading + rng.uniform(-start.spin, start.spin)))
        if _apart(task, found):
            return found
    raise AssertionError(f"the starting regions of {task.name} leave no room")


def _apart(task: Task, found: dict[str, tuple[Any, Any]]) -> bool:
    for i, a in enumerate(task.things):
        for b in task.things[i + 1 :]:
            distance = np.linalg.norm(found[a.name][0][:2] - found[b.name][0][:2])
            if distance < a.radius + b.radius + task.gap:
                return False
    return True
