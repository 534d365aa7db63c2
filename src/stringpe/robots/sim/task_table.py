"""All robot tasks by name. A task is defined in one place, the file of its robot, which lists its entries."""

from . import aloha_tasks, kuka_tasks
from .robot_task import TaskEntry

TASKS: dict[str, TaskEntry] = {entry.name: entry for entry in (*aloha_tasks.ENTRIES, *kuka_tasks.ENTRIES)}
