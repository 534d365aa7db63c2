"""Robots in simulation: ALOHA and KUKA environments, scripted experts, demonstrations.

    env = robots.make("MugOnPlate", size=(128, 128), depth=True)
    observation, info = env.reset(seed=0)
    observation, reward, success, timeout, info = env.step(env.action_space.sample())

`tasks()` lists the names. Needs the packages of `pip install 'stringpe[robots]'`.
"""

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .env import RobotEnv

ALOHA_TASKS = (
    "BowlOnRack", "GlassOnRack", "PlateOnRack", "SingleInsertion", "DoubleInsertion", "FMB-1",
    "FMB-2", "FruitBowl", "StorageBin", "HandOverBanana", "HandOverPen", "MugOnPlate",
)  # fmt: skip
KUKA_TASKS = ("KukaPick",)

__all__ = ["ALOHA_TASKS", "KUKA_TASKS", "make", "tasks"]


def tasks() -> tuple[str, ...]:
    """Names of all tasks."""
    return ALOHA_TASKS + KUKA_TASKS


def make(
    task: str,
    *,
    seed: int | None = None,
    size: tuple[int, int] = (128, 128),
    cameras: tuple[str, ...] | None = None,
    depth: bool = False,
    **options: Any,
) -> "RobotEnv":
    """The environment of a task; all its cameras unless `cameras` names some, or none with `cameras=()`."""
    if task not in tasks():
        near = difflib.get_close_matches(task.lower(), [name.lower() for name in tasks()], 1, 0.4)
        guess = [name for name in tasks() if [name.lower()] == near]
        hint = f"did you mean {guess[0]}? " if guess else ""
        raise ValueError(f"no task {task!r}: {hint}The tasks are {', '.join(tasks())}")
    if task in KUKA_TASKS:
        from . import kuka_tasks

        return kuka_tasks.make(seed=seed, size=size, cameras=cameras, depth=depth, **options)
    from . import aloha_tasks

    return aloha_tasks.make(task, seed=seed, size=size, cameras=cameras, depth=depth, **options)
