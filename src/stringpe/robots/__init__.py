"""Robots in simulation: ALOHA and KUKA environments, scripted experts, demonstrations.

    env = robots.make("MugOnPlate", size=(128, 128), depth=True)
    observation, info = env.reset(seed=0)
    observation, reward, success, timeout, info = env.step(env.action_space.sample())

`tasks()` lists the names. Needs the packages of `pip install 'stringpe[robots]'`.
"""

from typing import Any

from ..io.registry import unknown

ALOHA_TASKS = (
    "BowlOnRack", "GlassOnRack", "PlateOnRack", "SingleInsertion", "DoubleInsertion", "FMB-1",
    "FMB-2", "FruitBowl", "StorageBin", "HandOverBanana", "HandOverPen", "MugOnPlate",
)  # fmt: skip
KUKA_TASKS = ("KukaPick",)
OPTIONS = ("max_steps",)
KUKA_OPTIONS = ("target", "lighting", "distractors", "table_height", "depth_noise")
SHIFTS: dict[str, tuple[dict[str, Any], ...]] = {
    "KukaPick": (
        {"lighting": "dim"},
        {"lighting": "warm"},
        {"lighting": "side"},
        {"distractors": 3},
        {"table_height": 0.05},
        {"table_height": -0.05},
    )
}  # what a policy has not seen in training: options of the environment

__all__ = ["ALOHA_TASKS", "KUKA_TASKS", "SHIFTS", "make", "tasks"]


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
    backend: str = "",
    **options: Any,
) -> Any:
    """The environment of a task, a gymnasium.Env: see `RobotEnv` for observations, actions and rewards.

    Args:
        task: One of `tasks()`.
        seed: Of the first episode, if `reset` is not given one.
        size: Height and width of the pictures.
        cameras: All of the robot by default; none with ().
        depth: Whether to observe depth, too.
        backend: "aloha_sim" takes the scene of google-deepmind's package, where it is installed and has the task.
        options: `max_steps`; for KukaPick those of `kuka_tasks.make`.
    """
    if task not in tasks():
        raise unknown("task", task, tasks())
    known = OPTIONS + KUKA_OPTIONS * (task in KUKA_TASKS)
    strange = [key for key in options if key not in known]
    if strange:
        raise ValueError(f"{task} has no option {strange[0]!r}: it has {', '.join(known)}")
    if backend not in ("", "aloha_sim"):
        raise ValueError(f"no backend {backend!r}: leave it out, or choose aloha_sim")
    if backend:
        from .sim.deepmind import AlohaSimEnv

        return AlohaSimEnv(task, seed=seed, size=size, cameras=cameras, depth=depth, **options)
    if task in KUKA_TASKS:
        from .sim import kuka_tasks

        return kuka_tasks.make(seed=seed, size=size, cameras=cameras, depth=depth, **options)
    from .sim import aloha_tasks

    return aloha_tasks.make(task, seed=seed, size=size, cameras=cameras, depth=depth, **options)
