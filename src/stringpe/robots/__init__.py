"""Robots in simulation: ALOHA and KUKA environments, scripted experts, demonstrations, policies.

    env = robots.make("MugOnPlate", size=(128, 128), depth=True)
    observation, info = env.reset(seed=0)
    observation, reward, success, timeout, info = env.step(env.action_space.sample())

`tasks()` lists the names. Needs the packages of `pip install 'stringpe[robots]'`.

In the code, sim/ holds the world: `aloha_tasks` and `kuka_tasks` describe tasks as data (`robot_task`, of `things` and
`goals`) on the robots of `aloha` and `kuka`; `env` steps and renders them (`world_state`, `sensors`); `expert` plays
the `scripts` that solve them. data/ holds demonstrations: `demos` records them, `writer` stores them, `dataset` reads
them, `pack` makes one file of them for training. policies/ holds what learns from them: `observer`, `diffusion_policy`,
`energy_policy`. `rollout` and `evaluate` try policies in simulation.
"""

import functools
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..io.registry import look_up

if TYPE_CHECKING:
    from .sim.robot_task import TaskEntry

__all__ = ["make", "register", "shifts", "tasks"]


def tasks() -> tuple[str, ...]:
    """Names of all tasks."""
    return tuple(_table())


def shifts(task: str) -> tuple[dict[str, Any], ...]:
    """Changes of the environment that a task's demonstrations do not show: options of `make`, one set per shift."""
    table = _table()
    changes = look_up("task", task, table).shifts
    if not changes:
        some = ", ".join(name for name, entry in table.items() if entry.shifts)
        raise ValueError(f"{task} has no shifts; these tasks have some: {some}")
    return changes


def make(
    task: str,
    *,
    seed: int | None = None,
    size: tuple[int, int] = (128, 128),
    cameras: tuple[str, ...] | None = None,
    depth: bool = False,
    calibration: bool = False,
    **options: Any,
) -> Any:
    """The environment of a task, a gymnasium.Env: see `RobotEnv` for observations, actions and rewards.

    Args:
        task: One of `tasks()`; or "module:function", a function of your own that takes the other arguments and returns
            a gymnasium.Env with the observations of `RobotEnv`.
        seed: Of the first episode, if `reset` is not given one.
        size: Height and width of the pictures.
        cameras: All of the robot by default; none with ().
        depth: Whether observations include depth.
        calibration: Whether observations include intrinsics and poses of the cameras, which policies in the world frame
            need. An environment of your own is given this argument only where it is true.
        options: `max_steps`; for the KUKA tasks those of `kuka_tasks.make`.
    """
    given = {"seed": seed, "size": size, "cameras": cameras, "depth": depth, **options}
    if calibration:
        given["calibration"] = True
    if ":" in task:
        return _find_function(task)(**given)
    entry = look_up("task", task, _table())
    unknown = [key for key in options if key not in entry.options]
    if unknown:
        raise ValueError(f"{task} has no option {unknown[0]!r}: it has {', '.join(entry.options)}")
    return entry.make(**given)


def register(name: str, make: Callable[..., Any], *, options: tuple[str, ...] = ("max_steps",)) -> None:
    """Make a task known by name: to `make`, and to the commands that record demonstrations and evaluate policies.

    make: its environment, called with the arguments of `make` by keyword. options: those that it takes of its own.
    """
    from .sim.robot_task import TaskEntry

    table = _table()
    if name in table:
        raise ValueError(f"there is a task named {name!r} already: take another name")
    table[name] = TaskEntry(name, make, options)


@functools.cache
def _table() -> "dict[str, TaskEntry]":
    """All tasks by name. A task is defined in one place, the file of its robot, which lists its entries."""
    from .sim import aloha_tasks, kuka_tasks

    return {entry.name: entry for entry in (*aloha_tasks.ENTRIES, *kuka_tasks.ENTRIES)}


def _find_function(name: str) -> Any:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no environment {name!r} ({error}): name it as module:function") from None
