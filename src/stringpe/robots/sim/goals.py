"""Goals: how far a task has come, decided from poses, speeds and contacts alone.

Every goal ends the same way: its last condition has to hold for half a second, with the things at rest.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .poses import heading
from .world_state import World

STILL = 0.03  # m/s
HOLD = 5  # steps of 1/10 s


@dataclass
class Delivery:
    """Items at their places: placed, released and at rest, all at once."""

    items: tuple[str, ...]
    placed: Callable[[World, str], bool]
    away: float = 0.03  # metres from the finger tips to a delivered item
    _lifted: set[str] = field(default_factory=set)
    _best: int = 0
    _held: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """Lifting and placing the items, in any order, then all at rest."""
        total = len(self.items)
        names = self.items if total == 1 else [f"{number} of {total}" for number in range(1, total + 1)]
        return (*(f"{word} {name}" for name in names for word in ("lifted", "placed")), "all at rest")

    def update(self, world: World) -> int:
        """Count lifted and placed items; success asks for the placed state alone, however it came about."""
        self._lifted |= {item for item in self.items if world.is_carried(item)}
        done = [self._done(world, item) for item in self.items]
        self._held = self._held + 1 if all(done) else 0
        if self._held >= HOLD:
            return len(self.stages)
        count = len(self._lifted) + sum(d and item in self._lifted for d, item in zip(done, self.items, strict=True))
        self._best = max(self._best, count)
        return self._best

    def _done(self, world: World, item: str) -> bool:
        return self.placed(world, item) and world.speed(item) < STILL and world.is_free(item, self.away)


def rests_on(
    support: str, low: float, high: float, radius: float, upright: float = 0.9
) -> Callable[[World, str], bool]:
    """An item that touches `support`, not the table, with its origin between `low` and `high` above the support's and
    within `radius` of its axis, standing upright."""

    def is_placed(world: World, item: str) -> bool:
        at = world.pose(support).inverse(world.pose(item).pos)
        inside = low <= at[2] <= high and float(np.hypot(at[0], at[1])) <= radius
        standing = world.upright(item) > upright if upright else True
        return inside and standing and world.touching(item, support) and not world.touching(item, "table")

    return is_placed


def lies_in(container: str, half: tuple[float, float], depth: float) -> Callable[[World, str], bool]:
    """An item whose middle is inside an upright container: within `half` of its axis and lower than `depth` above its
    underside, not on the table."""

    def is_placed(world: World, item: str) -> bool:
        at = world.pose(container).inverse(world.pose(item).pos)
        inside = abs(at[0]) <= half[0] and abs(at[1]) <= half[1] and 0.0 < at[2] <= depth
        return inside and world.upright(container) > 0.95 and not world.touching(item, "table")

    return is_placed


def sits_in(base: str, high: float, slack: float, headings: tuple[float, ...]) -> Callable[[World, str], bool]:
    """An item in a recess: its origin within `slack` of the base's axis and lower than `high` above the base's
    underside, upright, and turned by one of `headings` to within 0.15 rad."""

    def is_placed(world: World, item: str) -> bool:
        base_pose, pose = world.pose(base), world.pose(item)
        at = base_pose.inverse(pose.pos)
        turn = heading(base_pose.turn.T @ pose.turn)
        aligned = any(abs(np.sin((turn - option) / 2)) < np.sin(0.075) for option in headings)
        return float(np.hypot(at[0], at[1])) <= slack and at[2] <= high and world.upright(item) > 0.98 and aligned

    return is_placed


@dataclass
class Insertion:
    """Pegs in the ends of a socket that a hand holds up: `depth` metres deep, in line, each from its own end."""

    socket: str
    pegs: tuple[str, ...]
    half: float  # of the socket, along y
    peg_half: float
    depth: float
    slack: float
    _best: int = 0
    _held: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """Socket up, each peg up, each peg in, and held so."""
        pegs = [f"{word} {peg}" for peg in self.pegs for word in ("lifted", "inserted")]
        return (f"lifted {self.socket}", *pegs, "held together off the table")

    def update(self, world: World) -> int:
        """Only hands and pegs may touch the socket; whether a peg is still in a hand does not matter."""
        together = (self.socket, *self.pegs)
        ends = [self.end(world, peg) for peg in self.pegs]
        up = world.is_carried(self.socket, self.pegs)
        ready = up and not any(world.touching(each, "table") for each in together)
        done = ready and 0 not in ends and len(set(ends)) == len(ends)
        self._held = self._held + 1 if done and world.speed(self.socket) < STILL else 0
        if self._held >= HOLD:
            return len(self.stages)
        count = int(up)
        for end, peg in zip(ends, self.pegs, strict=True):
            lifted = bool(end) or world.is_carried(peg, (self.socket,))
            count += int(lifted) + int(bool(end))
        self._best = max(self._best, min(count, len(self.stages) - 1))
        return self._best

    def end(self, world: World, peg: str) -> int:
        """The end of the socket that a peg is in, −1 or 1, or 0 if it is in neither."""
        tube, pose = world.pose(self.socket), world.pose(peg)
        at, axis = tube.inverse(pose.pos), tube.turn.T @ pose.turn[:, 1]
        inward = -np.sign(at[1]) * np.sign(axis[1]) * axis
        nose = at + self.peg_half * inward  # the end of the peg that is deeper inside
        deep = self.half - abs(nose[1]) if np.sign(nose[1]) == np.sign(at[1]) else 0.0
        inside = float(np.abs(nose[[0, 2]]).max()) <= self.slack and abs(axis[1]) > 0.97
        return int(np.sign(at[1])) if inside and deep >= self.depth else 0


@dataclass
class Lifting:
    """An item that a hand holds at least `height` metres above the table, with nothing else under it."""

    item: str
    height: float
    _best: int = 0
    _held: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """Touch, hold, lift, keep."""
        return ("touched", "held", "lifted", "held high")

    def update(self, world: World) -> int:
        """The stage that holds now, or the highest so far."""
        up, high = world.is_carried(self.item), world.pose(self.item).pos[2] - world.pose("table").pos[2] >= self.height
        self._held = self._held + 1 if up and high and world.speed(self.item) < STILL else 0
        if self._held >= HOLD:
            return len(self.stages)
        stage = 3 if up else 2 if world.arms_holding(self.item) else int(bool(world.arms_touching(self.item)))
        self._best = max(self._best, stage)
        return self._best


@dataclass
class HandOver:
    """An item that one hand lifts, both hands hold, the other hand takes, all in the air, and that ends in a container.

    If it is dropped or touches the table on the way, the hand-over starts again.
    """

    item: str
    placed: Callable[[World, str], bool]
    away: float = 0.03
    _giver: str = ""
    _state: int = 0
    _best: int = 0
    _held: int = 0

    @property
    def stages(self) -> tuple[str, ...]:
        """The four steps of a hand-over."""
        return ("lifted by one hand", "held by both hands", "held by the other hand", "in the container")

    def update(self, world: World) -> int:
        """Follow which hands hold the item."""
        hands = world.arms_holding(self.item) if world.is_carried(self.item) else set()
        dropped = not world.arms_touching(self.item) and self._state < 3
        if world.touching(self.item, "table") or dropped:
            self._state = 0
        if self._state in (0, 1) and len(hands) == 1:
            (hand,) = hands
            self._state, self._giver = 1, hand
        elif self._state == 1 and len(hands) == 2:
            self._state = 2
        elif self._state == 2 and len(hands) == 1 and world.arms_touching(self.item) == hands:
            self._state = 1 if hands == {self._giver} else 3
        done = self._state == 3 and self.placed(world, self.item) and world.is_free(self.item, self.away)
        self._held = self._held + 1 if done and world.speed(self.item) < STILL else 0
        if self._held >= HOLD:
            return len(self.stages)
        self._best = max(self._best, self._state)
        return self._best
