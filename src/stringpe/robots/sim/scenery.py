"""What may vary from episode to episode around the KUKA arm: light, clutter, and the heights of table and pedestal.

An option is one value, or several to draw from in every episode: a range "-0.03..0.03", or names "normal,dim". The draw
depends on the seed of the episode alone and takes no random numbers from anything else, so that one seed puts the small
objects at the same places whatever the scenery.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...io.registry import unknown

LIGHTS: dict[str, dict[str, Any]] = {
    "normal": {"ambient": 0.35, "diffuse": (0.5, 0.5, 0.5), "dir": (-0.3, 0.4, -1.0)},
    "dim": {"ambient": 0.1, "diffuse": (0.22, 0.22, 0.24), "dir": (-0.3, 0.4, -1.0)},
    "warm": {"ambient": 0.25, "diffuse": (0.9, 0.55, 0.2), "dir": (0.3, -0.4, -1.0)},
    "side": {"ambient": 0.15, "diffuse": (0.95, 0.95, 1.0), "dir": (0.1, -1.0, -0.25)},
}
RANDOM = "random"
"""A light drawn anew in every episode: its strength, its colour and its direction."""

_LOWEST, _HIGHEST = -0.1, 0.15  # metres from the usual height
_STREAM = 7


@dataclass(frozen=True)
class DrawnScenery:
    """The scenery of one episode: a light, the number of large objects, and two heights in metres."""

    light: dict[str, Any]
    distractors: int
    table_height: float
    pedestal_height: float


class Scenery:
    """Options of the scenery, checked. most: the largest possible number of distractors."""

    def __init__(self, lighting: Any, distractors: Any, table_height: Any, pedestal_height: Any, *, most: int):
        self._lights = [name.strip() for name in str(lighting).split(",")]
        for name in self._lights:
            if name not in LIGHTS and name != RANDOM:
                raise unknown("lighting", name, [*LIGHTS, RANDOM])
        low, high = parse_range("distractors", distractors, 0, most)
        if low != int(low) or high != int(high):
            raise ValueError(f"distractors must be a whole number or a range of them, got {distractors!r}")
        self._distractors = (int(low), int(high))
        self._table = parse_range("table_height", table_height, _LOWEST, _HIGHEST)
        self._pedestal = parse_range("pedestal_height", pedestal_height, _LOWEST, _HIGHEST)

    @property
    def most_distractors(self) -> int:
        """The largest number that an episode can have."""
        return self._distractors[1]

    def draw(self, seed: int) -> DrawnScenery:
        """The scenery of the episode with a seed."""
        rng = np.random.default_rng((_STREAM, seed))
        table, pedestal = (float(rng.uniform(*limits)) for limits in (self._table, self._pedestal))
        low, high = self._distractors
        count = int(rng.integers(low, high + 1))
        name = self._lights[int(rng.integers(len(self._lights)))]
        return DrawnScenery(_random_light(rng) if name == RANDOM else LIGHTS[name], count, table, pedestal)

    @staticmethod
    def apply(model: Any, drawn: DrawnScenery) -> None:
        """Set light and heights of a compiled model."""
        head, lamp = model.vis.headlight, model.light("lamp")
        head.ambient[:] = head.diffuse[:] = drawn.light["ambient"]
        direction = np.array(drawn.light["dir"], float)
        lamp.diffuse[:], lamp.dir[:] = drawn.light["diffuse"], direction / np.linalg.norm(direction)
        model.body("table").pos[2] = drawn.table_height
        model.body("kuka/base").pos[2] = drawn.pedestal_height


def parse_range(name: str, value: Any, low: float, high: float) -> tuple[float, float]:
    """The ends of "a..b", or a number twice; both must lie from `low` to `high`."""
    parts = str(value).split("..")
    try:
        ends = (float(parts[0]), float(parts[-1]))
    except ValueError:
        ends = (np.nan, np.nan)
    if len(parts) > 2 or not low <= ends[0] <= ends[1] <= high:
        raise ValueError(
            f"{name} must be a number from {low:g} to {high:g}, or a range such as {low:g}..{high:g}; got {value!r}"
        )
    return ends


def _random_light(rng: np.random.Generator) -> dict[str, Any]:
    angle, height = rng.uniform(0, 2 * np.pi), rng.uniform(0.4, 2.0)
    return {
        "ambient": float(rng.uniform(0.15, 0.4)),
        "diffuse": tuple(rng.uniform(0.3, 0.8, 3)),
        "dir": (float(np.cos(angle)), float(np.sin(angle)), -float(height)),
    }
