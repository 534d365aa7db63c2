"""Goals: what counts as done, decided from poses, speeds and contacts alone.

Every goal ends the same way: its last condition has to hold for half a second, with the things at rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .world import World

STILL = 0.03  # m/s
HOLD = 5  # steps of 1/10 s
Condition = Callable[[World], bool]


@dataclass
class Delivered:
    """Items at their places: each is first lifted by a hand, and in the end all are placed, released and at rest."""

    items: tuple[str, ...]
    placed: Callable[[World, str], bool]
    away: float = 0.05  # metres from the hands to a delivered item
    _lifted: set[str] = field(default_factory=set)
    _best: int = 0
    _held: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """Lifting and placing every item, then all at rest."""
        return (*(f"{word} {item}" for item in self.items for word in ("lifted", "placed")), "all at rest")

    def reset(self) -> None:
        """Forgets."""
        self._lifted, self._best, self._held = set(), 0, 0

    def update(self, world: World) -> int:
        """Counts lifted and placed items; success asks for the placed state alone, so that it can be tested."""
        self._lifted |= {item for item in self.items if world.carried(item)}
        done = [self._done(world, item) for item in self.items]
        self._held = self._held + 1 if all(done) else 0
        if self._held >= HOLD:
            return len(self.stages)
        count = len(self._lifted) + sum(d and item in self._lifted for d, item in zip(done, self.items, strict=True))
        self._best = max(self._best, count)
        return self._best

    def _done(self, world: World, item: str) -> bool:
        return self.placed(world, item) and world.free(item, self.away) and world.speed(item) < STILL


def rests_on(support: str, low: float, high: float, radius: float, upright: float = 0.9) -> Callable[[World, str], bool]:
    """An item that touches `support`, not the table, with its origin between `low` and `high` above the support's and
    within `radius` of its axis, standing upright."""

    def placed(world: World, item: str) -> bool:
        at = world.pose(support).inverse(world.pose(item).pos)
        inside = low <= at[2] <= high and float(np.hypot(at[0], at[1])) <= radius
        standing = world.upright(item) > upright if upright else True
        return inside and standing and world.touching(item, support) and not world.touching(item, "table")

    return placed


def lies_in(container: str, half: tuple[float, float], depth: float) -> Callable[[World, str], bool]:
    """An item whose middle is inside an upright container: within `half` of its axis and lower than `depth` above its
    underside, not on the table."""

    def placed(world: World, item: str) -> bool:
        at = world.pose(container).inverse(world.pose(item).pos)
        inside = abs(at[0]) <= half[0] and abs(at[1]) <= half[1] and 0.0 < at[2] <= depth
        return inside and world.upright(container) > 0.95 and not world.touching(item, "table")

    return placed
